//! ◆ Memory QoS (gate MemoryQoS): at which usage the kernel throttles a container, and how much of its memory is protected; and how
//! much swap a container may use.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container_linux.go, generateLinuxContainerResources.

use api::pod::Pod;
use api::qos::{QosClass, qos_class};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Container;

use crate::node::{CgroupVersion, MemoryReservation, Node, SwapBehavior};
use crate::pod_spec::spec::Resources;
use crate::pod_spec::spec::amounts::{self, Kind, get};
use crate::pod_spec::spec::qos::is_critical;

/// The kernel rounds down to whole pages. A kubelet uses the page size of its machine.
const PAGE: f64 = 4096.0;

/// Sets the files of a container's cgroup, which only the unified hierarchy has.
pub(super) fn set(resources: &mut Resources, pod: &Pod, container: &Container, node: &Node) {
    let Some(qos) = node.memory_qos else {
        return;
    };
    if node.cgroup_version != CgroupVersion::V2 {
        return;
    }
    let of = |kind| get(&amounts::of(kind, container.resources.as_ref()), "memory").value();
    let (request, limit) = (of(Kind::Requests), of(Kind::Limits));
    let mut file = |name: &str, value: i64| {
        resources.unified.insert(name.to_owned(), value.to_string());
    };
    if request != 0 && qos.reservation == MemoryReservation::TieredReservation {
        let kept = match qos_class(pod) {
            QosClass::Guaranteed => "memory.min",
            QosClass::Burstable | QosClass::BestEffort => "memory.low",
        };
        file(kept, request);
    } else {
        file("memory.min", 0);
        file("memory.low", 0);
    }
    if request == limit {
        return;
    }
    let most = if limit == 0 { allocatable(node) } else { limit };
    let high = threshold(request, most, qos.throttling_factor);
    if most > 0 && high > request {
        file("memory.high", high);
    }
}

/// A kubelet computes with floating point numbers, so the result must be rounded like theirs.
fn threshold(request: i64, most: i64, factor: f64) -> i64 {
    let (request, most) = (request as f64, most as f64);
    let bytes = (request + (most - request) * factor).floor();
    (bytes / PAGE) as i64 * PAGE as i64
}

/// The node's allocatable memory; 0: unknown.
fn allocatable(node: &Node) -> i64 {
    let amount = node.allocatable.get("memory");
    let amount = amount.and_then(|amount| Quantity::parse(amount).ok());
    amount.map_or(0, |amount| amount.value())
}

// How much swap a container may use.
//
// Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container_linux.go.

/// Sets the swap limit of a container, if the node can limit swap at all.
pub(super) fn limit_swap(resources: &mut Resources, pod: &Pod, container: &Container, node: &Node) {
    if !node.swap_controller {
        return;
    }
    match node.cgroup_version {
        // The limit of memory and swap together: equal to the memory limit, so that no swap is left. Without a memory limit, swap
        // has none either.
        CgroupVersion::V1 => resources.memory_swap_limit = resources.memory_limit,
        CgroupVersion::V2 => {
            let swap = allowance(pod, container, node).to_string();
            resources.unified.insert("memory.swap.max".to_owned(), swap);
        }
    }
}

/// The container's share of the node's swap, in proportion to its share of the node's memory. Only containers of Burstable pods
/// have one, and only if their memory limit differs from their request.
fn allowance(pod: &Pod, container: &Container, node: &Node) -> i64 {
    let (request, capacity) = (memory_of(container, Kind::Requests).value(), node.memory_capacity);
    if !is_eligible_for_swap(pod, container, node) || capacity <= 0 || request > capacity {
        return 0;
    }
    // A kubelet computes with floating point numbers, so the result must be rounded like theirs.
    (request as f64 / capacity as f64 * node.swap_capacity as f64) as i64
}

fn memory_of(container: &Container, kind: Kind) -> Quantity {
    get(&amounts::of(kind, container.resources.as_ref()), "memory")
}

