//! ◆ Whether the node matches the pod's selector and required affinity.
//!
//! Source: Kubernetes 1.36, component-helpers/scheduling/corev1/nodeaffinity: terms are alternatives, and a term without
//! requirements, or with an invalid one, matches no node.

use std::collections::BTreeMap;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{NodeSelector, NodeSelectorRequirement, NodeSelectorTerm};

use super::{NodeInfo, Rejection};

pub(super) fn check(pod: &Pod, node_info: &NodeInfo) -> Result<(), Rejection> {
    let Some(labels) = &node_info.labels else {
        return Ok(());
    };
    if is_selected(pod, labels) && is_required(pod, &node_info.node_name, labels) {
        return Ok(());
    }
    Err(Rejection::predicate("NodeAffinity", "node(s) didn't match Pod's node affinity/selector"))
}

/// Whether the pod's selector matches the node's labels.
pub(super) fn is_selected(pod: &Pod, labels: &BTreeMap<String, String>) -> bool {
    let mut selector = pod.spec().node_selector.iter().flatten();
    selector.all(|(key, value)| labels.get(key) == Some(value))
}

/// Whether the pod's required affinity matches the node.
pub(super) fn is_required(pod: &Pod, node_name: &str, labels: &BTreeMap<String, String>) -> bool {
    let affinity =
        pod.spec().affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let required = affinity.and_then(|affinity| {
        let required = &affinity.required_during_scheduling_ignored_during_execution;
        required.as_ref()
    });
    required.is_none_or(|required| is_matched(required, node_name, labels))
}

/// Whether one of the terms matches a node with these labels.
pub(super) fn is_matched(
    terms: &NodeSelector,
    node_name: &str,
    labels: &BTreeMap<String, String>,
) -> bool {
    terms.node_selector_terms.iter().any(|term| matches_term(term, node_name, labels))
}

fn matches_term(
    term: &NodeSelectorTerm,
    node_name: &str,
    node_labels: &BTreeMap<String, String>,
) -> bool {
    let labels = term.match_expressions.as_deref().unwrap_or_default();
    let fields = term.match_fields.as_deref().unwrap_or_default();
    let name = BTreeMap::from([("metadata.name".to_owned(), node_name.to_owned())]);
    !(labels.is_empty() && fields.is_empty())
        && labels.iter().all(|requirement| matches(requirement, node_labels))
        && fields.iter().all(|requirement| {
            let values = requirement.values.as_deref().unwrap_or_default();
            values.len() == 1
                && matches!(requirement.operator.as_str(), "In" | "NotIn")
                && matches(requirement, &name)
        })
}

fn matches(requirement: &NodeSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&requirement.key);
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_listed = || value.is_some_and(|value| values.contains(value));
    match requirement.operator.as_str() {
        "In" => is_listed(),
        "NotIn" => !is_listed(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => compare(value, values).is_some_and(|(node, wanted)| node > wanted),
        "Lt" => compare(value, values).is_some_and(|(node, wanted)| node < wanted),
        _ => false,
    }
}

/// Both sides as integers, if there is exactly one value and both are valid.
fn compare(value: Option<&String>, values: &[String]) -> Option<(i64, i64)> {
    match values {
        [wanted] => Some((value?.parse().ok()?, wanted.parse().ok()?)),
        _ => None,
    }
}
