//! ◆ Converts requests and limits to kernel settings.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container_linux.go and kuberuntime_sandbox_linux.go.

use std::collections::BTreeMap;

use api::pod::Pod;
use api::quantity::Quantity;
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use crate::node::CgroupVersion;
use crate::pod_spec::spec::amounts::{self, Amounts, HUGE_PAGES, Kind, get};
use crate::pod_spec::spec::{Node, Resources, cpu, memory_qos, qos};

pub(crate) use crate::pod_spec::spec::memory_qos::may_swap;

/// The pod's requests at its peak, including overhead, by resource name.
pub fn pod_requests(pod: &Pod) -> Map<String, Quantity> {
    amounts::with_overhead(pod, Kind::Requests)
}

/// The pod's resources, for its sandbox.
pub(super) fn of_sandbox(pod: &Pod, node: &Node) -> Resources {
    kernel(&amounts::of_pod(pod, Kind::Requests), &amounts::of_pod(pod, Kind::Limits), node)
}

/// The sandbox's overhead (`spec.overhead`).
pub(crate) fn overhead(pod: &Pod, node: &Node) -> Resources {
    match pod.spec().overhead.as_ref() {
        Some(overhead) => {
            let overhead = amounts::amounts(Some(overhead));
            kernel(&overhead, &overhead, node)
        }
        None => Resources::default(),
    }
}

/// Resources of one container.
pub(crate) fn of_container(pod: &Pod, container: &Container, node: &Node) -> Resources {
    let requests = amounts::of(Kind::Requests, container.resources.as_ref());
    let own = amounts::of(Kind::Limits, container.resources.as_ref());
    let whole = amounts::pod_level(pod, Kind::Limits);
    let mut limits = own.clone();
    // Without its own limit, a container has the pod-level limit.
    for name in ["cpu", "memory"] {
        if get(&own, name).is_zero() {
            limits.insert(name.to_owned(), get(&whole, name));
        }
    }
    let mut resources = kernel(&requests, &limits, node);
    resources.oom_score_adj = qos::oom_score(pod, container, node.memory_capacity);
    resources.hugepage_limits = hugepage_limits(&whole, &own, node);
    memory_qos::limit_swap(&mut resources, pod, container, node);
    memory_qos::set(&mut resources, pod, container, node);
    resources
}

fn kernel(requests: &Amounts, limits: &Amounts, node: &Node) -> Resources {
    let limit = get(limits, "cpu").milli_value();
    // Without a request, the limit is the request.
    let request = requests.get("cpu").map_or(limit, |request| request.milli_value());
    let (cpu_period, cpu_quota) = if node.cpu_quota {
        (node.cpu_quota_period, cpu::quota(limit, node.cpu_quota_period))
    } else {
        (0, 0)
    };
    let mut unified = BTreeMap::new();
    if node.cgroup_version == CgroupVersion::V2 && !node.single_process_oom_kill {
        // The kernel kills all processes of the container, not one of them.
        unified.insert("memory.oom.group".to_owned(), "1".to_owned());
    }
    Resources {
        cpu_shares: cpu::shares(request),
        cpu_period,
        cpu_quota,
        memory_limit: get(limits, "memory").value(),
        unified,
        ..Resources::default()
    }
}

/// A limit for each size of huge pages of the node: the container's, the pod's, or zero.
fn hugepage_limits(whole: &Amounts, own: &Amounts, node: &Node) -> Vec<(String, u64)> {
    let mut limits: Map<String, u64> = Map::new();
    for (name, amount) in whole.iter().chain(own) {
        let size = name.strip_prefix(HUGE_PAGES).and_then(|size| Quantity::parse(size).ok());
        if let Some(size) = size.and_then(|size| page_size_name(size.value())) {
            limits.insert(size, u64::try_from(amount.value()).unwrap_or_default());
        }
    }
    let sizes = node.hugepage_sizes.iter();
    sizes.map(|size| (size.clone(), limits.get(size).copied().unwrap_or_default())).collect()
}

/// A page size as the kernel names it: `2MB` for 2097152.
pub(crate) fn page_size_name(mut size: i64) -> Option<String> {
    const UNITS: [&str; 6] = ["B", "KB", "MB", "GB", "TB", "PB"];
    let mut unit = 0;
    while size != 0 && size % 1024 == 0 && unit + 1 < UNITS.len() {
        size /= 1024;
        unit += 1;
    }
    (size <= 1024 || unit + 1 == UNITS.len()).then(|| format!("{size}{}", UNITS[unit]))
}
