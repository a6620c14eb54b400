//! ◆ The policy `static`: containers of Guaranteed pods that request whole CPUs get exclusive CPUs. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/policy_static.go. `pod_level` allocates for pods with pod-level resources in the
//! scope `pod` of the topology manager.

use api::pod::{Pod, is_sidecar};
use api::qos::{QosClass, qos_class};
use api::totals::{Amounts, Kind, amount};
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use super::distribute::distributed;
use super::layout::{Layout, Part};
use super::options::Options;
use super::set::{CpuSet, format};
use super::take::packed;
use crate::pod_level::Management;
use crate::topology::hint::{Hint, Hints, Mask, hints, subsets};

/// The CPUs of containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct State {
    /// The shared CPUs.
    pub(crate) shared: CpuSet,
    /// The CPUs of containers, by pod uid: exclusive to one container, or shared within a pod.
    pub(crate) exclusive: Map<String, Map<String, CpuSet>>,
    /// The CPUs of pods with pod-level resources, by uid. Their containers have parts of them.
    pub(crate) pods: Map<String, CpuSet>,
}

impl State {
    /// The CPUs of a container, unless it uses the shared ones.
    pub(crate) fn of(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.exclusive.get(uid)?.get(container)
    }
}

/// The reason that CPUs were not allocated.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum CpuError {
    /// The container would share a physical core.
    #[error("SMT Alignment Error: {0}")]
    Alignment(String),
    /// No CPUs would remain for the pod's shared containers.
    #[error("{0}")]
    EmptyPool(String),
    /// Another reason.
    #[error("{0}")]
    Other(String),
}

/// The policy `static` on a machine.
#[derive(Clone, Debug)]
pub(crate) struct StaticPolicy {
    layout: Layout,
    options: Options,
    reserved: CpuSet,
    /// The reserved CPUs, and all others of their cores.
    reserved_cores: CpuSet,
    /// The CPUs of earlier init containers of the pod in admission, which later containers may reuse.
    reusable: (String, CpuSet),
}

impl StaticPolicy {
    /// Creates the policy for this machine. `specific` are the reserved CPUs; if empty, it chooses `reserved` of them.
    ///
    /// # Errors
    /// The kubelet's error if the reserved CPUs do not exist.
    pub(crate) fn new(
        layout: Layout,
        options: Options,
        reserved: usize,
        specific: CpuSet,
    ) -> Result<Self, String> {
        let mut policy = Self {
            layout,
            options,
            reserved: CpuSet::new(),
            reserved_cores: CpuSet::new(),
            reusable: Default::default(),
        };
        let all = policy.layout.cpus.set();
        policy.reserved = match specific.is_empty() {
            true => policy.take(&all, reserved).unwrap_or_default(),
            false => specific,
        };
        if policy.reserved.len() != reserved {
            return Err(format!(
                "[cpumanager] unable to reserve the required amount of CPUs (size of {} did not equal {reserved})",
                format(&policy.reserved)
            ));
        }
        let mut cores = Vec::new();
        for cpu in &policy.reserved {
            let Some(at) = policy.layout.cpus.0.get(cpu) else {
                return Err(format!(
                    "[cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {cpu}"
                ));
            };
            cores.push(at.core);
        }
        policy.reserved_cores = policy.layout.cpus.of_all(Part::Core, &cores);
        Ok(policy)
    }

    /// Whether containers never share a physical core.
    pub(super) fn aligns_cores(&self) -> bool {
        self.options.full_cores
    }

    /// Whether the CPUs share one cache.
    pub(super) fn share_cache(&self, cpus: &CpuSet) -> bool {
        let caches = cpus.iter().map(|cpu| self.layout.cpus.0.get(cpu).map(|cpu| cpu.cache));
        let mut caches: Vec<_> = caches.collect();
        caches.dedup();
        caches.len() <= 1
    }

