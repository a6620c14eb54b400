//! ◆ How much swap a container may use.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container_linux.go.

use api::pod::Pod;
use api::qos::{QosClass, qos_class};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Container;

use crate::node::{CgroupVersion, Node, SwapBehavior};
use crate::pod_spec::spec::Resources;
use crate::pod_spec::spec::amounts::{self, Kind, get};
use crate::pod_spec::spec::qos::is_critical;

/// Sets the swap limit of a container, if the node can limit swap at all.
pub(super) fn limit(resources: &mut Resources, pod: &Pod, container: &Container, node: &Node) {
    if !node.swap_controller {
        return;
    }
    match node.cgroup_version {
        // Memory and swap together: no more than memory alone. Without a memory limit there is none for swap.
        CgroupVersion::V1 => resources.memory_swap_limit = resources.memory_limit,
        CgroupVersion::V2 => {
            let swap = allowance(pod, container, node).to_string();
            resources.unified.insert("memory.swap.max".to_owned(), swap);
        }
    }
}

/// The container's share of the node's swap, as its memory request is a share of the node's memory. Only containers of
/// Burstable pods have one, and only if they may use more memory than they request.
fn allowance(pod: &Pod, container: &Container, node: &Node) -> i64 {
    let (request, capacity) = (memory(container, Kind::Requests).value(), node.memory_capacity);
    if !wants_swap(pod, container, node) || capacity <= 0 || request > capacity {
        return 0;
    }
    // The kubelet computes with floating point numbers, so their rounding is part of the rule.
    (request as f64 / capacity as f64 * node.swap_capacity as f64) as i64
}

fn memory(container: &Container, kind: Kind) -> Quantity {
    get(&amounts::of(kind, container.resources.as_ref()), "memory")
}

fn wants_swap(pod: &Pod, container: &Container, node: &Node) -> bool {
    node.swap_behavior == SwapBehavior::LimitedSwap
        && !is_critical(pod)
        && qos_class(pod) == QosClass::Burstable
        // This covers a container without either.
        && memory(container, Kind::Requests) != memory(container, Kind::Limits)
}

/// Whether a container may use swap on this node, as far as the node can limit it.
pub(crate) fn may_swap(pod: &Pod, container: &Container, node: &Node) -> bool {
    node.swap_controller
        && node.cgroup_version == CgroupVersion::V2
        && wants_swap(pod, container, node)
}
