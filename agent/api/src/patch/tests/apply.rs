//! Strategic merge patches of built-in kinds, applied.

use rstest::rstest;
use serde_json::{Value, json};

use super::super::strategic::apply;
use super::{deployment, metadata, pod, schema};

#[rstest]
#[case::sets_a_field(json!({"nodeName": "a"}), json!({"hostNetwork": true}), json!({"nodeName": "a", "hostNetwork": true}))]
#[case::null_removes_a_field(json!({"nodeName": "a", "hostPID": true}), json!({"hostPID": null}), json!({"nodeName": "a"}))]
#[case::null_of_an_absent_field_does_nothing(json!({}), json!({"nodeName": null}), json!({}))]
#[case::objects_are_merged(
    json!({"securityContext": {"runAsUser": 1, "fsGroup": 2}}),
    json!({"securityContext": {"fsGroup": 3}}),
    json!({"securityContext": {"runAsUser": 1, "fsGroup": 3}}),
)]
#[case::nulls_of_added_objects_are_dropped(
    json!({}),
    json!({"securityContext": {"runAsUser": null, "fsGroup": 3}}),
    json!({"securityContext": {"fsGroup": 3}}),
)]
#[case::containers_are_merged_by_name(
    json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:1"}]}),
    json!({"containers": [{"name": "b", "image": "b:2"}]}),
    json!({"containers": [{"name": "a", "image": "a:1"}, {"name": "b", "image": "b:2"}]}),
)]
#[case::containers_are_added_at_the_front(
    json!({"containers": [{"name": "a"}]}),
    json!({"containers": [{"name": "b"}]}),
    json!({"containers": [{"name": "b"}, {"name": "a"}]}),
)]
#[case::containers_are_deleted(
    json!({"containers": [{"name": "a"}, {"name": "b"}]}),
    json!({"containers": [{"$patch": "delete", "name": "a"}]}),
    json!({"containers": [{"name": "b"}]}),
)]
#[case::containers_are_replaced(
    json!({"containers": [{"name": "a"}, {"name": "b"}]}),
    json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
    json!({"containers": [{"name": "c"}]}),
)]
#[case::deleting_an_absent_container_does_nothing(
    json!({"containers": [{"name": "a"}]}),
    json!({"containers": [{"$patch": "delete", "name": "b"}]}),
    json!({"containers": [{"name": "a"}]}),
)]
#[case::directives_are_dropped_where_nothing_was(
    json!({}),
    json!({"containers": [{"$patch": "delete", "name": "a"}, {"name": "b"}]}),
    json!({"containers": [{"name": "b"}]}),
)]
#[case::env_is_merged_in_its_container(
    json!({"containers": [{"name": "a", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}]}),
    json!({"containers": [{"name": "a", "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}]}]}),
    json!({"containers": [{"name": "a", "env": [
        {"name": "A", "value": "1"}, {"name": "B", "value": "3"}, {"name": "C", "value": "4"},
    ]}]}),
)]
#[case::ports_are_merged_by_container_port(
    json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
    json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http"}]}]}),
    json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "http", "protocol": "TCP"}]}]}),
)]
#[case::mounts_are_merged_by_path(
    json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/a", "name": "v"}]}]}),
    json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/a", "readOnly": true}]}]}),
    json!({"containers": [{"name": "a", "volumeMounts": [{"mountPath": "/a", "name": "v", "readOnly": true}]}]}),
)]
#[case::args_are_replaced(
    json!({"containers": [{"name": "a", "args": ["x", "y"]}]}),
    json!({"containers": [{"name": "a", "args": ["z"]}]}),
    json!({"containers": [{"name": "a", "args": ["z"]}]}),
)]
#[case::tolerations_are_replaced(
    json!({"tolerations": [{"key": "a"}, {"key": "b"}]}),
    json!({"tolerations": [{"key": "b", "operator": "Exists"}]}),
    json!({"tolerations": [{"key": "b", "operator": "Exists"}]}),
)]
#[case::volumes_change_their_source_with_retain_keys(
    json!({"volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "emptyDir": {}}]}),
    json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}, "$retainKeys": ["name", "hostPath"]}]}),
    json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}, {"name": "w", "emptyDir": {}}]}),
)]
#[case::volumes_keep_both_sources_without_retain_keys(
    json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
    json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
    json!({"volumes": [{"name": "v", "emptyDir": {}, "hostPath": {"path": "/x"}}]}),
)]
#[case::element_order_is_set(
    json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
    json!({"$setElementOrder/containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]}),
    json!({"containers": [{"name": "c"}, {"name": "a"}, {"name": "b"}]}),
)]
#[case::elements_outside_the_order_keep_their_place(
    json!({"containers": [{"name": "proxy"}, {"name": "a"}, {"name": "b"}]}),
    json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}),
    json!({"containers": [{"name": "proxy"}, {"name": "b"}, {"name": "a"}]}),
)]
#[case::added_elements_follow_the_order(
    json!({"containers": [{"name": "a"}, {"name": "c"}]}),
    json!({
        "$setElementOrder/containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}],
        "containers": [{"name": "b"}],
    }),
    json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}),
)]
#[case::a_deletion_puts_added_elements_behind_those_outside_the_order(
    json!({"containers": [{"name": "a"}, {"name": "b"}, {"name": "proxy"}]}),
    json!({
        "$setElementOrder/containers": [{"name": "b"}, {"name": "c"}],
        "containers": [{"name": "c"}, {"name": "a", "$patch": "delete"}],
    }),
    json!({"containers": [{"name": "b"}, {"name": "proxy"}, {"name": "c"}]}),
)]
#[case::order_of_an_absent_list_does_nothing(
    json!({"nodeName": "n"}),
    json!({"$setElementOrder/containers": [{"name": "a"}]}),
    json!({"nodeName": "n"}),
)]
#[case::order_of_an_empty_list_does_nothing(
    json!({"volumes": []}),
    json!({"$setElementOrder/volumes": [{"name": "a"}]}),
    json!({"volumes": []}),
)]
#[case::pull_secrets_are_merged_by_name(
    json!({"imagePullSecrets": [{"name": "a"}]}),
    json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
    json!({"imagePullSecrets": [{"name": "a"}, {"name": "b"}]}),
)]
#[case::host_aliases_are_merged_by_ip(
    json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}]}),
    json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}]}),
    json!({"hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}]}),
)]
#[case::an_object_is_replaced(
    json!({"securityContext": {"runAsUser": 1}}),
    json!({"securityContext": {"$patch": "replace", "fsGroup": 1}}),
    json!({"securityContext": {"fsGroup": 1}}),
)]
#[case::an_object_is_emptied(
    json!({"securityContext": {"runAsUser": 1}}),
    json!({"securityContext": {"$patch": "delete"}}),
    json!({"securityContext": {}}),
)]
#[case::unknown_fields_are_merged(
    json!({"future": {"a": [{"name": "x"}], "b": 1}}),
    json!({"future": {"a": [{"name": "y"}]}}),
    json!({"future": {"a": [{"name": "y"}], "b": 1}}),
)]
fn pods_are_patched(#[case] spec: Value, #[case] patch: Value, #[case] expected: Value) {
    let mut object = pod(spec);
    apply(schema(&object), &mut object, &json!({"spec": patch})).unwrap();
    assert_eq!(object, pod(expected));
}

