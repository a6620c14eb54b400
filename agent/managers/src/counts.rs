//! Counts the requests to managers and their failures, with the kubelet's metric names.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use agent::histogram::Histogram;
use agent::managers::{ManagerMetric, ManagerValue};

use crate::cpu::manager::Usage;

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestKind {
    /// Exclusive CPUs for a container.
    Cpus,
    /// NUMA memory for a container.
    Memory,
    /// The admission of a pod by the topology manager.
    Admission,
    /// Pod resources API: List.
    List,
    /// Pod resources API: GetAllocatableResources.
    Allocatable,
    /// Pod resources API: Get.
    Get,
}

/// The metrics of requests and of failures, each with its help text, by kind.
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
            "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api version.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_list",
            "[ALPHA] Number of requests to the PodResource List endpoint which returned error. Broken down by server api version.",
        ),
    ],
    [
        (
            "kubelet_pod_resources_endpoint_requests_get_allocatable",
            "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint. Broken down by server api version.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_get_allocatable",
            "[ALPHA] Number of requests to the PodResource GetAllocatableResources endpoint which returned error. Broken down by server api version.",
        ),
    ],
    [
        (
            "kubelet_pod_resources_endpoint_requests_get",
            "[ALPHA] Number of requests to the PodResource Get endpoint. Broken down by server api version.",
        ),
        (
            "kubelet_pod_resources_endpoint_errors_get",
            "[ALPHA] Number of requests to the PodResource Get endpoint which returned error. Broken down by server api version.",
        ),
    ],
];

/// The label of metrics of the pod resources API.
const API: (&str, &str) = ("server_api_version", "v1");

/// The resource of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Cpu,
    Memory,
}

/// The outcome of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Allocated from the node's resources, or to a pod with pod-level resources.
    FromNode,
    FromPod,
    /// Not allocated.
    NotFromNode,
    NotFromPod,
    /// A container has exclusive resources of the node, or of its pod.
    NodeExclusive,
    PodExclusive,
    /// A container shares the rest of its pod's resources.
    PodShared,
}

/// The metrics of outcomes with their second labels. They exist with the gate PodLevelResourceManagers.
const OUTCOMES: [(&str, (&str, &str)); 7] = [
    ("resource_manager_allocations_total", ("source", "node")),
    ("resource_manager_allocations_total", ("source", "pod")),
    ("resource_manager_allocation_errors_total", ("source", "node")),
    ("resource_manager_allocation_errors_total", ("source", "pod")),
    ("resource_manager_container_assignments", ("assignment_type", "node_exclusive")),
    ("resource_manager_container_assignments", ("assignment_type", "pod_exclusive")),
    ("resource_manager_container_assignments", ("assignment_type", "pod_shared")),
];

/// The help text of a metric of outcomes.
fn help_of_outcome(outcome: &str) -> &'static str {
    match outcome {
        "resource_manager_allocations_total" => {
            "[ALPHA] Number of exclusive resource allocations performed by a resource manager."
        }
        "resource_manager_allocation_errors_total" => {
            "[ALPHA] Number of errors encountered during exclusive resource allocation."
        }
        _ => "[ALPHA] Number of containers with a specific type of resource assignment.",
    }
}

/// The alignment of an allocation, guaranteed by the configuration or by chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Aligned {
    /// A container, or a pod, is on one NUMA node.
    ContainerToNode,
    PodToNode,
    /// A container shares no physical core.
    ContainerToCores,
    /// The CPUs of a container share a cache.
    ContainerToCache,
}

/// The labels scope and boundary of each alignment.
const ALIGNED: [[&str; 2]; 4] = [
    ["container", "numa_node"],
    ["pod", "numa_node"],
    ["container", "physical_cpu"],
    ["container", "uncore_cache"],
];

/// The upper bounds of the buckets of admission durations, in milliseconds.
const ADMISSION_BOUNDS: &[f64] =
    &[0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6, 819.2];

/// The capabilities of the managers, which determine the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct MetricCapabilities {
    /// NUMA nodes are chosen.
    pub(crate) topology: bool,
    /// Containers can have exclusive CPUs.
    pub(crate) processors: bool,
    /// Pods with pod-level resources can have CPUs and memory.
    pub(crate) pod_level: bool,
}

