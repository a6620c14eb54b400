//! ◆ The calls of a resize, in order: for memory, then for CPU, the pod's limits grow before those of its containers and shrink
//! after them, and a limit grows before a request.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go doPodResizeAction. A kubelet writes the limits of the
//! pod's cgroup after its call of the runtime; here only the runtime writes them.

use api::pod::Pod;
use api::totals;
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use super::actuated::{Actuated, CpuMemory, PodLimits};
use crate::decide::plan::resize::{ContainerResize, Resize};
use crate::observed::{ContainerId, MemoryUsage};
use crate::pod_spec::spec::cgroup::pod_cgroup;
use crate::pod_spec::spec::{CgroupVersion, Node, Resources, cpu, resources};

/// The memory limit that cgroup v1 reports for a cgroup without a limit.
const UNLIMITED_MEMORY: i64 = 9_223_372_036_854_771_712;

/// One call, or a record of actuated resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// UpdatePodSandboxResources.
    Pod {
        /// `cpu` or `memory`.
        of: &'static str,
        /// The pod's limits without its overhead.
        resources: Resources,
        /// The pod's limits after the call.
        limits: PodLimits,
    },
    /// UpdateContainerResources.
    Container {
        /// Its id.
        id: ContainerId,
        /// Its name.
        name: String,
        /// Its new limits.
        resources: Resources,
        /// The container's resources after the call.
        now: CpuMemory,
    },
    /// Records these as the actuated pod-level resources.
    Whole(CpuMemory),
}

/// The limits to check before the steps: memory in use must be below the new limits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NewLimits {
    /// The pod's limit, if it shrinks.
    pub(crate) pod: Option<i64>,
    /// The shrinking limits of containers, by name.
    pub(crate) containers: Map<String, i64>,
}

impl NewLimits {
    /// The shrinking limits of a resize.
    pub(crate) fn of(pod: &Pod, resize: &Resize, actuated: &Actuated, node: &Node) -> Self {
        if resize.memory.is_empty() && !resize.restarts {
            return Self::default();
        }
        let of_pod = pod_cgroup(pod, node).memory;
        let shrinks = |new: &i64| actuated.cgroup.memory.is_none_or(|now| *new < now);
        let container = |resize: &ContainerResize| {
            let (from, to) = (resize.from.memory_limit, resize.to.memory_limit);
            (to != 0 && (from == 0 || to < from)).then(|| (resize.name.clone(), to))
        };
        Self {
            pod: of_pod.filter(shrinks),
            containers: resize.memory.iter().filter_map(container).collect(),
        }
    }

    /// Whether any limit shrinks.
    pub(crate) fn any(&self) -> bool {
        self.pod.is_some() || !self.containers.is_empty()
    }

    /// Compares the new limits with the usage.
    ///
    /// # Errors
    /// A kubelet's message, if usage reaches a new limit.
    pub(crate) fn check(&self, usage: &MemoryUsage) -> Result<(), String> {
        let mut problems = Vec::new();
        if let Some(limit) = self.pod {
            match usage.pod {
                None => problems.push("missing pod memory usage".to_owned()),
                Some(used) if exceeds(used, limit) => problems.push(format!(
                    "attempting to set pod memory limit ({limit}) below current usage ({used})"
                )),
                Some(_) => {}
            }
        }
        for (name, used) in &usage.containers {
            let Some(limit) = self.containers.get(name) else {
                continue;
            };
            match used {
                None => problems.push(format!("missing container {name:?} memory usage")),
                Some(used) if exceeds(*used, *limit) => {
                    // A kubelet shows the pod's usage here too.
                    let shown = usage.pod.unwrap_or(*used);
                    problems.push(format!(
                        "attempting to set container {name:?} memory limit ({limit}) below current usage ({shown})"
                    ));
                }
                Some(_) => {}
            }
        }
        let list = match problems.as_slice() {
            [] => return Ok(()),
            [one] => one.clone(),
            more => format!("[{}]", more.join(", ")),
        };
        Err(format!("cannot decrease memory limits: {list}"))
    }
}

fn exceeds(used: u64, limit: i64) -> bool {
    u64::try_from(limit).is_ok_and(|limit| used >= limit)
}