#[rstest]
#[case::finalizers_are_merged(
    json!({"finalizers": ["a", "b"]}),
    json!({"finalizers": ["c", "a"]}),
    json!({"finalizers": ["c", "a", "b"]}),
)]
#[case::finalizers_are_deleted(
    json!({"finalizers": ["a", "b", "c"]}),
    json!({"$deleteFromPrimitiveList/finalizers": ["b", "x"]}),
    json!({"finalizers": ["a", "c"]}),
)]
#[case::finalizers_are_deleted_before_others_are_added(
    json!({"finalizers": ["a", "b"]}),
    json!({"$deleteFromPrimitiveList/finalizers": ["a"], "finalizers": ["a"]}),
    json!({"finalizers": ["a", "b"]}),
)]
#[case::finalizers_are_ordered(
    json!({"finalizers": ["a", "b"]}),
    json!({"$setElementOrder/finalizers": ["b", "c", "a"], "finalizers": ["c"]}),
    json!({"finalizers": ["b", "c", "a"]}),
)]
#[case::deleting_from_an_absent_list_does_nothing(
    json!({}),
    json!({"$deleteFromPrimitiveList/finalizers": ["a"]}),
    json!({}),
)]
#[case::owner_references_are_merged_by_uid(
    json!({"ownerReferences": [{"uid": "1", "name": "a"}]}),
    json!({"ownerReferences": [{"uid": "1", "controller": true}, {"uid": "2", "name": "b"}]}),
    json!({"ownerReferences": [{"uid": "1", "name": "a", "controller": true}, {"uid": "2", "name": "b"}]}),
)]
#[case::labels_are_merged(
    json!({"labels": {"a": "1", "b": "2"}}),
    json!({"labels": {"b": null, "c": "3"}}),
    json!({"labels": {"a": "1", "c": "3"}}),
)]
fn metadata_is_patched(#[case] old: Value, #[case] patch: Value, #[case] expected: Value) {
    let mut object = metadata(old);
    apply(schema(&object), &mut object, &json!({"metadata": patch})).unwrap();
    assert_eq!(object, metadata(expected));
}

