//! The scale subresource of workloads.

use cluster::{Kind, Part, Patch};
use rstest::rstest;
use serde_json::json;

use super::*;

fn set(kind: &str, selector: &Value) -> Value {
    let version = if kind == "ReplicationController" { "v1" } else { "apps/v1" };
    json!({
        "apiVersion": version, "kind": kind, "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": selector, "template": {}},
    })
}

fn deployment() -> Value {
    set("Deployment", &json!({"matchLabels": {"app": "web"}}))
}

#[rstest]
#[case::pairs("ReplicationController", json!({"b": "2", "a": "1"}), "a=1,b=2")]
#[case::labels("Deployment", json!({"matchLabels": {"app": "web"}}), "app=web")]
#[case::expressions("StatefulSet", json!({
    "matchLabels": {"m": "x"},
    "matchExpressions": [
        {"key": "z", "operator": "DoesNotExist"}, {"key": "k", "operator": "In", "values": ["b", "a"]},
        {"key": "o", "operator": "NotIn", "values": ["c"]}, {"key": "e", "operator": "Exists"},
    ],
}), "e,k in (a,b),m=x,o notin (c),!z")]
#[case::none("ReplicaSet", json!({}), "")]
fn scale_shows_pods_and_selector(
    #[case] kind: &str,
    #[case] selector: Value,
    #[case] expected: &str,
) {
    let store = store();
    let key = create(&store, set(kind, &selector)).key.clone();
    let status = |value: &mut Value| {
        value["status"] = json!({"replicas": 1});
        Ok(())
    };
    let object = store.change(&key, Part::Status, status).unwrap();
    let scale = store.scale(&key).unwrap();
    assert_eq!((&scale["apiVersion"], &scale["kind"]), (&json!("autoscaling/v1"), &json!("Scale")));
    let of =
        |field: &str| (scale["metadata"][field].clone(), object.value["metadata"][field].clone());
    for field in ["name", "namespace", "uid", "resourceVersion", "creationTimestamp"] {
        let (own, its) = of(field);
        assert_eq!(own, its, "{field}");
    }
    assert_eq!(scale["spec"], json!({"replicas": 2}));
    assert_eq!(scale["status"], json!({"replicas": 1, "selector": expected}));
}

#[test]
fn scale_changes_the_number_of_pods_alone() {
    let store = store();
    let old = create(&store, deployment());
    let mut scale = store.scale(&old.key).unwrap();
    scale["spec"]["replicas"] = json!(5);
    scale["metadata"]["labels"] = json!({"x": "y"});
    scale["status"]["replicas"] = json!(9);
    let new = store.update_scale(&old.key, &scale).unwrap();
    let mut expected = with(&old.value, "/spec/replicas", json!(5));
    expected["metadata"]["generation"] = json!(2);
    expected["metadata"]["resourceVersion"] = new.value["metadata"]["resourceVersion"].clone();
    assert_eq!(new.value, expected);
    let patch = Patch::Merge(json!({"spec": {"replicas": 0}}));
    let new = store.patch_scale(&old.key, &patch).unwrap();
    assert_eq!(new.value["spec"]["replicas"], 0);
    let again = store.patch_scale(&old.key, &patch).unwrap();
    assert_eq!(again.version, new.version);
}

#[rstest]
#[case::negative(json!({"kind": "Scale", "spec": {"replicas": -1}}), "Invalid", "must be greater than or equal to 0")]
#[case::text(json!({"kind": "Scale", "spec": {"replicas": "3"}}), "BadRequest", "spec.replicas")]
#[case::too_many(json!({"kind": "Scale", "spec": {"replicas": 3_000_000_000_u64}}), "BadRequest", "spec.replicas")]
#[case::no_scale(json!({"kind": "Deployment", "spec": {"replicas": 1}}), "BadRequest", "kind Scale")]
#[case::other_uid(json!({"kind": "Scale", "metadata": {"uid": "x"}, "spec": {"replicas": 1}}), "Conflict", "UID in precondition: x")]
#[case::old_version(json!({"kind": "Scale", "metadata": {"resourceVersion": "1"}, "spec": {"replicas": 1}}), "Conflict", "has been modified")]
fn scale_is_refused(#[case] scale: Value, #[case] reason: &str, #[case] words: &str) {
    let store = store();
    let old = create(&store, deployment());
    let error = store.update_scale(&old.key, &scale).unwrap_err();
    assert_eq!(error.reason().0, reason);
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(store.get(&old.key).unwrap(), old);
}

#[test]
fn only_workloads_have_a_scale() {
    let store = store();
    let map = create(&store, config_map("m"));
    let error = store.scale(&map.key).unwrap_err();
    assert_eq!(error.to_string(), "configmaps have no subresource scale");
    let scale = json!({"kind": "Scale", "spec": {"replicas": 1}});
    assert_eq!(store.update_scale(&map.key, &scale).unwrap_err(), error);
    let missing = Key::new(Kind::of("apps/v1", "Deployment"), "default", "none");
    assert_eq!(store.scale(&missing).unwrap_err().reason(), ("NotFound", 404));
}