/// The steps of a resize of `pod`, which has its allocated resources.
pub(crate) fn steps(pod: &Pod, resize: &Resize, actuated: &Actuated, node: &Node) -> Vec<Step> {
    let desired = pod_cgroup(pod, node);
    let mut walk = Walk {
        pod,
        node,
        now: actuated.cgroup,
        containers: Map::new(),
        whole: resize.of_pod.then_some(actuated.pod),
        steps: Vec::new(),
    };
    let always = resize.restarts || resize.of_pod;
    if always || !resize.memory.is_empty() {
        let old = walk.now.memory.unwrap_or(UNLIMITED_MEMORY);
        // Without a new limit the old one stays: memory limits cannot be removed.
        let new = desired.memory.unwrap_or(old);
        let limit = |limits: &mut PodLimits| limits.memory = Some(new);
        walk.resource("memory", &resize.memory, (old, new, &limit), None);
    }
    if always || !resize.cpu.is_empty() {
        let old = walk.now;
        let (quota, period) = desired.cpu_quota.unwrap_or((old.cpu_quota, old.cpu_period));
        let shares = desired.cpu_shares;
        let limit =
            |limits: &mut PodLimits| (limits.cpu_quota, limits.cpu_period) = (quota, period);
        let request = |limits: &mut PodLimits| limits.cpu_shares = shares;
        walk.resource(
            "cpu",
            &resize.cpu,
            (old.cpu_quota, quota, &limit),
            Some((old.cpu_shares, shares, &request)),
        );
    }
    walk.steps
}

/// An old and a new value of the pod's limits, and a function that sets it.
type Change<'a> = (i64, i64, &'a dyn Fn(&mut PodLimits));

/// The steps so far, and the actuated resources after them.
struct Walk<'a> {
    pod: &'a Pod,
    node: &'a Node,
    now: PodLimits,
    containers: Map<ContainerId, CpuMemory>,
    /// The pod-level resources, if they change.
    whole: Option<CpuMemory>,
    steps: Vec<Step>,
}

impl Walk<'_> {
    fn resource(
        &mut self,
        of: &'static str,
        containers: &[ContainerResize],
        limit: Change<'_>,
        request: Option<Change<'_>>,
    ) {
        let in_order = [Some(limit), request];
        for (old, new, set) in in_order.into_iter().flatten() {
            if new > old {
                self.set_pod(of, set);
            }
        }
        for container in containers {
            self.set_container(of, container);
        }
        for (old, new, set) in in_order.into_iter().rev().flatten() {
            if new < old {
                self.set_pod(of, set);
            }
        }
        if let Some(whole) = &mut self.whole {
            *whole = with(of, *whole, CpuMemory::of_pod(self.pod));
            self.steps.push(Step::Whole(*whole));
        }
    }

    fn set_pod(&mut self, of: &'static str, set: &dyn Fn(&mut PodLimits)) {
        set(&mut self.now);
        self.steps.push(Step::Pod {
            of,
            resources: without_overhead(self.pod, self.now, self.node),
            limits: self.now,
        });
    }

    fn set_container(&mut self, of: &str, resize: &ContainerResize) {
        let before = self.containers.get(&resize.id).copied();
        let now = with(of, before.unwrap_or(resize.from), resize.to);
        self.containers.insert(resize.id.clone(), now);
        let mut all = self.pod.init_and_apps();
        let Some(container) = all.find(|container| container.name == resize.name) else {
            return;
        };
        let resized = Container { resources: Some(now.as_requirements()), ..container.clone() };
        self.steps.push(Step::Container {
            id: resize.id.clone(),
            name: resize.name.clone(),
            resources: resources::of_container(self.pod, &resized, self.node),
            now,
        });
    }
}

/// `old` with one resource of `new`.
fn with(of: &str, old: CpuMemory, new: CpuMemory) -> CpuMemory {
    if of == "cpu" {
        CpuMemory { cpu_request: new.cpu_request, cpu_limit: new.cpu_limit, ..old }
    } else {
        CpuMemory { memory_request: new.memory_request, memory_limit: new.memory_limit, ..old }
    }
}

/// The pod's limits as passed to the runtime: without the overhead, which is passed separately.
pub(crate) fn without_overhead(pod: &Pod, limits: PodLimits, node: &Node) -> Resources {
    // The unified hierarchy has no number for unlimited, and 0 stands for an absent limit.
    let unlimited = match node.cgroup_version {
        CgroupVersion::V1 => UNLIMITED_MEMORY,
        CgroupVersion::V2 => 0,
    };
    let mut resources = Resources {
        cpu_shares: limits.cpu_shares,
        cpu_quota: limits.cpu_quota,
        cpu_period: limits.cpu_period,
        memory_limit: limits
            .memory
            .filter(|memory| *memory != UNLIMITED_MEMORY)
            .unwrap_or(unlimited),
        ..Resources::default()
    };
    let overhead = pod.spec().overhead.as_ref();
    let of = |name: &str| overhead.and_then(|overhead| overhead.get(name)).map(totals::amount);
    if let Some(milli) = of("cpu").map(|cpu| cpu.milli_value()) {
        if resources.cpu_quota > 0 {
            resources.cpu_quota -= cpu::quota(milli, limits.cpu_period);
        }
        resources.cpu_shares = cpu::shares(cpu::milli_of_shares(limits.cpu_shares) - milli);
    }
    if let Some(memory) = of("memory") {
        resources.memory_limit -= memory.value();
    }
    resources
}

#[cfg(test)]
mod tests;
