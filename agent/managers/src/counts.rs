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

/// The metrics of requests and of those that failed.
const METRICS: [[(&str, &str); 2]; 6] = [
    [
        (
            "kubelet_cpu_manager_pinning_requests_total",
            "[ALPHA] The number of cpu core allocations which required pinning.",
        ),
        (
            "kubelet_cpu_manager_pinning_errors_total",
            "[ALPHA] The number of cpu core allocations which required pinning failed.",
        ),
    ],
    [
        (
            "kubelet_memory_manager_pinning_requests_total",
            "[ALPHA] The number of memory pages allocations which required pinning.",
        ),
        (
            "kubelet_memory_manager_pinning_errors_total",
            "[ALPHA] The number of memory pages allocations which required pinning that failed.",
        ),
    ],
    [
        (
            "kubelet_topology_manager_admission_requests_total",
            "[ALPHA] The number of admission requests where resources have to be aligned.",
        ),
        (
            "kubelet_topology_manager_admission_errors_total",
            "[ALPHA] The number of admission request failures where resources could not be aligned.",
        ),
    ],
    [
        (
            "kubelet_pod_resources_endpoint_requests_list",
            "[ALPHA] Number of requests to the PodResource List endpoint.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_list",
            "[ALPHA] Number of requests to the PodResource List endpoint which returned error.",
        ),
    ],
    [
        (
            "kubelet_pod_resources_endpoint_requests_get_allocatable",
            "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_get_allocatable",
            "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint which returned error.",
        ),
    ],
    [
        (
            "kubelet_pod_resources_endpoint_requests_get",
            "[ALPHA] Number of requests to the PodResource Get endpoint.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_get",
            "[ALPHA] Number of requests to the PodResource Get endpoint which returned error.",
        ),
    ],
];
const REQUESTS: (&str, &str) = (
    "kubelet_pod_resources_endpoint_requests_total",
    "[ALPHA] Cumulative number of requests to the PodResource endpoint.",
);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts([[AtomicU64; 2]; 6]);

impl Counts {
    /// Counts a request, and passes on how it went.
    pub(crate) fn count<T, E>(&self, asked: Asked, outcome: Result<T, E>) -> Result<T, E> {
        self.request(asked);
        if outcome.is_err() {
            self.0[asked as usize][1].fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Counts a request that cannot fail.
    pub(crate) fn request(&self, asked: Asked) {
        self.0[asked as usize][0].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts of all that managers can be asked for.
    pub(crate) fn all(&self) -> Vec<ManagerCount> {
        let of = |(name, help), count| ManagerCount { name, help, count };
        let mut requests = 0;
        let mut all = Vec::new();
        for (index, counts) in self.0.iter().enumerate() {
            let counts = [0, 1].map(|at: usize| counts[at].load(Ordering::Relaxed));
            if index >= Asked::List as usize {
                requests += counts[0];
            }
            all.extend([0, 1].map(|at: usize| of(METRICS[index][at], counts[at])));
        }
        all.push(of(REQUESTS, requests));
        all
    }
}
