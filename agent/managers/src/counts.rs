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

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts([[AtomicU64; 2]; 6]);

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
        self.0[asked as usize][0].fetch_add(how_many as u64, Ordering::Relaxed);
    }

    /// Counts a failure, without a request.
    pub(crate) fn error(&self, asked: Asked) {
        self.0[asked as usize][1].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of all that managers can be asked for.
    pub(crate) fn all(&self) -> Vec<ManagerCount> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut all = Vec::new();
        for ([requests, errors, help], counts) in METRICS.into_iter().zip(&self.0) {
            all.push(ManagerCount { name: requests, help, count: load(&counts[0]) });
            all.push(ManagerCount { name: errors, help, count: load(&counts[1]) });
        }
        all.push(ManagerCount {
            name: "kubelet_pod_resources_endpoint_requests_total",
            help: "[ALPHA] Calls to the pod resources endpoint",
            count: self.0[Asked::List as usize..].iter().map(|counts| load(&counts[0])).sum(),
        });
        all
    }
}
