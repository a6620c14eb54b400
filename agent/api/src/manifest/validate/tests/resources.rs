//! Rules of requests, limits and claims.

use rstest::rstest;
use serde_json::{Value, json};

use super::{container_errors, one, spec_errors};
use crate::manifest::Rule::{
    self, Duplicate, Forbidden, Invalid, NotFound, NotSupported, Required,
};

#[rstest]
#[case(json!({"limits": {"bogus": "1"}}), "limits[bogus]", Invalid)]
#[case(json!({"limits": {"example.com/gpu": "1500m"}}), "limits[example.com/gpu]", Invalid)]
#[case(json!({"limits": {"requests.example.com/gpu": "1"}}), "limits[requests.example.com/gpu]", Invalid)]
#[case(json!({"limits": {"memory": "-1"}}), "limits[memory]", Invalid)]
#[case(json!({"limits": {"cpu": "1", "hugepages-x": "1"}}), "limits[hugepages-x]", Invalid)]
#[case(json!({"limits": {"hugepages-2Mi": "2Mi"}}), "", Forbidden)]
#[case(json!({"requests": {"example.com/gpu": "1"}}), "limits", Required)]
#[case(json!({"limits": {"example.com/gpu": "2"}, "requests": {"example.com/gpu": "1"}}), "requests", Invalid)]
#[case(json!({"claims": [{"name": "x"}]}), "claims[0]", NotFound)]
fn requests_and_limits_are_checked(
    #[case] resources: Value,
    #[case] field: &str,
    #[case] rule: Rule,
) {
    let mut found = container_errors(json!({"resources": resources}));
    // A request defaulted from a limit repeats the limit's error.
    found.retain(|(field, _)| !field.starts_with("resources.requests["));
    let field = format!("resources.{field}");
    assert_eq!(found, one(field.trim_end_matches('.'), rule));
}

#[rstest]
#[case(json!({"resourceName": "cpu", "restartPolicy": "Bogus"}), NotSupported)]
#[case(json!({"resourceName": "disk", "restartPolicy": "NotRequired"}), NotSupported)]
#[case(json!({"resourceName": "", "restartPolicy": "NotRequired"}), Required)]
fn resize_policy_is_checked(#[case] policy: Value, #[case] rule: Rule) {
    let found = container_errors(json!({"resizePolicy": [policy]}));
    assert_eq!(found, one("resizePolicy", rule));
}

#[test]
fn container_of_a_pod_that_never_restarts_is_resized_in_place() {
    let policy = json!({"resourceName": "cpu", "restartPolicy": "RestartContainer"});
    let found = spec_errors(json!({
        "restartPolicy": "Never",
        "containers": [{"name": "c", "image": "i", "resizePolicy": [policy]}],
    }));
    assert_eq!(found, one("spec.containers[0].resizePolicy", Invalid));
}

#[rstest]
#[case(json!({"limits": {"ephemeral-storage": "1"}}), "spec.resources.limits[ephemeral-storage]", NotSupported)]
#[case(json!({"limits": {"bogus": "1"}}), "spec.resources.limits[bogus]", Invalid)]
#[case(json!({"claims": []}), "spec.resources.claims", Forbidden)]
#[case(json!({"requests": {"cpu": "1"}}), "spec.resources.requests[cpu]", Invalid)]
fn resources_of_the_pod_are_checked(
    #[case] resources: Value,
    #[case] field: &str,
    #[case] rule: Rule,
) {
    let container = json!({"name": "c", "image": "i", "resources": {"requests": {"cpu": "2"}}});
    let found = spec_errors(json!({"containers": [container], "resources": resources}));
    assert_eq!(found, one(field, rule));
}

#[test]
fn container_limit_is_at_most_that_of_the_pod() {
    let container = json!({"name": "c", "image": "i", "resources": {"limits": {"memory": "2Mi"}, "requests": {"memory": "1Mi"}}});
    let found =
        spec_errors(json!({"containers": [container], "resources": {"limits": {"memory": "1Mi"}}}));
    let field = "spec.resources.containers[0][memory].limits";
    assert_eq!(found, one(field, Invalid));
}

#[rstest]
#[case(json!([{"name": "a"}]), "[0]", Invalid)]
#[case(json!([{"name": "", "resourceClaimName": "r"}]), "[0].name", Required)]
#[case(json!([{"name": "a", "resourceClaimName": "r"}, {"name": "a", "resourceClaimName": "r"}]), "[1].name", Duplicate)]
#[case(json!([{"name": "a", "resourceClaimTemplateName": "R"}]), "[0].resourceClaimTemplateName", Invalid)]
fn claims_of_the_pod_are_checked(#[case] claims: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = spec_errors(json!({"resourceClaims": claims}));
    assert_eq!(found, one(&format!("spec.resourceClaims{field}"), rule));
}

#[rstest]
#[case(json!([{"name": "a"}, {"name": "a"}]), Some("[1]"))]
#[case(json!([{"name": "a", "request": "x"}, {"name": "a"}]), Some("[1]"))]
#[case(json!([{"name": "a", "request": "x"}, {"name": "a", "request": "x"}]), Some("[1]"))]
#[case(json!([{"name": "a", "request": "x"}, {"name": "a", "request": "y"}]), None)]
fn request_of_a_claim_is_used_once(#[case] used: Value, #[case] repeated: Option<&str>) {
    let found = spec_errors(json!({
        "resourceClaims": [{"name": "a", "resourceClaimName": "r"}],
        "containers": [{"name": "c", "image": "i", "resources": {"claims": used}}],
    }));
    let field = repeated.map(|place| format!("spec.containers[0].resources.claims{place}"));
    assert_eq!(found, field.map_or_else(Vec::new, |field| one(&field, Duplicate)));
}