    /// The number of these CPUs on each NUMA node.
    pub(super) fn by_node(&self, cpus: &CpuSet) -> Map<usize, u64> {
        let all = self.layout.cpus.0.values().map(|cpu| (cpu.node, 0));
        let mut counts: Map<usize, u64> = all.collect();
        for cpu in cpus.iter().filter_map(|cpu| self.layout.cpus.0.get(cpu)) {
            *counts.entry(cpu.node).or_default() += 1;
        }
        counts
    }

    /// Takes `count` of the available CPUs.
    pub(super) fn take(&self, available: &CpuSet, count: usize) -> Result<CpuSet, String> {
        let (layout, order) = (&self.layout, self.options.order());
        if self.options.across_nodes {
            let group = if self.options.full_cores { layout.cpus_per_core() } else { 1 };
            return distributed(layout, available, count, group.max(1), order);
        }
        packed(layout, available, count, order, self.options.by_cache)
    }

    /// The initial state: the checkpoint's, or all CPUs shared.
    ///
    /// # Errors
    /// The kubelet's error if the machine or the reserved CPUs have changed.
    pub(crate) fn start(&self, state: State) -> Result<State, String> {
        let all = self.layout.cpus.set();
        let all: CpuSet = match self.options.strict {
            true => &all - &self.reserved,
            false => all,
        };
        let shared = &state.shared;
        if shared.is_empty() {
            return match state.exclusive.is_empty() {
                true => Ok(State { shared: all, ..State::default() }),
                false => Err("default cpuset cannot be empty".to_owned()),
            };
        }
        let both = &self.reserved & shared;
        if self.options.strict && !both.is_empty() {
            return Err(format!(
                "some of strictly reserved cpus: {:?} are present in defaultCpuSet: {:?}",
                format(&both),
                format(shared)
            ));
        }
        if !self.options.strict && both != self.reserved {
            return Err(format!(
                "not all reserved cpus: {:?} are present in defaultCpuSet: {:?}",
                format(&self.reserved),
                format(shared)
            ));
        }
        let mut known = shared.clone();
        for (pod, containers) in &state.exclusive {
            for (container, cpus) in containers {
                if !cpus.is_disjoint(shared) {
                    return Err(format!(
                        "pod: {pod}, container: {container} cpuset: {:?} overlaps with default cpuset {:?}",
                        format(cpus),
                        format(shared)
                    ));
                }
                known.extend(cpus);
            }
        }
        known.extend(state.pods.values().flatten());
        if known != all {
            return Err(format!(
                "current set of available CPUs {:?} doesn't match with CPUs in state {:?}",
                format(&all),
                format(&known)
            ));
        }
        Ok(state)
    }

    /// The CPUs that can be assigned exclusively.
    pub(crate) fn allocatable(&self) -> CpuSet {
        &self.layout.cpus.set() - &self.reserved
    }

    pub(super) fn available(&self, state: &State) -> CpuSet {
        &state.shared - &self.reserved
    }

    /// Allocates the CPUs that a container requests. Returns whether the allocation is new.
    ///
    /// # Errors
    /// If the CPUs are unavailable.
    pub(crate) fn allocate(
        &mut self,
        state: &mut State,
        pod: &Pod,
        container: &Container,
        nodes: Option<Mask>,
    ) -> Result<bool, CpuError> {
        let count = self.requested(pod, container);
        if count == 0 {
            return Ok(false);
        }
        self.check_cores(state, count)?;
        let uid = pod.uid().as_str();
        if let Some(cpus) = state.of(uid, &container.name).cloned() {
            self.reuse(pod, container, &cpus);
            return Ok(false);
        }
        let free = &self.available(state) | &self.reusable(uid);
        let taken = self.take_near(&free, count, nodes)?;
        state.shared = &state.shared - &taken;
        self.reuse(pod, container, &taken);
        let of_pod = state.exclusive.entry(uid.to_owned()).or_default();
        of_pod.insert(container.name.clone(), taken);
        Ok(true)
    }

