//! Label selectors and node selectors.

use k8s_openapi::api::core::v1::{NodeSelectorRequirement, NodeSelectorTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::manifest::validate::{Check, names};

const OPERATOR: &str = "not a valid selector operator";

/// Reports missing or superfluous values of an operator.
fn values_of(check: &mut Check, field: &str, operator: &str, values: &[String], ordered: bool) {
    let list = format!("{field}.values");
    match operator {
        "In" | "NotIn" if values.is_empty() => {
            check.required(list, "must be specified when `operator` is In or NotIn")
        }
        "Exists" | "DoesNotExist" if !values.is_empty() => {
            check.forbidden(list, "may not be specified when `operator` is Exists or DoesNotExist")
        }
        "Gt" | "Lt" if ordered && values.len() != 1 => {
            check.required(list, "must be a single value when `operator` is Lt or Gt")
        }
        "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
        "Gt" | "Lt" if ordered => {}
        _ => check.invalid(format!("{field}.operator"), operator, OPERATOR),
    }
}

fn label_values(check: &mut Check, field: &str, values: &[String]) {
    for (index, value) in values.iter().enumerate() {
        check.formed(format!("{field}.values[{index}]"), value, names::label_value);
    }
}

/// A label selector, if there is one.
pub(super) fn labels(check: &mut Check, field: &str, selector: Option<&LabelSelector>) {
    let Some(selector) = selector else { return };
    check.keys(&format!("{field}.matchLabels"), selector.match_labels.iter().flatten(), true);
    for (index, wanted) in selector.match_expressions.iter().flatten().enumerate() {
        let field = format!("{field}.matchExpressions[{index}]");
        let values = wanted.values.as_deref().unwrap_or_default();
        values_of(check, &field, &wanted.operator, values, false);
        check.formed(format!("{field}.key"), &wanted.key, names::qualified);
        label_values(check, &field, values);
    }
}

/// One term of a node selector. Values of preferred terms are not checked.
pub(super) fn node_term(check: &mut Check, field: &str, term: &NodeSelectorTerm, preferred: bool) {
    for (index, wanted) in term.match_expressions.iter().flatten().enumerate() {
        let field = format!("{field}.matchExpressions[{index}]");
        let values = wanted.values.as_deref().unwrap_or_default();
        values_of(check, &field, &wanted.operator, values, true);
        check.formed(format!("{field}.key"), &wanted.key, names::qualified);
        if !preferred {
            label_values(check, &field, values);
        }
    }
    for (index, wanted) in term.match_fields.iter().flatten().enumerate() {
        node_field(check, &format!("{field}.matchFields[{index}]"), wanted);
    }
}

fn node_field(check: &mut Check, field: &str, wanted: &NodeSelectorRequirement) {
    let values = wanted.values.as_deref().unwrap_or_default();
    match wanted.operator.as_str() {
        "In" | "NotIn" if values.len() != 1 => check
            .required(format!("{field}.values"), "must be a single value for a field of the node"),
        "In" | "NotIn" => {}
        other => check.invalid(format!("{field}.operator"), other, OPERATOR),
    }
    if wanted.key != "metadata.name" {
        check.invalid(format!("{field}.key"), &wanted.key, "not a valid field selector key");
        return;
    }
    for (index, value) in values.iter().enumerate() {
        check.formed(format!("{field}.values[{index}]"), value, names::dns_subdomain);
    }
}
