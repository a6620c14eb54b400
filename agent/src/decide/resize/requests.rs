//! ◆ The changes of resources that a new version of a pod asks for.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet.go recordContainerResizeOperations.

use std::cmp::Ordering;

use api::pod::{Pod, is_sidecar};
use api::quantity::Quantity;
use api::totals::{self, Kind};
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};

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

/// The changes from one version to another. Init containers other than sidecars cannot be resized.
pub(crate) fn resize_requests(before: &Pod, after: &Pod) -> Vec<ResizeRequest> {
    let sidecars = |pod: &Pod| -> Vec<Container> {
        let inits = pod.init_containers().iter().filter(|init| is_sidecar(init));
        inits.chain(pod.containers()).cloned().collect()
    };
    let (old, new) = (sidecars(before), sidecars(after));
    let mut requests = Vec::new();
    for container in &old {
        let Some(other) = new.iter().find(|it| it.name == container.name) else { continue };
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

/// A resource's amount; zero if there is none.
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
            let init = json!({"name": "init", "resources": resources});
            let app = json!({"name": "app", "resources": resources});
            fixtures::pod(json!({"spec": {"initContainers": [init], "containers": [app]}}))
        };
        let requests = resize_requests(&pod(&from), &pod(&to));
        let shown = requests.iter().map(|it| {
            let ResizeRequest { resource, requirement, operation } = it;
            format!("{resource} {requirement} {operation}")
        });
        assert_eq!(shown.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn sidecars_are_resized_too() {
        let pod = |cpu: &str| {
            let resources = json!({"requests": {"cpu": cpu}});
            let sidecar = json!({"name": "s", "restartPolicy": "Always", "resources": resources});
            fixtures::pod(
                json!({"spec": {"initContainers": [sidecar], "containers": [{"name": "a"}]}}),
            )
        };
        assert_eq!(resize_requests(&pod("1"), &pod("2")).len(), 1);
    }
}
