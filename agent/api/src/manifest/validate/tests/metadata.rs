//! Rules of metadata and annotations.

use rstest::rstest;
use serde_json::{Value, json};

use super::{errors, one};
use crate::manifest::Rule::{self, Forbidden, Invalid, Required, TooLong};

#[rstest]
#[case(json!({"generateName": "a_"}), "generateName", Invalid)]
#[case(json!({"name": ""}), "name", Required)]
#[case(json!({"generation": -1}), "generation", Invalid)]
#[case(json!({"finalizers": ["plain"]}), "finalizers[0]", Invalid)]
#[case(json!({"finalizers": ["a/b/c"]}), "finalizers", Invalid)]
#[case(json!({"finalizers": ["orphan", "foregroundDeletion"]}), "finalizers", Invalid)]
#[case(json!({"annotations": {"a b": "c"}}), "annotations", Invalid)]
#[case(json!({"annotations": {"a": "x".repeat(256 << 10)}}), "annotations", TooLong)]
#[case(json!({"ownerReferences": [{"apiVersion": "a/b/c", "kind": "K", "name": "n", "uid": "u"}]}), "ownerReferences.apiVersion", Invalid)]
#[case(json!({"ownerReferences": [{"apiVersion": "v1", "kind": "Event", "name": "n", "uid": "u"}]}), "ownerReferences", Invalid)]
#[case(json!({"managedFields": [{"operation": "Delete"}]}), "managedFields[0].operation", Invalid)]
#[case(json!({"managedFields": [{"operation": "Apply", "manager": "m".repeat(129)}]}), "managedFields[0].manager", TooLong)]
fn metadata_is_checked(#[case] metadata: Value, #[case] field: &str, #[case] rule: Rule) {
    let found = errors(json!({"metadata": metadata}));
    assert_eq!(found, one(&format!("metadata.{field}"), rule));
}

#[rstest]
#[case("kubernetes.io/config.mirror", "x", "[kubernetes.io/config.mirror]")]
#[case(
    "controller.kubernetes.io/pod-deletion-cost",
    "+1",
    "[controller.kubernetes.io/pod-deletion-cost]"
)]
#[case(
    "controller.kubernetes.io/pod-deletion-cost",
    "007",
    "[controller.kubernetes.io/pod-deletion-cost]"
)]
#[case("scheduler.alpha.kubernetes.io/tolerations", "[", "")]
#[case(
    "scheduler.alpha.kubernetes.io/tolerations",
    r#"[{"key": "a b"}]"#,
    ".scheduler.alpha.kubernetes.io/tolerations[0].key"
)]
#[case(
    "seccomp.security.alpha.kubernetes.io/pod",
    "localhost/../x",
    ".seccomp.security.alpha.kubernetes.io/pod"
)]
#[case(
    "container.seccomp.security.alpha.kubernetes.io/c",
    "bogus",
    ".container.seccomp.security.alpha.kubernetes.io/c"
)]
#[case(
    "container.apparmor.security.beta.kubernetes.io/c",
    "bogus",
    "[container.apparmor.security.beta.kubernetes.io/c]"
)]
#[case(
    "container.apparmor.security.beta.kubernetes.io/d",
    "unconfined",
    "[container.apparmor.security.beta.kubernetes.io/d]"
)]
fn annotations_with_a_meaning_are_checked(
    #[case] key: &str,
    #[case] value: &str,
    #[case] place: &str,
) {
    let found = errors(json!({"metadata": {"annotations": {key: value}}}));
    assert_eq!(found, one(&format!("metadata.annotations{place}"), Invalid));
}

#[rstest]
#[case("seccomp.security.alpha.kubernetes.io/pod", "runtime/default", "seccompProfile", json!({"type": "Unconfined"}), Some("type"))]
#[case("seccomp.security.alpha.kubernetes.io/pod", "docker/default", "seccompProfile", json!({"type": "RuntimeDefault"}), None)]
#[case("seccomp.security.alpha.kubernetes.io/pod", "localhost/a", "seccompProfile", json!({"type": "Localhost", "localhostProfile": "b"}), Some("localhostProfile"))]
fn seccomp_annotation_matches_field(
    #[case] key: &str,
    #[case] value: &str,
    #[case] profile: &str,
    #[case] given: Value,
    #[case] wrong: Option<&str>,
) {
    let found = errors(json!({
        "metadata": {"annotations": {key: value}},
        "spec": {"securityContext": {profile: given}},
    }));
    let expected = wrong.map(|wrong| format!("spec.securityContext.{profile}.{wrong}"));
    assert_eq!(found, expected.map_or_else(Vec::new, |field| one(&field, Forbidden)));
}

#[test]
fn apparmor_annotation_of_a_container_matches_field_of_the_pod() {
    let found = errors(json!({
        "metadata": {"annotations": {"container.apparmor.security.beta.kubernetes.io/c": "unconfined"}},
        "spec": {"securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}},
    }));
    let field = "spec.containers[0].securityContext.appArmorProfile.type";
    assert_eq!(found, one(field, Forbidden));
}