/// The counts of requests, outcomes and alignments.
#[derive(Debug)]
pub(crate) struct Counts {
    /// Requests and failures.
    request_counts: [[AtomicU64; 2]; 6],
    /// List calls of v1alpha1 of the pod resources API.
    older_lists: AtomicU64,
    /// By resource.
    outcomes: [[AtomicU64; 7]; 2],
    /// Aligned allocations, and those that could not be aligned.
    aligned: [[AtomicU64; 2]; 4],
    admissions: Mutex<Histogram>,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            request_counts: Default::default(),
            older_lists: AtomicU64::default(),
            outcomes: Default::default(),
            aligned: Default::default(),
            admissions: Mutex::new(Histogram::new(ADMISSION_BOUNDS)),
        }
    }
}

impl Counts {
    /// Counts a request and its result, which it returns.
    pub(crate) fn count<T, E>(&self, kind: RequestKind, outcome: Result<T, E>) -> Result<T, E> {
        self.request(kind);
        if outcome.is_err() {
            self.error(kind);
        }
        outcome
    }

    /// Counts a request that cannot fail.
    pub(crate) fn request(&self, kind: RequestKind) {
        self.requests(kind, 1);
    }

    /// Counts a List call of v1alpha1.
    pub(crate) fn older_list(&self) {
        self.older_lists.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts several requests.
    pub(crate) fn requests(&self, kind: RequestKind, how_many: usize) {
        self.request_counts[kind as usize][0].fetch_add(how_many as u64, Ordering::Relaxed);
    }

    /// Counts a failure without a request.
    pub(crate) fn error(&self, kind: RequestKind) {
        self.request_counts[kind as usize][1].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts several equal outcomes.
    pub(crate) fn outcomes(&self, of: Resource, outcome: Outcome, how_many: usize) {
        let count = &self.outcomes[of as usize][outcome as usize];
        count.fetch_add(how_many as u64, Ordering::Relaxed);
    }

    /// Counts an allocation as aligned, or as not alignable.
    pub(crate) fn aligned(&self, what: Aligned, is_aligned: bool) {
        let counts = &self.aligned[what as usize];
        counts[usize::from(!is_aligned)].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a pod's admission and records its duration, in whole milliseconds as in the kubelet.
    pub(crate) fn admitted(&self, took: Duration) {
        self.request(RequestKind::Admission);
        let mut admissions = self.admissions.lock().unwrap_or_else(PoisonError::into_inner);
        let milliseconds = u32::try_from(took.as_millis()).unwrap_or(u32::MAX);
        admissions.observe(f64::from(milliseconds));
    }

    /// All metrics. As in the kubelet, some labelled ones are absent until they occur.
    pub(crate) fn all(&self, capabilities: MetricCapabilities) -> Vec<ManagerMetric> {
        let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let mut all = Vec::new();
        let mut add = |name, labels: &[(&'static str, &str)], help, value| {
            let labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
            all.push(ManagerMetric { name, labels, help, value });
        };
        for (nth, (metrics, counts)) in METRICS.into_iter().zip(&self.request_counts).enumerate() {
            for ((name, help), count) in metrics.into_iter().zip(counts.each_ref().map(load)) {
                let is_of_api = nth >= RequestKind::List as usize;
                if !is_of_api || count > 0 {
                    let labels: &[_] = if is_of_api { &[API] } else { &[] };
                    add(name, labels, help, ManagerValue::Count(count));
                }
            }
        }
        let calls: u64 =
            self.request_counts[RequestKind::List as usize..].iter().map(|it| load(&it[0])).sum();
        let older = (API.0, "v1alpha1");
        for (api, calls) in [(API, calls), (older, load(&self.older_lists))] {
            if calls > 0 {
                let help = "[ALPHA] Cumulative number of requests to the PodResource endpoint. Broken down by server api version.";
                let name = "kubelet_pod_resources_endpoint_requests_total";
                add(name, &[api], help, ManagerValue::Count(calls));
            }
        }
        let of_resources = [("cpu", &self.outcomes[0]), ("memory", &self.outcomes[1])];
        for (resource, counts) in of_resources.into_iter().filter(|_| capabilities.pod_level) {
            for ((name, label), count) in OUTCOMES.into_iter().zip(counts) {
                let count = load(count);
                if count > 0 {
                    let labels = [("resource_name", resource), label];
                    add(name, &labels, help_of_outcome(name), ManagerValue::Count(count));
                }
            }
        }
        for (nth, ([scope, boundary], counts)) in ALIGNED.into_iter().zip(&self.aligned).enumerate()
        {
            let is_of_nodes = nth <= Aligned::PodToNode as usize;
            if !(if is_of_nodes { capabilities.topology } else { capabilities.processors }) {
                continue;
            }
            let labels = [("scope", scope), ("boundary", boundary)];
            let help = "[ALPHA] Cumulative number of aligned compute resources allocated to containers by alignment type.";
            let name = "kubelet_container_aligned_compute_resources_count";
            add(name, &labels, help, ManagerValue::Count(load(&counts[0])));
            // Cache alignment is only a preference, so it has no failures.
            if nth != Aligned::ContainerToCache as usize {
                let help = "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type.";
                let name = "kubelet_container_aligned_compute_resources_failure_count";
                add(name, &labels, help, ManagerValue::Count(load(&counts[1])));
            }
        }
        let admissions = self.admissions.lock().unwrap_or_else(PoisonError::into_inner);
        add(
            "kubelet_topology_manager_admission_duration_ms",
            &[],
            "[ALPHA] Duration in milliseconds to serve a pod admission request.",
            ManagerValue::Durations(admissions.clone()),
        );
        all
    }
}

/// The numbers of shared and exclusive CPUs.
pub(crate) fn gauges(usage: &Usage) -> Vec<ManagerMetric> {
    let gauge = |name, labels, help, value| {
        let value = ManagerValue::Gauge(value);
        ManagerMetric { name, labels, help, value }
    };
    let mut gauges = vec![
        gauge(
            "kubelet_cpu_manager_shared_pool_size_millicores",
            Vec::new(),
            "[ALPHA] The size of the shared CPU pool for non-guaranteed QoS pods, in millicores.",
            usage.shared * 1000,
        ),
        gauge(
            "kubelet_cpu_manager_exclusive_cpu_allocation_count",
            Vec::new(),
            "[ALPHA] The total number of CPUs exclusively allocated to containers running on this node",
            usage.exclusive,
        ),
    ];
    for (node, count) in &usage.exclusive_by_node {
        gauges.push(gauge(
            "kubelet_cpu_manager_allocation_per_numa",
            vec![("numa_node", node.to_string())],
            "[ALPHA] Number of CPUs allocated per NUMA node",
            *count,
        ));
    }
    gauges
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(
        "kubelet_cpu_manager_pinning_errors_total",
        "[ALPHA] The number of cpu core allocations which required pinning failed."
    )]
    #[case(
        "kubelet_topology_manager_admission_requests_total",
        "[ALPHA] The number of admission requests where resources have to be aligned."
    )]
    #[case(
        "kubelet_pod_resources_endpoint_requests_list",
        "[ALPHA] Number of requests to the PodResource List endpoint. Broken down by server api version."
    )]
    #[case(
        "kubelet_container_aligned_compute_resources_failure_count",
        "[ALPHA] Cumulative number of failures to allocate aligned compute resources to containers by alignment type."
    )]
    #[case(
        "resource_manager_allocation_errors_total",
        "[ALPHA] Number of errors encountered during exclusive resource allocation."
    )]
    #[case(
        "resource_manager_container_assignments",
        "[ALPHA] Number of containers with a specific type of resource assignment."
    )]
    fn metrics_have_the_help_of_a_kubelet(#[case] name: &str, #[case] expected: &str) {
        let counts = Counts::default();
        counts.request(RequestKind::List);
        counts.outcomes(Resource::Cpu, Outcome::NotFromPod, 1);
        counts.outcomes(Resource::Cpu, Outcome::PodShared, 1);
        let capabilities = MetricCapabilities { topology: true, processors: true, pod_level: true };
        let all = counts.all(capabilities);
        let metric = all.iter().find(|metric| metric.name == name);
        assert_eq!(metric.map(|metric| metric.help), Some(expected));
    }

    #[test]
    fn admissions_are_observed_in_whole_milliseconds() {
        let counts = Counts::default();
        counts.admitted(Duration::from_micros(900));
        counts.admitted(Duration::from_micros(2900));
        let mut expected = Histogram::new(ADMISSION_BOUNDS);
        expected.observe(0.0);
        expected.observe(2.0);
        let all = counts.all(MetricCapabilities::default());
        let name = "kubelet_topology_manager_admission_duration_ms";
        let metric = all.into_iter().find(|metric| metric.name == name);
        assert_eq!(metric.map(|metric| metric.value), Some(ManagerValue::Durations(expected)));
    }
}
