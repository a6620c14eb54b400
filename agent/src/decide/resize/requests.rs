//! ◆ The changes of resources that a new version of a pod requests.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet.go recordContainerResizeOperations, with the gate
//! InPlacePodVerticalScalingInitContainers (on by default): every init container can be resized.

use std::cmp::Ordering;

use api::pod::Pod;
use api::quantity::Quantity;
use api::totals::{self, Kind};
use k8s_openapi::api::core::v1::ResourceRequirements;

/// One change of a container's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ResizeRequest {
    /// `cpu` or `memory`.
    pub resource: &'static str,
    /// `requests` or `limits`.
    pub requirement: &'static str,
    /// `add`, `remove`, `increase` or `decrease`.
    pub operation: &'static str,
}

/// The changes of init and app containers from one version to another.
pub(crate) fn resize_requests(before: &Pod, after: &Pod) -> Vec<ResizeRequest> {
    let mut requests = Vec::new();
    for container in before.init_and_apps() {
        let Some(other) = after.init_and_apps().find(|it| it.name == container.name) else {
            continue;
        };
        let (from, to) = (container.resources.as_ref(), other.resources.as_ref());
        for resource in ["memory", "cpu"] {
            for (requirement, kind) in [("requests", Kind::Requests), ("limits", Kind::Limits)] {
                let of = |resources| amount(kind, resources, resource);
                if let Some(operation) = operation(&of(from), &of(to)) {
                    requests.push(ResizeRequest { resource, requirement, operation });
                }
            }
        }
    }
    requests
}

/// The amount of a resource; zero if absent.
fn amount(kind: Kind, resources: Option<&ResourceRequirements>, resource: &str) -> Quantity {
    let amount = kind.of(resources).and_then(|amounts| amounts.get(resource));
    amount.map_or(Quantity::ZERO, totals::amount)
}

fn operation(from: &Quantity, to: &Quantity) -> Option<&'static str> {
    let is_zero = |amount: &Quantity| *amount == Quantity::ZERO;
    match (is_zero(from), is_zero(to), to.cmp(from)) {
        (false, true, _) => Some("remove"),
        (true, false, _) => Some("add"),
        (_, _, Ordering::Less) => Some("decrease"),
        (_, _, Ordering::Greater) => Some("increase"),
        (_, _, Ordering::Equal) => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    #[rstest]
    #[case::none(json!({"requests": {"cpu": "1"}}), json!({"requests": {"cpu": "1000m"}}), &[])]
    #[case::increase(json!({"requests": {"cpu": "1"}}), json!({"requests": {"cpu": "2"}}), &["cpu requests increase"])]
    #[case::decrease(json!({"limits": {"memory": "2Mi"}}), json!({"limits": {"memory": "1Mi"}}), &["memory limits decrease"])]
    #[case::add(json!({}), json!({"limits": {"memory": "1Mi"}}), &["memory limits add"])]
    #[case::remove(json!({"requests": {"cpu": "1"}}), json!({}), &["cpu requests remove"])]
    #[case::several(
        json!({"requests": {"cpu": "1", "memory": "1Mi"}}),
        json!({"requests": {"cpu": "2", "memory": "2Mi"}}),
        &["memory requests increase", "cpu requests increase"]
    )]
    #[case::other_resources(json!({"requests": {"a.b/c": "1"}}), json!({"requests": {"a.b/c": "2"}}), &[])]
    fn changes_are_named(#[case] from: Value, #[case] to: Value, #[case] expected: &[&str]) {
        let pod = |resources: &Value| {
            let app = json!({"name": "app", "resources": resources});
            fixtures::pod(json!({"spec": {"containers": [app]}}))
        };
        let requests = resize_requests(&pod(&from), &pod(&to));
        let shown = requests.iter().map(|it| {
            let ResizeRequest { resource, requirement, operation } = it;
            format!("{resource} {requirement} {operation}")
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[rstest]
    #[case::sidecar(json!({"name": "i", "restartPolicy": "Always"}))]
    #[case::other_init_container(json!({"name": "i"}))]
    fn init_containers_are_resized_too(#[case] init: Value) {
        let pod = |cpu: &str| {
            let mut init = init.clone();
            init["resources"] = json!({"requests": {"cpu": cpu}});
            fixtures::pod(
                json!({"spec": {"initContainers": [init], "containers": [{"name": "a"}]}}),
            )
        };
        assert_eq!(resize_requests(&pod("1"), &pod("2")).len(), 1);
    }
}
