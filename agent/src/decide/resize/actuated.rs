//! ◆ The CPU and memory that were last passed to the runtime, for each container and for the pod.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go containerResourcesFromRequirements.

use std::collections::BTreeMap;

use api::pod::{Pod, is_sidecar};
use api::totals::{self, Kind};
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde::{Deserialize, Serialize};

use crate::pod_spec::spec::Node;
use crate::pod_spec::spec::cgroup::{PodCgroup, pod_cgroup};

/// CPU in thousandths and memory in bytes; 0 for an absent value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuMemory {
    /// Requested CPU.
    pub cpu_request: i64,
    /// Limit of CPU.
    pub cpu_limit: i64,
    /// Requested memory.
    pub memory_request: i64,
    /// Limit of memory.
    pub memory_limit: i64,
}

impl CpuMemory {
    fn of(resources: Option<&ResourceRequirements>) -> Self {
        let amount = |kind: Kind, name: &str| {
            let list = kind.of(resources)?;
            list.get(name).map(totals::amount)
        };
        let milli = |kind| amount(kind, "cpu").map_or(0, |cpu| cpu.milli_value());
        let bytes = |kind| amount(kind, "memory").map_or(0, |memory| memory.value());
        Self {
            cpu_request: milli(Kind::Requests),
            cpu_limit: milli(Kind::Limits),
            memory_request: bytes(Kind::Requests),
            memory_limit: bytes(Kind::Limits),
        }
    }

    /// The resources of a container. Without its own limit, the pod-level limit applies.
    pub fn of_container(pod: &Pod, container: &Container) -> Self {
        let own = Self::of(container.resources.as_ref());
        let whole = Self::of_pod(pod);
        let or = |own: i64, whole: i64| if own == 0 { whole } else { own };
        Self {
            cpu_limit: or(own.cpu_limit, whole.cpu_limit),
            memory_limit: or(own.memory_limit, whole.memory_limit),
            ..own
        }
    }

    /// The pod-level resources (`spec.resources`).
    pub fn of_pod(pod: &Pod) -> Self {
        Self::of(pod.spec().resources.as_ref())
    }

    /// Converts them to resource requirements that have only these.
    pub(crate) fn as_requirements(self) -> ResourceRequirements {
        let list = |milli: i64, bytes: i64| {
            Some(BTreeMap::from([
                ("cpu".to_owned(), ApiQuantity(format!("{milli}m"))),
                ("memory".to_owned(), ApiQuantity(bytes.to_string())),
            ]))
        };
        ResourceRequirements {
            claims: None,
            limits: list(self.cpu_limit, self.memory_limit),
            requests: list(self.cpu_request, self.memory_request),
        }
    }
}

/// The limits of a pod's cgroup, as last passed to the runtime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PodLimits {
    /// CPU shares.
    pub cpu_shares: i64,
    /// CPU time for each period, in microseconds; -1: unlimited.
    pub cpu_quota: i64,
    /// The length of such a period, in microseconds.
    pub cpu_period: i64,
    /// Memory in bytes; `None`: unlimited.
    pub memory: Option<i64>,
}

impl PodLimits {
    /// The limits with which a pod's cgroup is created.
    fn first(cgroup: &PodCgroup, node: &Node) -> Self {
        let (cpu_quota, cpu_period) = cgroup.cpu_quota.unwrap_or((-1, node.cpu_quota_period));
        Self { cpu_shares: cgroup.cpu_shares, cpu_quota, cpu_period, memory: cgroup.memory }
    }
}

/// The resources last actuated at the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actuated {
    /// The resources of each container, by its name.
    pub containers: Map<String, CpuMemory>,
    /// The pod-level resources.
    pub pod: CpuMemory,
    /// The pod's cgroup.
    pub cgroup: PodLimits,
}

impl Actuated {
    /// The actuated resources of a pod that is created with the resources of its spec.
    pub fn new(pod: &Pod, node: &Node) -> Self {
        let of = |container: &Container| {
            let own = CpuMemory::of_container(pod, container);
            (container.name.clone(), own)
        };
        Self {
            containers: pod.init_and_apps().map(of).collect(),
            pod: CpuMemory::of_pod(pod),
            cgroup: PodLimits::first(&pod_cgroup(pod, node), node),
        }
    }

    /// The resources of a container; all zero if none are recorded.
    pub fn container(&self, name: &str) -> CpuMemory {
        self.containers.get(name).copied().unwrap_or_default()
    }

    /// Whether a container in `running`, or the pod as a whole, has other resources than the pod's spec, which has the allocated
    /// ones. Init containers that are not sidecars are ignored, as in a kubelet.
    pub fn differs_from(&self, pod: &Pod, running: impl Fn(&str) -> bool) -> bool {
        let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
        let mut counted = sidecars.chain(pod.containers());
        let of_container = counted.any(|container| {
            running(&container.name)
                && CpuMemory::of_container(pod, container) != self.container(&container.name)
        });
        of_container || (pod.spec().resources.is_some() && CpuMemory::of_pod(pod) != self.pod)
    }
}

/// Whether a pod, or one of its containers, requests or limits any resource. Otherwise there is nothing to record.
pub(crate) fn has_resources(pod: &Pod) -> bool {
    pod.spec().resources.is_some()
        || pod.init_and_apps().any(|container| {
            container.resources.as_ref().is_some_and(|resources| {
                let filled =
                    |list: Option<&totals::Amounts>| list.is_some_and(|list| !list.is_empty());
                filled(resources.requests.as_ref()) || filled(resources.limits.as_ref())
            })
        })
}
