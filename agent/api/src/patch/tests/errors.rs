//! Patches that are rejected.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::strategic::{apply, between};
use super::{pod, schema};

#[rstest]
#[case::patch_is_a_list(json!([]), "expected an object", 400)]
#[case::element_without_merge_key(
    json!({"spec": {"containers": [{"image": "a"}]}}),
    "spec.containers: element without merge key \"name\"",
    500,
)]
#[case::nested_element_without_merge_key(
    json!({"spec": {"containers": [{"name": "a", "env": [{"value": "1"}]}]}}),
    "spec.containers[name=\"a\"].env: element without merge key \"name\"",
    500,
)]
#[case::deletion_without_merge_key(
    json!({"spec": {"containers": [{"$patch": "delete"}]}}),
    "spec.containers: element without merge key \"name\"",
    500,
)]
#[case::unknown_directive(
    json!({"spec": {"$patch": "remove"}}),
    "spec: unknown $patch directive \"remove\"",
    500,
)]
#[case::unknown_directive_of_an_element(
    json!({"spec": {"containers": [{"name": "a", "$patch": "merge"}]}}),
    "spec.containers: unknown $patch directive \"merge\"",
    500,
)]
#[case::mixed_elements(
    json!({"spec": {"containers": ["a"]}}),
    "spec.containers: elements of a list to merge have different types",
    500,
)]
#[case::scalars_and_lists(
    json!({"metadata": {"finalizers": [["a"]]}}),
    "metadata.finalizers: elements of a list to merge have different types",
    500,
)]
#[case::order_is_no_list(
    json!({"spec": {"$setElementOrder/containers": "a"}}),
    "spec.$setElementOrder/containers: malformed $setElementOrder directive",
    400,
)]
#[case::order_of_no_field(
    json!({"spec": {"$setElementOrder": []}}),
    "spec.$setElementOrder: malformed $setElementOrder directive",
    400,
)]
#[case::order_of_a_scalar(
    json!({"spec": {"$setElementOrder/nodeName": ["a"]}}),
    "spec.nodeName: expected a list",
    500,
)]
#[case::element_not_in_the_order(
    json!({"spec": {"$setElementOrder/containers": [{"name": "b"}], "containers": [{"name": "a"}]}}),
    "spec.containers: elements set by the patch do not follow $setElementOrder",
    500,
)]
#[case::elements_against_the_order(
    json!({"metadata": {"$setElementOrder/finalizers": ["x", "y"], "finalizers": ["y", "x"]}}),
    "metadata.finalizers: elements set by the patch do not follow $setElementOrder",
    500,
)]
#[case::deletion_from_no_field(
    json!({"metadata": {"$deleteFromPrimitiveList": ["a"]}}),
    "metadata.$deleteFromPrimitiveList: malformed $deleteFromPrimitiveList directive",
    400,
)]
#[case::deletion_of_objects(
    json!({"spec": {"$deleteFromPrimitiveList/containers": [{"name": "a"}]}}),
    "spec.containers: malformed $deleteFromPrimitiveList directive",
    400,
)]
#[case::retain_keys_is_no_list(
    json!({"spec": {"volumes": [{"name": "v", "$retainKeys": "name"}]}}),
    "spec.volumes[name=\"v\"]: fields set by the patch are not all in $retainKeys",
    400,
)]
#[case::field_not_retained(
    json!({"spec": {"volumes": [{"name": "v", "hostPath": {}, "$retainKeys": ["name"]}]}}),
    "spec.volumes[name=\"v\"].hostPath: fields set by the patch are not all in $retainKeys",
    400,
)]
fn bad_patches_are_refused_with_the_path_and_change_nothing(
    #[case] patch: Value,
    #[case] message: &str,
    #[case] status: u16,
) {
    let mut object = pod(json!({
        "nodeName": "n",
        "containers": [{"name": "a", "env": [{"name": "A"}]}],
        "volumes": [{"name": "v", "emptyDir": {}}],
    }));
    object["metadata"] = json!({"finalizers": ["x"]});
    let before = object.clone();
    let error = apply(schema(&object), &mut object, &patch).unwrap_err();
    assert_eq!((error.to_string().as_str(), error.http_status()), (message, status));
    assert_eq!(object, before);
}

#[test]
fn lists_of_lists_are_refused_with_422() {
    let mut object = json!({"metadata": {"finalizers": [["a"]]}});
    let schema = schema(&json!({"apiVersion": "v1", "kind": "Pod"}));
    let error = apply(schema, &mut object, &json!({"metadata": {"finalizers": [["b"]]}}));
    let error = error.unwrap_err();
    assert_eq!(error.to_string(), "metadata.finalizers: lists of lists cannot be merged");
    assert_eq!((error.path.as_str(), error.http_status()), ("metadata.finalizers", 422));
}

#[test]
fn differences_need_merge_keys() {
    let old = pod(json!({"containers": [{"name": "a", "ports": [{"containerPort": 1}]}]}));
    let new = pod(json!({"containers": [{"name": "a", "ports": [{"hostPort": 1}]}]}));
    let message = "spec.containers[name=\"a\"].ports: element without merge key \"containerPort\"";
    assert_eq!(between(schema(&old), &old, &new).unwrap_err().to_string(), message);
    let root = between(schema(&old), &old, &json!("pod")).unwrap_err();
    assert_eq!((root.to_string().as_str(), root.path.as_str()), ("expected an object", ""));
}
