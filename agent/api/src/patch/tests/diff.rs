//! Strategic merge patches of built-in kinds, computed.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::strategic::{apply, between, three_way};
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

#[rstest]
#[case::first_apply_keeps_what_it_does_not_name(
    json!(null),
    pod(json!({"nodeName": "n"})),
    pod(json!({"nodeName": "m", "hostPID": true})),
    json!({"spec": {"nodeName": "n"}}),
    pod(json!({"nodeName": "n", "hostPID": true})),
)]
#[case::nothing_changed(
    pod(json!({"containers": [{"name": "a", "image": "1"}]})),
    pod(json!({"containers": [{"name": "a", "image": "1"}]})),
    pod(json!({"containers": [{"name": "a", "image": "1", "imagePullPolicy": "Always"}], "nodeName": "n"})),
    json!({}),
    pod(json!({"containers": [{"name": "a", "image": "1", "imagePullPolicy": "Always"}], "nodeName": "n"})),
)]
#[case::drift_is_undone(
    pod(json!({"hostPID": false})),
    pod(json!({"hostPID": false})),
    pod(json!({"hostPID": true})),
    json!({"spec": {"hostPID": false}}),
    pod(json!({"hostPID": false})),
)]
#[case::field_no_longer_configured_is_removed(
    pod(json!({"hostPID": true, "hostIPC": true})),
    pod(json!({"hostIPC": true})),
    pod(json!({"hostPID": true, "hostIPC": true, "nodeName": "n"})),
    json!({"spec": {"hostPID": null}}),
    pod(json!({"hostIPC": true, "nodeName": "n"})),
)]
#[case::injected_container_stays(
    pod(json!({"containers": [{"name": "a", "image": "1"}]})),
    pod(json!({"containers": [{"name": "a", "image": "2"}]})),
    pod(json!({"containers": [{"name": "a", "image": "1"}, {"name": "proxy", "image": "p"}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{"name": "a", "image": "2"}],
    }}),
    pod(json!({"containers": [{"name": "a", "image": "2"}, {"name": "proxy", "image": "p"}]})),
)]
#[case::container_no_longer_configured_is_deleted(
    pod(json!({"containers": [{"name": "a"}, {"name": "b"}]})),
    pod(json!({"containers": [{"name": "a"}]})),
    pod(json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "proxy"}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{"name": "b", "$patch": "delete"}],
    }}),
    pod(json!({"containers": [{"name": "a"}, {"name": "proxy"}]})),
)]
#[case::env_is_deleted_and_image_changed_in_one_container(
    pod(json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "A"}, {"name": "B"}]}]})),
    pod(json!({"containers": [{"name": "a", "image": "2", "env": [{"name": "B"}]}]})),
    pod(json!({"containers": [{"name": "a", "image": "1", "env": [{"name": "A"}, {"name": "B"}], "tty": true}]})),
    json!({"spec": {
        "$setElementOrder/containers": [{"name": "a"}],
        "containers": [{
            "name": "a",
            "image": "2",
            "$setElementOrder/env": [{"name": "B"}],
            "env": [{"name": "A", "$patch": "delete"}],
        }],
    }}),
    pod(json!({"containers": [{"name": "a", "image": "2", "env": [{"name": "B"}], "tty": true}]})),
)]
#[case::defaults_of_another_strategy_are_cleared(
    deployment(json!({})),
    deployment(json!({"strategy": {"type": "Recreate"}})),
    deployment(json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%"}}})),
    json!({"spec": {"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}}),
    deployment(json!({"strategy": {"type": "Recreate"}})),
)]
#[case::defaults_of_another_volume_source_are_cleared(
    pod(json!({"volumes": [{"name": "v", "emptyDir": {}}]})),
    pod(json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}]})),
    pod(json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "token", "projected": {}}]})),
    json!({"spec": {
        "$setElementOrder/volumes": [{"name": "v"}],
        "volumes": [{
            "name": "v",
            "$retainKeys": ["configMap", "name"],
            "emptyDir": null,
            "configMap": {"name": "c"},
        }],
    }}),
    pod(json!({"volumes": [{"name": "v", "configMap": {"name": "c"}}, {"name": "token", "projected": {}}]})),
)]
#[case::finalizers_of_others_stay(
    metadata(json!({"finalizers": ["a", "b"]})),
    metadata(json!({"finalizers": ["b"]})),
    metadata(json!({"finalizers": ["a", "b", "theirs"]})),
    json!({"metadata": {
        "$setElementOrder/finalizers": ["b"],
        "$deleteFromPrimitiveList/finalizers": ["a"],
    }}),
    metadata(json!({"finalizers": ["b", "theirs"]})),
)]
#[case::labels_of_others_stay(
    metadata(json!({"labels": {"a": "1", "b": "2"}})),
    metadata(json!({"labels": {"b": "3"}})),
    metadata(json!({"labels": {"a": "1", "b": "2", "theirs": "4"}})),
    json!({"metadata": {"labels": {"a": null, "b": "3"}}}),
    metadata(json!({"labels": {"b": "3", "theirs": "4"}})),
)]
fn three_way_is_the_patch_of_kubectl_apply(
    #[case] original: Value,
    #[case] modified: Value,
    #[case] mut current: Value,
    #[case] patch: Value,
    #[case] result: Value,
) {
    let schema = schema(&modified);
    assert_eq!(three_way(schema, &original, &modified, &current).unwrap(), patch);
    apply(schema, &mut current, &patch).unwrap();
    assert_eq!(current, result);
}
