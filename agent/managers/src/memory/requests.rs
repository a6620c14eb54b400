//! ◆ The memory that containers and pods request. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/memorymanager/policy_static.go. `pod_level` is the gate PodLevelResourceManagers.

use api::pod::{Pod, is_sidecar};
use api::qos::{QosClass, qos_class};
use api::totals::{Amounts as Quantities, Kind, amount};
use compact::Map;
use k8s_openapi::api::core::v1::Container;

use crate::pod_level::Management;

pub(super) const MEMORY: &str = "memory";
pub(super) const HUGE_PAGES: &str = "hugepages-";

/// Bytes by memory type.
pub(crate) type Amounts = Map<String, u64>;

/// Whether the pod's containers get memory of particular nodes.
pub(super) fn concerns(pod: &Pod, pod_level: bool) -> bool {
    qos_class(pod) == QosClass::Guaranteed && Management::of(pod, pod_level) != Management::Shared
}

/// The bytes of each type that a container requests exclusively.
pub(super) fn requested(pod: &Pod, container: &Container, pod_level: bool) -> Amounts {
    match Management::of(pod, pod_level).is_exclusive(container) {
        true => bytes(Kind::Requests.of(container.resources.as_ref())),
        false => Amounts::new(),
    }
}

/// The bytes of each type in a list of requests.
fn bytes(requests: Option<&Quantities>) -> Amounts {
    let requests = requests.into_iter().flatten();
    let memory = requests.filter(|(kind, _)| *kind == MEMORY || kind.starts_with(HUGE_PAGES));
    memory
        .map(|(kind, size)| (kind.clone(), u64::try_from(amount(size).value()).unwrap_or_default()))
        .collect()
}

/// The maximum bytes of each type that a pod needs at one time.
pub(super) fn requested_by_pod(pod: &Pod, pod_level: bool) -> Amounts {
    if Management::of(pod, pod_level) == Management::PodLevel {
        let mut requests = bytes(Kind::Requests.of(pod.spec().resources.as_ref()));
        requests.retain(|_, size| *size > 0);
        return requests;
    }
    let (mut sidecars, mut most, mut apps) = (Amounts::new(), Amounts::new(), Amounts::new());
    for init in pod.init_containers() {
        for (kind, size) in requested(pod, init, pod_level) {
            let running = sidecars.entry(kind.clone()).or_default();
            if is_sidecar(init) {
                *running += size;
            } else {
                let known = most.entry(kind).or_default();
                *known = (*known).max(*running + size);
            }
        }
    }
    for (kind, size) in pod.containers().iter().flat_map(|app| requested(pod, app, pod_level)) {
        *apps.entry(kind).or_default() += size;
    }
    let get = |amounts: &Amounts, kind: &String| amounts.get(kind).copied().unwrap_or_default();
    let total = |(kind, size): (String, u64)| {
        let size = (size + get(&sidecars, &kind)).max(get(&most, &kind));
        (kind, size)
    };
    apps.into_iter().map(total).collect()
}
