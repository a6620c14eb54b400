//! ◆ Which labels a label selector matches. Pure.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

/// Whether a selector matches labels. An empty selector matches all.
pub fn matches_selector(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut pairs = selector.match_labels.iter().flatten();
    let mut expressions = selector.match_expressions.iter().flatten();
    pairs.all(|(key, value)| labels.get(key) == Some(value))
        && expressions.all(|wanted| matches(wanted, labels))
}

/// Whether a selector has no requirement.
pub fn is_empty(selector: &LabelSelector) -> bool {
    let no_pairs = selector.match_labels.iter().flatten().next().is_none();
    no_pairs && selector.match_expressions.iter().flatten().next().is_none()
}

fn matches(wanted: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&wanted.key);
    let listed = || {
        let mut values = wanted.values.iter().flatten();
        values.any(|known| Some(known) == value)
    };
    match wanted.operator.as_str() {
        "In" => listed(),
        "NotIn" => !listed(),
        "Exists" => value.is_some(),
        _ => value.is_none(),
    }
}
