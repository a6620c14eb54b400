//! ◆ Whether the pod's requests fit beside those of the other pods.
//!
//! Source: Kubernetes 1.36, pkg/scheduler/framework/plugins/noderesources, pkg/kubelet/lifecycle/predicate.go: extended resources
//! that the node does not have are ignored, because a cluster may provide them, and those that a container has by a ResourceClaim.

use std::collections::BTreeMap;

use api::pod::Pod;
use api::quantity::Quantity;
use compact::Map;

use super::admitted::{requests, whole};
use super::{AdmittedPods, Rejection};

/// A resource of which the node has too little, in whole units (CPU in thousandths).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Shortage {
    /// Its name.
    pub(super) resource: String,
    requested: i64,
    used: i64,
    capacity: i64,
}

impl Shortage {
    /// The amount that other pods would have to free.
    pub(super) fn lacking(&self) -> i64 {
        let free = self.capacity.saturating_sub(self.used);
        self.requested.saturating_sub(free)
    }

    /// The rejection of the pod.
    pub(super) fn rejection(&self) -> Rejection {
        let Self { resource, requested, used, capacity } = self;
        Rejection::new(
            &format!("OutOf{resource}"),
            format!(
                "Node didn't have enough resource: {resource}, requested: {requested}, used: {used}, capacity: {capacity}"
            ),
        )
    }
}

/// The resources of which the node has too little for `pod`, in the scheduler's order.
pub(super) fn shortages(
    pod: &Pod,
    admitted: &AdmittedPods,
    allocatable: &BTreeMap<String, String>,
) -> Vec<Shortage> {
    let mut shortages = Vec::new();
    let capacity = |name: &str| {
        let amount = allocatable.get(name)?;
        Quantity::parse(amount).ok()
    };
    let count = admitted.count(pod.uid());
    if let Some(capacity) = capacity("pods").map(Quantity::value)
        && count >= capacity
    {
        shortages.push(Shortage {
            resource: "pods".to_owned(),
            requested: 1,
            used: count,
            capacity,
        });
    }
    let wanted = without_claimed(pod).map_or_else(|| requests(pod), |rest| requests(&rest));
    for name in in_order(&wanted) {
        let Some(capacity) =
            capacity(name).or_else(|| (!is_extended(name)).then_some(Quantity::ZERO))
        else {
            continue;
        };
        let (requested, used) = (wanted[name], admitted.requested(name, pod.uid()));
        let capacity = whole(name, capacity);
        if requested > 0 && requested > capacity.saturating_sub(used) {
            shortages.push(Shortage { resource: name.to_owned(), requested, used, capacity });
        }
    }
    shortages
}

/// The pod without its requests for extended resources that it has by a ResourceClaim; `None` if it has no such claim.
fn without_claimed(pod: &Pod) -> Option<Pod> {
    pod.api().status.as_ref()?.extended_resource_claim_status.as_ref()?;
    let mut api = pod.api().clone();
    let spec = api.spec.as_mut()?;
    for container in spec.init_containers.iter_mut().flatten().chain(&mut spec.containers) {
        let requests = container.resources.as_mut().and_then(|it| it.requests.as_mut());
        if let Some(requests) = requests {
            requests.retain(|resource, _| !pod.has_by_claim(&container.name, resource));
        }
    }
    Some(Pod::new(api))
}

/// CPU, memory and storage come first, as in the scheduler; the others by name.
fn in_order(wanted: &Map<String, i64>) -> impl Iterator<Item = &str> {
    const FIRST: [&str; 3] = ["cpu", "memory", "ephemeral-storage"];
    let first = FIRST.into_iter().filter(|name| wanted.contains_key(*name));
    let others = wanted.keys().map(String::as_str);
    first.chain(others.filter(|name| !FIRST.contains(name)))
}

/// Extended resources have their own domain, other than `kubernetes.io`.
fn is_extended(name: &str) -> bool {
    name.split_once('/')
        .is_some_and(|(domain, _)| domain != "kubernetes.io" && !domain.ends_with(".kubernetes.io"))
}