fn is_eligible_for_swap(pod: &Pod, container: &Container, node: &Node) -> bool {
    node.swap_behavior == SwapBehavior::LimitedSwap
        && !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        // A container with neither has none.
        && memory_of(container, Kind::Requests) != memory_of(container, Kind::Limits)
}

/// Whether a container may use swap on this node, if the node can limit it.
pub(crate) fn may_swap(pod: &Pod, container: &Container, node: &Node) -> bool {
    node.swap_controller
        && node.cgroup_version == CgroupVersion::V2
        && is_eligible_for_swap(pod, container, node)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::collections::BTreeMap;

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;
    use crate::node::MemoryQos;
    use crate::pod_spec::spec::resources::of_container;

    const MI: i64 = 1 << 20;

    fn node(reservation: MemoryReservation) -> Node {
        let mut node = Node::new("n", "/r", "/l");
        node.allocatable = [("memory".to_owned(), "1Gi".to_owned())].into();
        node.memory_qos =
            Some(MemoryQos { throttling_factor: MemoryQos::THROTTLING_FACTOR, reservation });
        node
    }

    fn set_on(node: &Node, resources: Value) -> BTreeMap<String, String> {
        let pod = fixtures::pod(json!({
            "metadata": {"name": "p", "namespace": "d", "uid": "u"},
            "spec": {"containers": [{"name": "c", "image": "i", "resources": resources}]},
        }));
        of_container(&pod, &pod.spec().containers[0], node).unified
    }

    fn files(of: &[(&str, i64)]) -> BTreeMap<String, String> {
        of.iter().map(|(name, value)| ((*name).to_owned(), value.to_string())).collect()
    }

    // memory.high: the request and nine tenths of the memory above it, in whole pages.
    #[rstest]
    #[case::up_to_limit(json!({"requests": {"memory": "100Mi"}, "limits": {"memory": "200Mi"}}), &[("memory.high", 190 * MI)])]
    #[case::up_to_allocatable(json!({"requests": {"memory": "24Mi"}}), &[("memory.high", 924 * MI)])]
    #[case::nothing(json!({}), &[])]
    #[case::whole_pages(json!({"requests": {"memory": "1"}, "limits": {"memory": "10000"}}), &[("memory.high", 8192)])]
    #[case::not_above_request(json!({"requests": {"memory": "4096"}, "limits": {"memory": "5000"}}), &[])]
    #[case::guaranteed_memory(json!({"requests": {"memory": "9Mi"}, "limits": {"memory": "9Mi"}}), &[])]
    fn container_is_slowed_down_between_request_and_limit(
        #[case] resources: Value,
        #[case] high: &[(&str, i64)],
    ) {
        let mut expected = files(&[("memory.min", 0), ("memory.low", 0)]);
        expected.extend(files(high));
        assert_eq!(set_on(&node(MemoryReservation::None), resources), expected);
    }

    #[rstest]
    #[case::guaranteed(json!({"limits": {"cpu": "1", "memory": "9Mi"}, "requests": {"cpu": "1", "memory": "9Mi"}}), &[("memory.min", 9 * MI)])]
    #[case::burstable(json!({"requests": {"memory": "9Mi"}, "limits": {"memory": "9Mi"}}), &[("memory.low", 9 * MI)])]
    #[case::best_effort(json!({}), &[("memory.min", 0), ("memory.low", 0)])]
    fn tiered_reservation_keeps_what_is_requested(
        #[case] resources: Value,
        #[case] expected: &[(&str, i64)],
    ) {
        let node = node(MemoryReservation::TieredReservation);
        assert_eq!(set_on(&node, resources), files(expected));
    }

    #[test]
    fn nothing_is_set_without_gate_or_unified_hierarchy() {
        let mut off = node(MemoryReservation::None);
        off.memory_qos = None;
        assert_eq!(set_on(&off, json!({})), BTreeMap::new());
        let mut v1 = node(MemoryReservation::None);
        v1.cgroup_version = CgroupVersion::V1;
        assert_eq!(set_on(&v1, json!({})), BTreeMap::new());
    }
}