    /// Takes `count` of the free CPUs, those of the chosen nodes first.
    pub(super) fn take_near(
        &self,
        free: &CpuSet,
        count: usize,
        nodes: Option<Mask>,
    ) -> Result<CpuSet, CpuError> {
        let mut taken = CpuSet::new();
        if let Some(nodes) = nodes {
            let aligned = self.aligned(nodes, free);
            let count = count.min(aligned.len());
            taken = self.take(&aligned, count).map_err(CpuError::Other)?;
        }
        let rest = self.take(&(free - &taken), count - taken.len());
        taken.extend(rest.map_err(CpuError::Other)?);
        Ok(taken)
    }

    /// Checks that `count` CPUs are whole cores, if the options require that.
    pub(super) fn check_cores(&self, state: &State, count: usize) -> Result<(), CpuError> {
        let each = self.layout.cpus_per_core();
        if !self.options.full_cores || each == 0 {
            return Ok(());
        }
        if !count.is_multiple_of(each) {
            return Err(CpuError::Alignment(format!(
                "requested {count} cpus not multiple cpus per core = {each}"
            )));
        }
        let free = state.shared.difference(&self.reserved_cores).count();
        if count > free {
            return Err(CpuError::Alignment(format!(
                "not enough free physical CPUs: available physical CPUs = {free}, requested CPUs = {count}, CPUs per core = {each}"
            )));
        }
        Ok(())
    }

    fn reusable(&self, uid: &str) -> CpuSet {
        if self.reusable.0 == uid { self.reusable.1.clone() } else { CpuSet::new() }
    }

    fn reuse(&mut self, pod: &Pod, container: &Container, cpus: &CpuSet) {
        let uid = pod.uid().as_str();
        if self.reusable.0 != uid {
            self.reusable = (uid.to_owned(), CpuSet::new());
        }
        let init = pod.init_containers().iter().find(|init| init.name == container.name);
        let reusable = &self.reusable.1;
        self.reusable.1 = match init.is_some_and(|init| !is_sidecar(init)) {
            true => reusable | cpus,
            false => reusable - cpus,
        };
    }

    fn aligned(&self, nodes: Mask, free: &CpuSet) -> CpuSet {
        let cpus = &self.layout.cpus;
        let near = match self.options.by_socket {
            true => cpus.of_all(Part::Socket, &self.sockets(nodes)),
            false => cpus.of_all(Part::Node, &nodes.nodes()),
        };
        &near & free
    }

    fn sockets(&self, nodes: Mask) -> Vec<usize> {
        let cpus = self.layout.cpus.0.values().filter(|cpu| nodes.has(cpu.node));
        let sockets: compact::Set<usize> = cpus.map(|cpu| cpu.socket).collect();
        sockets.into_iter().collect()
    }

    /// Frees the CPUs of a container, except those that it shares with other containers of the pod. The CPUs of a pod with
    /// pod-level resources are freed with its last container. Returns whether the container had CPUs.
    pub(crate) fn remove(&self, state: &mut State, uid: &str, container: &str) -> bool {
        let Some(of_pod) = state.exclusive.get_mut(uid) else {
            return false;
        };
        let Some(mut cpus) = of_pod.remove(container) else {
            return false;
        };
        for others in of_pod.values() {
            cpus = &cpus - others;
        }
        let is_last = of_pod.is_empty();
        if is_last {
            state.exclusive.remove(uid);
        }
        match state.pods.get(uid) {
            None => state.shared.extend(cpus),
            Some(_) if !is_last => {}
            Some(_) => state.shared.extend(state.pods.remove(uid).unwrap_or_default()),
        }
        true
    }

    /// The topology hints for the CPUs of a container.
    pub(crate) fn container_hints(&self, state: &State, pod: &Pod, container: &Container) -> Hints {
        let count = self.requested(pod, container);
        if count == 0 {
            return Hints::new();
        }
        let uid = pod.uid().as_str();
        let of = match state.of(uid, &container.name) {
            Some(cpus) if cpus.len() != count => Vec::new(),
            Some(cpus) => self.hints(cpus, &CpuSet::new(), count),
            None => self.hints(&self.available(state), &self.reusable(uid), count),
        };
        Hints::from([("cpu".to_owned(), Some(of))])
    }

