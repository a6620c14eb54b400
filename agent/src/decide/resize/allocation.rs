//! ◆ The resources that the node has granted a pod, and the pod with them in place of the desired ones.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation/allocation_manager.go.

use api::pod::Pod;
use api::totals::{self, Amounts, Kind};
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ResourceRequirements};
use serde::{Deserialize, Serialize};

/// The granted resources of a pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Allocation {
    /// The resources of each init and app container, by its name.
    containers: Map<String, ResourceRequirements>,
    /// The pod-level resources.
    pod: Option<ResourceRequirements>,
}

impl Allocation {
    /// The resources in a pod's spec.
    pub(crate) fn of(pod: &Pod) -> Self {
        let own = |container: &Container| {
            let resources = container.resources.clone().unwrap_or_default();
            (container.name.clone(), resources)
        };
        Self {
            containers: pod.init_and_apps().map(own).collect(),
            pod: pod.spec().resources.clone(),
        }
    }

    /// The pod with these resources, if they differ from its own. Containers without an entry keep their resources.
    pub(crate) fn in_place_of_desired(&self, pod: &Pod) -> Option<Pod> {
        let other = |container: &Container| {
            let allocated = self.containers.get(&container.name)?;
            let differs = !same(container.resources.as_ref(), Some(allocated));
            differs.then(|| allocated.clone())
        };
        let pod_differs = !same(pod.spec().resources.as_ref(), self.pod.as_ref());
        if !pod_differs && pod.init_and_apps().all(|container| other(container).is_none()) {
            return None;
        }
        let mut api = pod.api().clone();
        let spec = api.spec.get_or_insert_default();
        if pod_differs {
            spec.resources.clone_from(&self.pod);
        }
        let inits = spec.init_containers.iter_mut().flatten();
        for container in inits.chain(&mut spec.containers) {
            if let Some(allocated) = other(container) {
                container.resources = Some(allocated);
            }
        }
        Some(Pod::new(api).with_origin(pod.origin()))
    }
}

/// Whether two requirements are equivalent; absent ones equal empty ones.
fn same(a: Option<&ResourceRequirements>, b: Option<&ResourceRequirements>) -> bool {
    let claims = |from: Option<&ResourceRequirements>| {
        from.and_then(|resources| resources.claims.clone()).unwrap_or_default()
    };
    [Kind::Requests, Kind::Limits].iter().all(|kind| same_amounts(kind.of(a), kind.of(b)))
        && claims(a) == claims(b)
}

fn same_amounts(a: Option<&Amounts>, b: Option<&Amounts>) -> bool {
    let parsed = |list: Option<&Amounts>| -> Map<String, api::quantity::Quantity> {
        let amounts = list.into_iter().flatten();
        amounts.map(|(name, amount)| (name.clone(), totals::amount(amount))).collect()
    };
    parsed(a) == parsed(b)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    fn pod(cpu: &str, more: Value) -> Pod {
        let mut containers = vec![json!({"name": "a", "resources": {"requests": {"cpu": cpu}}})];
        containers.extend(more.as_array().cloned().unwrap_or_default());
        fixtures::pod(json!({"metadata": {"uid": "u"}, "spec": {"containers": containers}}))
    }

    #[test]
    fn allocated_resources_replace_desired_ones() {
        let allocation = Allocation::of(&pod("100m", json!([])));
        let desired = pod("200m", json!([])).with_origin("file");
        let allocated = allocation.in_place_of_desired(&desired).unwrap();
        assert_eq!(allocated.spec(), pod("100m", json!([])).spec());
        assert_eq!(allocated.origin(), "file");
    }

    #[test]
    fn equal_amounts_in_another_form_are_no_resize() {
        let allocation = Allocation::of(&pod("1", json!([])));
        assert_eq!(allocation.in_place_of_desired(&pod("1000m", json!([]))), None);
    }

    #[test]
    fn new_container_has_its_own_resources() {
        let allocation = Allocation::of(&pod("1", json!([])));
        let more = json!([{"name": "b", "resources": {"requests": {"cpu": "7"}}}]);
        assert_eq!(allocation.in_place_of_desired(&pod("1", more)), None);
    }

    #[test]
    fn allocation_survives_as_json() {
        let allocation = Allocation::of(&pod("1", json!([])));
        let text = serde_json::to_string(&allocation).unwrap();
        assert_eq!(serde_json::from_str::<Allocation>(&text).unwrap(), allocation);
    }
}
