//! Strategic merge patches of built-in kinds, computed.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::strategic::between;
use super::{deployment, metadata, pod, schema};

#[rstest]
#[case::equal(
    pod(json!({"containers": [{"name": "a"}]})),
    pod(json!({"containers": [{"name": "a"}]})),
    json!({}),
)]
#[case::added_field(pod(json!({})), pod(json!({"nodeName": "n"})), json!({"spec": {"nodeName": "n"}}))]
#[case::removed_field(pod(json!({"nodeName": "n"})), pod(json!({})), json!({"spec": {"nodeName": null}}))]
#[case::changed_image(
    pod(json!({"containers": [{"name": "a", "image": "1", "tty": true}, {"name": "b"}]})),
    pod(json!({"containers": [{"name": "a", "image": "2", "tty": true}, {"name": "b"}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}],
        "containers": [{"name": "a", "image": "2"}],
    }}),
)]
#[case::added_and_deleted_container(
    pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
    pod(json!({"containers": [{"name": "c"}, {"name": "a"}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [{"name": "c"}, {"name": "b", "$patch": "delete"}],
    }}),
)]
#[case::reordered_containers(
    pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
    pod(json!({"containers": [{"name": "b"}, {"name": "a"}]})),
    json!({"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}}),
)]
#[case::list_that_was_absent(
    pod(json!({})),
    pod(json!({"containers": [{"name": "a"}]})),
    json!({"spec": {"containers": [{"name": "a"}]}}),
)]
#[case::list_that_was_empty(
    pod(json!({"volumes": []})),
    pod(json!({"volumes": [{"name": "v"}]})),
    json!({"spec": {"volumes": [{"name": "v"}]}}),
)]
#[case::emptied_list(
    pod(json!({"volumes": [{"name": "v"}]})),
    pod(json!({"volumes": []})),
    json!({"spec": {"volumes": [{"name": "v", "$patch": "delete"}]}}),
)]
#[case::volume_with_another_source(
    pod(json!({"volumes": [{"name": "v", "emptyDir": {}}]})),
    pod(json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]})),
    json!({"spec": {
        "$setElementOrder/volumes": [{"name": "v"}],
        "volumes": [{
            "name": "v",
            "$retainKeys": ["hostPath", "name"],
            "emptyDir": null,
            "hostPath": {"path": "/x"},
        }],
    }}),
)]
#[case::atomic_list(
    pod(json!({"tolerations": [{"key": "a"}, {"key": "b"}]})),
    pod(json!({"tolerations": [{"key": "a"}]})),
    json!({"spec": {"tolerations": [{"key": "a"}]}}),
)]
#[case::ports_of_one_number(
    pod(json!({"containers": [{"name": "a", "ports": [{"containerPort": 53, "protocol": "TCP"}]}]})),
    pod(json!({"containers": [{"name": "a", "ports": [
        {"containerPort": 53, "protocol": "TCP"}, {"containerPort": 53, "protocol": "UDP"},
    ]}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{
            "name": "a",
            "$setElementOrder/ports": [{"containerPort": 53}, {"containerPort": 53}],
            "ports": [
                {"containerPort": 53, "protocol": "UDP"}, {"containerPort": 53, "protocol": "TCP"},
            ],
        }],
    }}),
)]
#[case::finalizers(
    metadata(json!({"finalizers": ["a", "b"]})),
    metadata(json!({"finalizers": ["c", "b"]})),
    json!({"metadata": {
        "$setElementOrder/finalizers": ["c", "b"],
        "$deleteFromPrimitiveList/finalizers": ["a"],
        "finalizers": ["c"],
    }}),
)]
#[case::equal_finalizers(
    metadata(json!({"finalizers": ["b", "a"]})),
    metadata(json!({"finalizers": ["b", "a"]})),
    json!({}),
)]
#[case::reordered_finalizers(
    metadata(json!({"finalizers": ["b", "a"]})),
    metadata(json!({"finalizers": ["a", "b"]})),
    json!({"metadata": {"$setElementOrder/finalizers": ["a", "b"]}}),
)]
#[case::strategy(
    deployment(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}})),
    deployment(json!({"strategy": {"type": "Recreate"}})),
    json!({"spec": {"strategy": {
        "$retainKeys": ["type"], "type": "Recreate", "rollingUpdate": null,
    }}}),
)]
#[case::replaced_selector(
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"selector": {"matchLabels": {"a": "1"}}}}),
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": {"selector": {"matchLabels": {"b": "2"}}}}),
    json!({"spec": {"selector": {"matchLabels": {"b": "2"}}}}),
)]
fn between_is_the_patch_of_kubernetes(
    #[case] original: Value,
    #[case] modified: Value,
    #[case] expected: Value,
) {
    assert_eq!(between(schema(&original), &original, &modified).unwrap(), expected);
}
