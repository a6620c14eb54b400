//! How often managers were asked for something, and could not give it, with the names of a kubelet's metrics.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go.

use std::sync::atomic::{AtomicU64, Ordering};

use agent::managers::ManagerCount;

/// What managers are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// Processors of a container's own.
    Cpus,
    /// Memory of certain nodes for a container.
    Memory,
    /// What a pod needs, from memory nodes that fit.
    Admission,
    /// What all pods have.
    List,
    /// What containers can have.
    Allocatable,
    /// What a pod has.
    Get,
}

/// The metrics of requests, those of requests that failed, and what is asked for.
const METRICS: [[&str; 3]; 6] = [
    [
        "kubelet_cpu_manager_pinning_requests_total",
        "kubelet_cpu_manager_pinning_errors_total",
        "[ALPHA] Containers that asked for processors of their own; errors: that got none",
    ],
    [
        "kubelet_memory_manager_pinning_requests_total",
        "kubelet_memory_manager_pinning_errors_total",
        "[ALPHA] Containers that asked for memory of certain nodes; errors: that got none",
    ],
    [
        "kubelet_topology_manager_admission_requests_total",
        "kubelet_topology_manager_admission_errors_total",
        "[ALPHA] Pods that asked for resources from nodes that fit; errors: that were rejected",
    ],
    [
        "kubelet_pod_resources_endpoint_requests_list",
        "kubelet_pod_resources_endpoint_errors_list",
        "[ALPHA] List calls to the pod resources endpoint; errors: that failed",
    ],
    [
        "kubelet_pod_resources_endpoint_requests_get_allocatable",
        "kubelet_pod_resources_endpoint_errors_get_allocatable",
        "[ALPHA] GetAllocatableResources calls to the pod resources endpoint; errors: that failed",
    ],
    [
        "kubelet_pod_resources_endpoint_requests_get",
        "kubelet_pod_resources_endpoint_errors_get",
        "[ALPHA] Get calls to the pod resources endpoint; errors: that failed",
    ],
];

/// The label of metrics of the pod resources API.
const API: (&str, &str) = ("server_api_version", "v1");

/// What processors or memory is given from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Cpu,
    Memory,
}

/// What comes of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Something was given of what the node has, or a pod with pod-level resources.
    FromNode,
    FromPod,
    /// It was not.
    NotFromNode,
    NotFromPod,
    /// A container has something for itself of what the node has, or its pod.
    NodeExclusive,
    PodExclusive,
    /// A container shares what is left of its pod's.
    PodShared,
}

/// The metrics of outcomes with their second labels, which nodes with the gate PodLevelResourceManagers have.
const OUTCOMES: [(&str, (&str, &str)); 7] = [
    ("resource_manager_allocations_total", ("source", "node")),
    ("resource_manager_allocations_total", ("source", "pod")),
    ("resource_manager_allocation_errors_total", ("source", "node")),
    ("resource_manager_allocation_errors_total", ("source", "pod")),
    ("resource_manager_container_assignments", ("assignment_type", "node_exclusive")),
    ("resource_manager_container_assignments", ("assignment_type", "pod_exclusive")),
    ("resource_manager_container_assignments", ("assignment_type", "pod_shared")),
];

const OUTCOMES_HELP: &str = "[ALPHA] Allocations of processors and memory for containers, those that failed, and what containers got";

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    /// Requests, and failures.
    asked: [[AtomicU64; 2]; 6],
    /// By resource.
    outcomes: [[AtomicU64; 7]; 2],
}

impl Counts {
    /// Counts a request, and passes on how it went.
    pub(crate) fn count<T, E>(&self, asked: Asked, outcome: Result<T, E>) -> Result<T, E> {
        self.request(asked);
        if outcome.is_err() {
            self.error(asked);
        }
        outcome
    }

    /// Counts a request that cannot fail.
    pub(crate) fn request(&self, asked: Asked) {
        self.requests(asked, 1);
    }

    /// Counts several requests at once.
    pub(crate) fn requests(&self, asked: Asked, how_many: usize) {
        self.asked[asked as usize][0].fetch_add(how_many as u64, Ordering::Relaxed);
    }

    /// Counts a failure, without a request.
    pub(crate) fn error(&self, asked: Asked) {
        self.asked[asked as usize][1].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts several outcomes of a kind.
    pub(crate) fn outcomes(&self, of: Resource, outcome: Outcome, how_many: usize) {
        let count = &self.outcomes[of as usize][outcome as usize];
        count.fetch_add(how_many as u64, Ordering::Relaxed);
    }

    /// The counts of all that managers can be asked for. `pod_level`: pods with pod-level resources can get processors and memory.
    pub(crate) fn all(&self, pod_level: bool) -> Vec<ManagerCount> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut all = Vec::new();
        for (nth, ([requests, errors, help], counts)) in
            METRICS.into_iter().zip(&self.asked).enumerate()
        {
            for (name, count) in [(requests, &counts[0]), (errors, &counts[1])] {
                let labels = if nth < Asked::List as usize { Vec::new() } else { vec![API] };
                all.push(ManagerCount { name, labels, help, count: load(count) });
            }
        }
        let of_resources = [("cpu", &self.outcomes[0]), ("memory", &self.outcomes[1])];
        for (resource, counts) in of_resources.into_iter().filter(|_| pod_level) {
            for ((name, label), count) in OUTCOMES.into_iter().zip(counts) {
                let labels = vec![("resource_name", resource), label];
                all.push(ManagerCount { name, labels, help: OUTCOMES_HELP, count: load(count) });
            }
        }
        all.push(ManagerCount {
            name: "kubelet_pod_resources_endpoint_requests_total",
            labels: vec![API],
            help: "[ALPHA] Calls to the pod resources endpoint",
            count: self.asked[Asked::List as usize..].iter().map(|counts| load(&counts[0])).sum(),
        });
        all
    }
}
