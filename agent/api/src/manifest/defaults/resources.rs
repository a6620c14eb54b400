//! Defaults of requests and limits, and the rewriting of quantities.

use k8s_openapi::api::core::v1::{PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

use crate::quantity::{self, Quantity};
use crate::totals::{self, Amounts, Kind};

/// Applies the defaults of containers, then those of the pod as a whole, then rewrites the quantities.
pub(super) fn apply(spec: &mut PodSpec) {
    let inits = spec.init_containers.iter_mut().flatten();
    for container in inits.chain(&mut spec.containers) {
        if let Some(resources) = &mut container.resources {
            requests_from_limits(resources);
        }
    }
    of_pod(spec);

    let inits = spec.init_containers.iter_mut().flatten();
    let containers =
        inits.chain(&mut spec.containers).filter_map(|container| container.resources.as_mut());
    for resources in containers.chain(spec.resources.as_mut()) {
        round(resources.limits.as_mut());
        round(resources.requests.as_mut());
    }
    round(spec.overhead.as_mut());
}

/// A container's request defaults to its limit.
fn requests_from_limits(resources: &mut ResourceRequirements) {
    let Some(limits) = resources.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        requests.entry(name.clone()).or_insert_with(|| limit.clone());
    }
}

/// The pod's limits of huge pages default to those of its containers; its requests to those of its containers, or else to
/// its limits.
fn of_pod(spec: &mut PodSpec) {
    let is_empty = |list: &Option<Amounts>| list.as_ref().is_none_or(Amounts::is_empty);
    let limits = totals::of_containers(spec, Kind::Limits);
    let requests = totals::of_containers(spec, Kind::Requests);
    let Some(own) = &mut spec.resources else {
        return;
    };
    if is_empty(&own.limits) && is_empty(&own.requests) {
        return;
    }
    for (name, limit) in limits {
        let requested = own.requests.as_ref();
        if name.starts_with("hugepages-")
            && !requested.is_some_and(|requested| requested.contains_key(&name))
        {
            let own = own.limits.get_or_insert_default();
            own.entry(name).or_insert(limit);
        }
    }
    let Some(own_limits) = own.limits.as_ref().filter(|limits| !limits.is_empty()) else {
        return;
    };
    let of_containers =
        requests.into_iter().filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"));
    let of_limits = own_limits
        .iter()
        .filter(|(name, _)| totals::is_for_pods(name))
        .map(|(name, limit)| (name.clone(), limit.clone()));
    let defaults: Vec<_> = of_containers.chain(of_limits).collect();
    if defaults.is_empty() {
        return;
    }
    let own = own.requests.get_or_insert_default();
    for (name, quantity) in defaults {
        own.entry(name).or_insert(quantity);
    }
}

/// Rounds quantities up to thousandths.
pub(super) fn round(amounts: Option<&mut Amounts>) {
    for (_, quantity) in amounts.into_iter().flatten() {
        if let Some(rounded) = in_thousandths(&quantity.0) {
            *quantity = ApiQuantity(rounded);
        } else {
            rewrite(quantity);
        }
    }
}

/// The text of a quantity that has a part smaller than a thousandth, rounded up.
fn in_thousandths(text: &str) -> Option<String> {
    let quantity = Quantity::parse(text).ok()?;
    let rounded = quantity.rounded_to_milli();
    (rounded != quantity).then(|| rounded.to_string())
}

/// Rewrites a quantity as the API server does. An invalid one is left to validation.
pub(super) fn rewrite(quantity: &mut ApiQuantity) {
    if let Ok(canonical) = quantity::canonical(&quantity.0) {
        quantity.0 = canonical.text;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case("1500m", "1500m")]
    #[case("0.5", "500m")]
    #[case("1.5Gi", "1536Mi")]
    #[case("100u", "1m")]
    #[case("1000.0001m", "1001m")]
    #[case("1e3", "1e3")]
    #[case("nonsense", "nonsense")]
    fn quantities_are_rewritten(#[case] text: &str, #[case] expected: &str) {
        let mut amounts = Amounts::from([("cpu".to_owned(), ApiQuantity(text.to_owned()))]);
        round(Some(&mut amounts));
        assert_eq!(amounts["cpu"].0, expected);
    }

    #[rstest]
    #[case::requests_are_those_of_containers(
        json!({"limits": {"cpu": "4"}}),
        json!({"limits": {"cpu": "4"}, "requests": {"cpu": "3"}})
    )]
    #[case::requests_without_containers_are_the_limits(
        json!({"limits": {"memory": "1Gi"}}),
        json!({"limits": {"memory": "1Gi"}, "requests": {"cpu": "3", "memory": "1Gi"}})
    )]
    #[case::given_requests_stay(
        json!({"limits": {"cpu": "8"}, "requests": {"cpu": "5"}}),
        json!({"limits": {"cpu": "8"}, "requests": {"cpu": "5"}})
    )]
    #[case::nothing_is_made_without_limits(
        json!({"requests": {"memory": "1Gi"}}),
        json!({"requests": {"memory": "1Gi"}})
    )]
    #[case::empty_resources_stay_empty(json!({}), json!({}))]
    fn pod_requests_default_to_containers_or_limits(#[case] given: Value, #[case] expected: Value) {
        let container = |cpu: &str| json!({"name": "c", "resources": {"requests": {"cpu": cpu}}});
        let spec = json!({"containers": [container("1"), container("2")], "resources": given});
        let mut spec: PodSpec = serde_json::from_value(spec).unwrap();
        apply(&mut spec);
        assert_eq!(serde_json::to_value(spec.resources).unwrap(), expected);
    }

    #[test]
    fn pod_limits_of_huge_pages_are_those_of_containers() {
        let container = json!({"name": "c", "resources": {"limits": {"hugepages-2Mi": "4Mi"}}});
        let spec = json!({"containers": [container], "resources": {"requests": {"cpu": "1"}}});
        let mut spec: PodSpec = serde_json::from_value(spec).unwrap();
        apply(&mut spec);
        let resources = spec.resources.unwrap();
        assert_eq!(resources.limits.unwrap()["hugepages-2Mi"].0, "4Mi");
        assert_eq!(resources.requests.unwrap()["hugepages-2Mi"].0, "4Mi");
    }
}
