//! ◆ The OOM scores of a pod's containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/qos/policy.go and helpers.go.

use api::pod::{Pod, is_sidecar};
use api::qos::{QosClass, qos_class};
use k8s_openapi::api::core::v1::Container;

use crate::pod_spec::spec::amounts::{self, Amounts, Kind, get};

/// Score of containers that are killed last.
const GUARANTEED: i64 = -997;
/// Score of containers that are killed first.
const BEST_EFFORT: i64 = 1000;

/// The `oom_score_adj` of a container, from -997 (killed last) to 1000 (killed first), on a node with this much memory.
pub fn oom_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    if is_node_critical(pod) {
        return GUARANTEED;
    }
    match qos_class(pod) {
        QosClass::Guaranteed => GUARANTEED,
        QosClass::BestEffort => BEST_EFFORT,
        QosClass::Burstable => burstable_score(pod, container, memory_capacity),
    }
}

/// The more of the node's memory a container requests, the later it is killed: 1000 less its share of the memory in thousandths.
fn burstable_score(pod: &Pod, container: &Container, memory_capacity: i64) -> i64 {
    let memory =
        |container: &Container| memory(&amounts::of(Kind::Requests, container.resources.as_ref()));
    let mut request = memory(container);
    let sidecar = is_sidecar(container)
        && pod.init_containers().iter().any(|init| init.name == container.name);
    if sidecar {
        // A sidecar must not be killed before the app containers.
        let least = pod.containers().iter().map(memory).min();
        request = request.max(least.unwrap_or(request));
    }
    request = request.saturating_add(unassigned_memory(pod));
    if memory_capacity <= 0 {
        return BEST_EFFORT - 1;
    }
    let share = 1000 * i128::from(request) / i128::from(memory_capacity);
    let score = i128::from(BEST_EFFORT) - share;
    // Between the scores of the other classes.
    let score = score.clamp(i128::from(1000 + GUARANTEED), i128::from(BEST_EFFORT - 1));
    i64::try_from(score).unwrap_or(BEST_EFFORT - 1)
}

fn memory(amounts: &Amounts) -> i64 {
    get(amounts, "memory").value()
}

/// Each container's share of the memory that the pod requests as a whole beyond its containers' requests.
fn unassigned_memory(pod: &Pod) -> i64 {
    let whole = memory(&amounts::pod_level(pod, Kind::Requests));
    if whole == 0 {
        return 0;
    }
    let rest = whole.saturating_sub(memory(&amounts::of_containers(pod, Kind::Requests)));
    let containers = pod.containers().len() + pod.init_containers().len();
    i64::try_from(containers)
        .ok()
        .and_then(|containers| rest.checked_div(containers))
        .unwrap_or_default()
}

/// Whether the pod is critical: it is static, a mirror pod, or has a system priority.
pub fn is_critical(pod: &Pod) -> bool {
    const SYSTEM_PRIORITY: i32 = 2_000_000_000;
    let mirrored = || pod.annotations().any(|(name, _)| name == "kubernetes.io/config.mirror");
    let priority = pod.spec().priority;
    pod.is_static() || mirrored() || priority.is_some_and(|priority| priority >= SYSTEM_PRIORITY)
}

fn is_node_critical(pod: &Pod) -> bool {
    is_critical(pod) && pod.spec().priority_class_name.as_deref() == Some("system-node-critical")
}
