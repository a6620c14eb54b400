//! ◆ Requests and limits of a whole pod: the total of its containers, or those of `spec.resources`.
//!
//! Source: Kubernetes 1.36, component-helpers/resource/helpers.go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::pod::is_sidecar;
use crate::quantity::Quantity;

/// Quantities by the name of their resource.
pub type Amounts = BTreeMap<String, ApiQuantity>;

/// One of the two lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `requests`.
    Requests,
    /// `limits`.
    Limits,
}

impl Kind {
    /// The list in `resources`.
    pub fn of(self, resources: Option<&ResourceRequirements>) -> Option<&Amounts> {
        resources.and_then(|resources| match self {
            Self::Requests => resources.requests.as_ref(),
            Self::Limits => resources.limits.as_ref(),
        })
    }
}

/// Parses a quantity. Validation has rejected invalid ones; they count as zero.
pub fn amount(quantity: &ApiQuantity) -> Quantity {
    Quantity::parse(&quantity.0).unwrap_or(Quantity::ZERO)
}

/// Whether a pod can request the resource at pod level.
pub fn is_for_pods(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || name.starts_with("hugepages-")
}

fn add(sum: &mut Amounts, more: Option<&Amounts>) {
    for (name, quantity) in more.into_iter().flatten() {
        sum.entry(name.clone())
            .and_modify(|sum| *sum = ApiQuantity(amount(sum).plus(amount(quantity)).to_string()))
            .or_insert_with(|| quantity.clone());
    }
}

fn raise(most: &mut Amounts, other: &Amounts) {
    for (name, quantity) in other {
        let known = most.entry(name.clone()).or_insert_with(|| quantity.clone());
        if amount(quantity) > amount(known) {
            *known = quantity.clone();
        }
    }
}

/// The containers' total: all app containers and sidecars, or an init container with the sidecars before it, whichever is more.
pub fn of_containers(spec: &PodSpec, kind: Kind) -> Amounts {
    let list = |container: &'_ Container| kind.of(container.resources.as_ref()).cloned();
    let mut total = Amounts::new();
    for app in &spec.containers {
        add(&mut total, list(app).as_ref());
    }
    let (mut sidecars, mut most) = (Amounts::new(), Amounts::new());
    for init in spec.init_containers.iter().flatten() {
        let own = list(init);
        if is_sidecar(init) {
            add(&mut total, own.as_ref());
            add(&mut sidecars, own.as_ref());
            raise(&mut most, &sidecars);
        } else {
            let mut step = own.unwrap_or_default();
            add(&mut step, Some(&sidecars));
            raise(&mut most, &step);
        }
    }
    raise(&mut total, &most);
    total
}

/// The pod's amounts: those of its containers, replaced by its pod-level ones, with its overhead. Overhead raises existing limits,
/// but sets none.
pub fn of_pod(spec: &PodSpec, kind: Kind) -> Amounts {
    let mut total = of_containers(spec, kind);
    let own = kind.of(spec.resources.as_ref()).into_iter().flatten();
    total.extend(
        own.filter(|(name, _)| is_for_pods(name))
            .map(|(name, quantity)| (name.clone(), quantity.clone())),
    );
    let mut overhead = spec.overhead.clone().unwrap_or_default();
    if kind == Kind::Limits {
        overhead.retain(|name, _| total.get(name).is_some_and(|limit| !amount(limit).is_zero()));
    }
    add(&mut total, Some(&overhead));
    total
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn container(memory: &str) -> Value {
        json!({"name": "c", "resources": {"limits": {"memory": memory}}})
    }

    fn sidecar(memory: &str) -> Value {
        let mut sidecar = container(memory);
        sidecar["restartPolicy"] = json!("Always");
        sidecar
    }

    #[rstest]
    #[case::apps_add_up(json!([container("1Gi"), container("512Mi")]), json!([]), "1536Mi")]
    #[case::single_text_is_kept(json!([container("1000M")]), json!([]), "1000M")]
    #[case::greatest_init_counts(json!([container("1Gi")]), json!([container("3Gi"), container("2Gi")]), "3Gi")]
    #[case::sidecar_counts_for_apps(json!([container("1Gi")]), json!([sidecar("1Gi"), container("512Mi")]), "2Gi")]
    #[case::sidecar_counts_for_later_inits(json!([container("1Gi")]), json!([sidecar("1Gi"), container("2Gi")]), "3Gi")]
    fn containers_are_summed_like_the_scheduler(
        #[case] apps: Value,
        #[case] inits: Value,
        #[case] memory: &str,
    ) {
        let spec = json!({"containers": apps, "initContainers": inits});
        let spec = serde_json::from_value(spec).unwrap();
        assert_eq!(of_containers(&spec, Kind::Limits)["memory"].0, memory);
    }

    #[test]
    fn pod_resources_replace_sums_and_overhead_is_added() {
        let spec = json!({
            "containers": [container("1Gi")],
            "resources": {"limits": {"memory": "2Gi", "ephemeral-storage": "1Gi"}},
            "overhead": {"memory": "1Gi", "cpu": "1"}
        });
        let spec = serde_json::from_value(spec).unwrap();
        let limits = of_pod(&spec, Kind::Limits);
        assert_eq!(limits, BTreeMap::from([("memory".to_owned(), ApiQuantity("3Gi".to_owned()))]));
    }
}