#[rstest]
#[case::strategy_clears_the_fields_of_another_type(
    json!({"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}}}),
    json!({"strategy": {"$retainKeys": ["type"], "type": "Recreate"}}),
    json!({"strategy": {"type": "Recreate"}}),
)]
#[case::template_containers_are_merged(
    json!({"template": {"spec": {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]}}}),
    json!({"template": {"spec": {"containers": [{"name": "a", "image": "2"}]}}}),
    json!({"template": {"spec": {"containers": [{"name": "a", "image": "2"}, {"name": "b"}]}}}),
)]
#[case::an_annotation_restarts_the_rollout(
    json!({"template": {"metadata": {"labels": {"app": "a"}}}}),
    json!({"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}),
    json!({"template": {"metadata": {
        "labels": {"app": "a"}, "annotations": {"kubectl.kubernetes.io/restartedAt": "now"},
    }}}),
)]
fn deployments_are_patched(#[case] spec: Value, #[case] patch: Value, #[case] expected: Value) {
    let mut object = deployment(spec);
    apply(schema(&object), &mut object, &json!({"spec": patch})).unwrap();
    assert_eq!(object, deployment(expected));
}

#[rstest]
#[case::service_ports_are_merged_by_port(
    "v1", "Service",
    json!({"spec": {"ports": [{"port": 80, "targetPort": 8080}]}}),
    json!({"spec": {"ports": [{"port": 80, "name": "http"}, {"port": 443}]}}),
    json!({"spec": {"ports": [{"port": 80, "name": "http", "targetPort": 8080}, {"port": 443}]}}),
)]
#[case::node_conditions_are_merged_by_type(
    "v1", "Node",
    json!({"status": {"conditions": [{"type": "Ready", "status": "False", "reason": "x"}]}}),
    json!({"status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure"}]}}),
    json!({"status": {"conditions": [
        {"type": "Ready", "status": "True", "reason": "x"}, {"type": "DiskPressure"},
    ]}}),
)]
#[case::node_taints_are_replaced(
    "v1", "Node",
    json!({"spec": {"taints": [{"key": "a"}, {"key": "b"}]}}),
    json!({"spec": {"taints": [{"key": "c"}]}}),
    json!({"spec": {"taints": [{"key": "c"}]}}),
)]
#[case::secrets_of_service_accounts_are_merged_by_name(
    "v1", "ServiceAccount",
    json!({"secrets": [{"name": "a"}], "imagePullSecrets": [{"name": "a"}]}),
    json!({"secrets": [{"name": "b"}], "imagePullSecrets": [{"name": "b"}]}),
    json!({"secrets": [{"name": "b"}, {"name": "a"}], "imagePullSecrets": [{"name": "b"}]}),
)]
#[case::selectors_of_disruption_budgets_are_replaced(
    "policy/v1", "PodDisruptionBudget",
    json!({"spec": {"selector": {"matchLabels": {"a": "1"}}}}),
    json!({"spec": {"selector": {"matchLabels": {"b": "2"}}}}),
    json!({"spec": {"selector": {"matchLabels": {"b": "2"}}}}),
)]
#[case::rules_of_roles_are_replaced(
    "rbac.authorization.k8s.io/v1", "Role",
    json!({"rules": [{"verbs": ["get"]}, {"verbs": ["list"]}]}),
    json!({"rules": [{"verbs": ["watch"]}]}),
    json!({"rules": [{"verbs": ["watch"]}]}),
)]
#[case::null_patch_does_nothing("v1", "Secret", json!({"type": "Opaque"}), json!(null), json!({"type": "Opaque"}))]
#[case::null_object_is_empty("v1", "Secret", json!(null), json!({"type": "Opaque"}), json!({"type": "Opaque"}))]
fn kinds_have_their_own_lists(
    #[case] api_version: &str,
    #[case] kind: &str,
    #[case] mut object: Value,
    #[case] patch: Value,
    #[case] expected: Value,
) {
    let schema = schema(&json!({"apiVersion": api_version, "kind": kind}));
    apply(schema, &mut object, &patch).unwrap();
    assert_eq!(object, expected);
}
