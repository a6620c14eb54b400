//! Strategic merge patches of built-in kinds, computed, beside those of Kubernetes' own tests in `kubernetes`.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::strategic::between;
use super::{deployment, pod, schema};

#[rstest]
#[case::list_that_was_empty(
    pod(json!({"volumes": []})),
    pod(json!({"volumes": [{"name": "v"}]})),
    json!({"spec": {"volumes": [{"name": "v"}]}}),
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
