//! ◆ Requests and limits of a whole pod: its containers' together, or those of `spec.resources`.
//!
//! Source: Kubernetes 1.36, component-helpers/resource/helpers.go.

use std::collections::BTreeMap;

use api::pod::{Pod, is_sidecar};
use api::quantity::Quantity;
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// Quantities by resource name.
pub(super) type Amounts = Map<String, Quantity>;

/// The prefix of the names of huge page resources.
pub(super) const HUGE_PAGES: &str = "hugepages-";

/// Requests or limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Requests,
    Limits,
}

/// Parses a list. Invalid quantities count as zero; validation has rejected them before.
pub(super) fn amounts(list: Option<&BTreeMap<String, ApiQuantity>>) -> Amounts {
    let parsed = |amount: &ApiQuantity| Quantity::parse(&amount.0).unwrap_or(Quantity::ZERO);
    list.into_iter().flatten().map(|(name, amount)| (name.clone(), parsed(amount))).collect()
}

/// The requests or limits of one container, or of a pod's `spec.resources`.
pub(super) fn of(kind: Kind, resources: Option<&ResourceRequirements>) -> Amounts {
    let list = resources.and_then(|resources| match kind {
        Kind::Requests => resources.requests.as_ref(),
        Kind::Limits => resources.limits.as_ref(),
    });
    amounts(list)
}

/// An amount; zero if it is not listed.
pub(super) fn get(amounts: &Amounts, name: &str) -> Quantity {
    amounts.get(name).copied().unwrap_or(Quantity::ZERO)
}

fn is_for_pods(name: &str) -> bool {
    name == "cpu" || name == "memory" || name.starts_with(HUGE_PAGES)
}

/// The pod-level requests or limits, of resources that Kubernetes allows at pod level.
pub(super) fn pod_level(pod: &Pod, kind: Kind) -> Amounts {
    let mut amounts = of(kind, pod.spec().resources.as_ref());
    amounts.retain(|name, _| is_for_pods(name));
    amounts
}

/// Adds `more` to `sum`.
pub(super) fn add(sum: &mut Amounts, more: &Amounts) {
    for (name, amount) in more {
        let entry = sum.entry(name.clone()).or_insert(Quantity::ZERO);
        *entry = entry.plus(*amount);
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, amount) in other {
        let entry = most.entry(name.clone()).or_insert(*amount);
        *entry = (*entry).max(*amount);
    }
}

/// The amounts in use at each step of the pod's life: of every app container, then of every init container with the sidecars that
/// run beside it.
pub(super) fn steps(pod: &Pod, kind: Kind) -> (Vec<Amounts>, Vec<Amounts>) {
    let of_container = |container: &Container| of(kind, container.resources.as_ref());
    let apps = pod.containers().iter().map(of_container).collect();
    let mut sidecars = Amounts::new();
    let inits = pod.init_containers().iter().map(|init| {
        let mut step = sidecars.clone();
        add(&mut step, &of_container(init));
        if is_sidecar(init) {
            sidecars.clone_from(&step);
        }
        step
    });
    (apps, inits.collect())
}

/// The containers' total: all app containers and sidecars, or one init container with the sidecars before it, whichever is more.
pub(super) fn of_containers(pod: &Pod, kind: Kind) -> Amounts {
    let (apps, inits) = steps(pod, kind);
    let mut total = Amounts::new();
    for app in &apps {
        add(&mut total, app);
    }
    for init in pod.init_containers().iter().filter(|init| is_sidecar(init)) {
        add(&mut total, &of(kind, init.resources.as_ref()));
    }
    for init in &inits {
        raise(&mut total, init);
    }
    total
}

/// The pod's amounts: those of its containers, replaced by its pod-level ones.
pub(super) fn of_pod(pod: &Pod, kind: Kind) -> Amounts {
    let mut total = of_containers(pod, kind);
    total.extend(pod_level(pod, kind));
    total
}

/// The pod's amounts with its overhead. The overhead raises existing limits, but sets none.
pub(super) fn with_overhead(pod: &Pod, kind: Kind) -> Amounts {
    let mut total = of_pod(pod, kind);
    let mut overhead = amounts(pod.spec().overhead.as_ref());
    if kind == Kind::Limits {
        overhead.retain(|name, _| !get(&total, name).is_zero());
    }
    add(&mut total, &overhead);
    total
}
