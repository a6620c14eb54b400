//! Rules of scheduling constraints.

use rstest::rstest;
use serde_json::{Value, json};

use super::{one, spec_errors};
use crate::manifest::Rule::{self, Duplicate, Forbidden, Invalid, NotSupported, Required};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

#[rstest]
#[case(json!({"key": "a", "operator": "In"}), "values", Required)]
#[case(json!({"key": "a", "operator": "Exists", "values": ["b"]}), "values", Forbidden)]
#[case(json!({"key": "a", "operator": "Gt", "values": ["1", "2"]}), "values", Required)]
#[case(json!({"key": "a", "operator": "Bogus"}), "operator", Invalid)]
#[case(json!({"key": "a b", "operator": "Exists"}), "key", Invalid)]
#[case(json!({"key": "a", "operator": "In", "values": ["b c"]}), "values[0]", Invalid)]
fn node_labels_are_checked(#[case] wanted: Value, #[case] field: &str, #[case] rule: Rule) {
    let affinity = json!({REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [wanted]}]}});
    let found = spec_errors(json!({"affinity": {"nodeAffinity": affinity}}));
    let field = format!(
        "spec.affinity.nodeAffinity.{REQUIRED}.nodeSelectorTerms[0].matchExpressions[0].{field}"
    );
    assert_eq!(found, one(&field, rule));
}

#[rstest]
#[case(json!({"key": "metadata.name", "operator": "In", "values": ["a", "b"]}), "values", Required)]
#[case(json!({"key": "metadata.name", "operator": "Exists"}), "operator", Invalid)]
#[case(json!({"key": "metadata.uid", "operator": "In", "values": ["a"]}), "key", Invalid)]
#[case(json!({"key": "metadata.name", "operator": "In", "values": ["A"]}), "values[0]", Invalid)]
fn node_fields_are_checked(#[case] wanted: Value, #[case] field: &str, #[case] rule: Rule) {
    let preference = json!({"weight": 1, "preference": {"matchFields": [wanted]}});
    let found = spec_errors(json!({"affinity": {"nodeAffinity": {PREFERRED: [preference]}}}));
    let field =
        format!("spec.affinity.nodeAffinity.{PREFERRED}[0].preference.matchFields[0].{field}");
    assert_eq!(found, one(&field, rule));
}

#[test]
fn values_of_preferred_node_labels_may_be_anything() {
    let wanted = json!({"key": "a", "operator": "In", "values": ["b c"]});
    let preference = json!({"weight": 100, "preference": {"matchExpressions": [wanted]}});
    let found = spec_errors(json!({"affinity": {"nodeAffinity": {PREFERRED: [preference]}}}));
    assert_eq!(found, []);
}

#[rstest]
#[case(json!({"topologyKey": "a b"}), "topologyKey", Invalid)]
#[case(json!({"topologyKey": "a", "namespaces": ["A"]}), "namespace", Invalid)]
#[case(json!({"topologyKey": "a", "matchLabelKeys": ["b"]}), "matchLabelKeys", Forbidden)]
#[case(json!({"topologyKey": "a", "labelSelector": {}, "matchLabelKeys": ["b"], "mismatchLabelKeys": ["b"]}), "matchLabelKeys[0]", Invalid)]
#[case(json!({"topologyKey": "a", "labelSelector": {"matchLabels": {"b": "c d"}}}), "labelSelector.matchLabels", Invalid)]
#[case(json!({"topologyKey": "a", "namespaceSelector": {"matchExpressions": [{"key": "b", "operator": "Gt"}]}}), "namespaceSelector.matchExpressions[0].operator", Invalid)]
fn pod_affinity_terms_are_checked(#[case] term: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = spec_errors(json!({"affinity": {"podAntiAffinity": {REQUIRED: [term]}}}));
    let field = format!("spec.affinity.podAntiAffinity.{REQUIRED}[0].{field}");
    assert_eq!(found, one(&field, rule));
}

#[test]
fn weight_is_at_most_100() {
    let term = json!({"weight": 101, "podAffinityTerm": {"topologyKey": "k"}});
    let found = spec_errors(json!({"affinity": {"podAffinity": {PREFERRED: [term]}}}));
    let field = format!("spec.affinity.podAffinity.{PREFERRED}[0].weight");
    assert_eq!(found, one(&field, Invalid));
}

fn spread(more: Value) -> Value {
    let mut constraint =
        json!({"maxSkew": 1, "topologyKey": "k", "whenUnsatisfiable": "DoNotSchedule"});
    super::merge(&mut constraint, more);
    constraint
}

#[rstest]
#[case(json!({"maxSkew": 0}), "maxSkew", Invalid)]
#[case(json!({"topologyKey": ""}), "topologyKey", Required)]
#[case(json!({"whenUnsatisfiable": "Bogus"}), "whenUnsatisfiable", NotSupported)]
#[case(json!({"whenUnsatisfiable": "ScheduleAnyway", "minDomains": 1}), "minDomains", Invalid)]
#[case(json!({"minDomains": 0}), "minDomains", Invalid)]
#[case(json!({"nodeTaintsPolicy": "Bogus"}), "nodeTaintsPolicy", NotSupported)]
#[case(json!({"matchLabelKeys": ["a"]}), "matchLabelKeys", Forbidden)]
#[case(json!({"labelSelector": {"matchLabels": {"a b": "c"}}}), "labelSelector.matchLabels", Invalid)]
fn spread_constraints_are_checked(#[case] more: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = spec_errors(json!({"topologySpreadConstraints": [spread(more)]}));
    let field = format!("spec.topologySpreadConstraints[0].{field}");
    assert_eq!(found, one(&field, rule));
}

#[test]
fn spread_constraint_is_given_once() {
    let twice = [spread(json!({})), spread(json!({"maxSkew": 2}))];
    let found = spec_errors(json!({"topologySpreadConstraints": twice}));
    let field = "spec.topologySpreadConstraints[0].{topologyKey, whenUnsatisfiable}";
    assert_eq!(found, one(field, Duplicate));
}

#[rstest]
#[case(json!({"preemptionPolicy": "Bogus"}), "spec.preemptionPolicy", NotSupported)]
#[case(json!({"schedulingGates": [{"name": "a"}, {"name": "a"}]}), "spec.schedulingGates[1]", Duplicate)]
#[case(json!({"nodeName": "n", "schedulingGates": [{"name": "a"}]}), "spec.nodeName", Forbidden)]
#[case(json!({"schedulingGroup": {}}), "spec.schedulingGroup.podGroupName", Invalid)]
#[case(json!({"tolerations": [{"key": "a", "operator": "Lt", "value": "1"}]}), "spec.tolerations[0].operator", NotSupported)]
#[case(json!({"tolerations": [{"operator": "Exists", "tolerationSeconds": 1}]}), "spec.tolerations[0].effect", Invalid)]
fn other_constraints_are_checked(#[case] spec: Value, #[case] field: &str, #[case] rule: Rule) {
    assert_eq!(spec_errors(spec), one(field, rule));
}
