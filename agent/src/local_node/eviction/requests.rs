//! ◆ The total requests of a pod.

use std::collections::BTreeMap;

use api::pod::{Pod, is_sidecar};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::Container;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

type Amounts = Option<BTreeMap<String, ApiQuantity>>;

/// The amount of this resource; zero if it is absent.
pub(super) fn amount(amounts: &Amounts, name: &str) -> Quantity {
    let amount = amounts.as_ref().and_then(|amounts| amounts.get(name));
    amount.and_then(|amount| Quantity::parse(&amount.0).ok()).unwrap_or(Quantity::ZERO)
}

/// A container's request.
pub(super) fn of_container(container: &Container, name: &str) -> Quantity {
    let resources = container.resources.as_ref();
    resources.map_or(Quantity::ZERO, |resources| amount(&resources.requests, name))
}

/// A pod's request; its pod-level request replaces those of its containers.
pub(super) fn of_pod(pod: &Pod, name: &str) -> Quantity {
    let own = pod.spec().resources.as_ref();
    let mut request = if has_own_resources(pod) {
        let is_set = own.is_some_and(|own| is_supported(name) && own.requests.is_some());
        let requests = own.filter(|_| is_set).map(|own| &own.requests);
        requests.map_or(Quantity::ZERO, |requests| amount(requests, name))
    } else {
        of_containers(pod, name)
    };
    if !request.is_zero() {
        request = request.plus(amount(&pod.spec().overhead, name));
    }
    request
}

fn of_containers(pod: &Pod, name: &str) -> Quantity {
    let mut sum = Quantity::ZERO;
    for container in pod.containers() {
        sum = sum.plus(of_container(container, name));
    }
    // An init container runs beside the sidecars that were started before it.
    let (mut sidecars, mut most) = (Quantity::ZERO, Quantity::ZERO);
    for container in pod.init_containers() {
        let own = of_container(container, name);
        if is_sidecar(container) {
            sum = sum.plus(own);
            sidecars = sidecars.plus(own);
            most = most.max(sidecars);
        } else {
            most = most.max(own.plus(sidecars));
        }
    }
    sum.max(most)
}

/// Whether the pod has pod-level requests or limits.
pub(super) fn has_own_resources(pod: &Pod) -> bool {
    pod.spec().resources.as_ref().is_some_and(|own| {
        let amounts = own.requests.iter().chain(&own.limits).flatten();
        amounts.map(|(name, _)| name.as_str()).any(is_supported)
    })
}

fn is_supported(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}