    /// The topology hints for the CPUs of a pod.
    pub(crate) fn pod_hints(&self, state: &State, pod: &Pod) -> Hints {
        let count = self.requested_by_pod(pod);
        if count == 0 {
            return Hints::new();
        }
        let uid = pod.uid().as_str();
        let mut assigned = CpuSet::new();
        for container in pod.init_and_apps() {
            if let Some(cpus) = state.of(uid, &container.name) {
                if cpus.len() != self.requested(pod, container) {
                    return Hints::from([("cpu".to_owned(), Some(Vec::new()))]);
                }
                assigned.extend(cpus);
            }
        }
        let of = match assigned.len() == count {
            true => self.hints(&assigned, &CpuSet::new(), count),
            false => self.hints(&self.available(state), &(&self.reusable(uid) | &assigned), count),
        };
        Hints::from([("cpu".to_owned(), Some(of))])
    }

    /// The sets of nodes that have `count` CPUs, including all reusable ones.
    pub(super) fn hints(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let cpus = &self.layout.cpus;
        let nodes: Vec<usize> = cpus.parts(Part::Node).into_iter().collect();
        let mut least = nodes.len();
        let mut masks = Vec::new();
        for mask in subsets(&nodes) {
            let is_in = |cpu: &&usize| cpus.0.get(cpu).is_some_and(|at| mask.has(at.node));
            if cpus.of_all(Part::Node, &mask.nodes()).len() >= count {
                least = least.min(mask.count());
            }
            if !reusable.iter().all(|cpu| is_in(&cpu)) {
                continue;
            }
            if reusable.len() + available.iter().filter(is_in).count() >= count {
                masks.push(mask);
            }
        }
        let mut of = hints(masks, least);
        if self.options.by_socket {
            for hint in &mut of {
                hint.preferred |= hint.nodes.is_some_and(|mask| self.is_on_sockets(mask, least));
            }
        }
        of
    }

    fn management(&self, pod: &Pod) -> Management {
        Management::of(pod, self.options.pod_level)
    }

    /// The number of exclusive CPUs that a container requests.
    pub(crate) fn requested(&self, pod: &Pod, container: &Container) -> usize {
        let is_exclusive = self.management(pod).is_exclusive(container);
        if qos_class(pod) != QosClass::Guaranteed || !is_exclusive {
            return 0;
        }
        whole(Kind::Requests.of(container.resources.as_ref()))
    }

    /// The maximum number of exclusive CPUs that the pod needs at one time.
    pub(super) fn requested_by_pod(&self, pod: &Pod) -> usize {
        if self.management(pod) == Management::PodLevel {
            let requests = Kind::Requests.of(pod.spec().resources.as_ref());
            return if qos_class(pod) == QosClass::Guaranteed { whole(requests) } else { 0 };
        }
        let (mut sidecars, mut most) = (0, 0);
        for init in pod.init_containers() {
            let count = self.requested(pod, init);
            if is_sidecar(init) {
                sidecars += count;
            } else {
                most = most.max(sidecars + count);
            }
        }
        let apps: usize = pod.containers().iter().map(|app| self.requested(pod, app)).sum();
        most.max(apps + sidecars)
    }

    /// Whether the nodes are on the minimum number of sockets.
    fn is_on_sockets(&self, nodes: Mask, least: usize) -> bool {
        match self.layout.nodes.checked_div(self.layout.sockets) {
            None | Some(0) => false,
            Some(of_socket) => self.sockets(nodes).len() == least.div_ceil(of_socket),
        }
    }
}

/// The number of whole CPUs that a list requests; 0 if it requests none or a fraction.
fn whole(requests: Option<&Amounts>) -> usize {
    let cpu = requests.and_then(|requests| requests.get("cpu")).map(amount);
    let whole = cpu.filter(|cpu| cpu.value() * 1000 == cpu.milli_value());
    whole.and_then(|cpu| usize::try_from(cpu.value()).ok()).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests;
