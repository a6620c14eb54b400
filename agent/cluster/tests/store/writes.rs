//! Creates, updates, subresources and deletes.

use cluster::{DeleteOptions, Error, Key, Kind, Part, Patch, Propagation, Selection};
use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn reason<T: std::fmt::Debug>(result: Result<T, Error>) -> (&'static str, u16) {
    result.unwrap_err().reason()
}

#[test]
fn created_object_has_metadata_of_the_store() {
    let store = store();
    let given = with(&pod("p"), "/status", json!({"phase": "Running"}));
    let object = create(&store, with(&given, "/metadata/generation", json!(9)));
    let metadata = &object.value["metadata"];
    assert_eq!(metadata["namespace"], "default");
    assert_eq!(metadata["generation"], 1);
    assert_eq!(metadata["creationTimestamp"], "1970-01-01T00:00:01Z");
    assert_eq!(metadata["resourceVersion"], object.version.to_string());
    assert!(!object.uid().is_empty());
    assert_eq!(object.value["status"], json!({"phase": "Pending"}));
    assert_eq!(store.get(&object.key).unwrap(), object);
}

#[test]
fn generated_names_differ() {
    let store = store();
    let mut value = pod("");
    value["metadata"] = json!({"generateName": "web-"});
    let (one, other) = (create(&store, value.clone()), create(&store, value));
    assert_ne!(one.key, other.key);
    assert!(one.key.name.starts_with("web-") && one.key.name.len() == 9, "{}", one.key);
}

#[test]
fn object_of_unknown_kind_is_stored_unchanged() {
    let store = store();
    let given = json!({
        "apiVersion": "example.org/v3",
        "kind": "Crane",
        "metadata": {"name": "c", "annotations": {"a": "b"}},
        "spec": {"load": [1, 2.5, null, {"x": true}]},
        "status": {"height": 3},
        "extra": "kept",
    });
    let object = create(&store, given.clone());
    for field in ["spec", "status", "extra", "kind", "apiVersion"] {
        assert_eq!(object.value[field], given[field]);
    }
    assert_eq!(object.value["metadata"]["annotations"], json!({"a": "b"}));
    assert_eq!(object.key.to_string(), "Crane.example.org c");
}

#[rstest]
#[case::no_kind(json!({"apiVersion": "v1", "metadata": {"name": "a"}}), ("BadRequest", 400))]
#[case::no_name(json!({"apiVersion": "v1", "kind": "Pod"}), ("Invalid", 422))]
#[case::version(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a", "resourceVersion": "3"}}), ("BadRequest", 400))]
#[case::namespace_of_node(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "namespace": "n"}}), ("BadRequest", 400))]
#[case::text(json!("text"), ("BadRequest", 400))]
#[case::name_is_there(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}}), ("AlreadyExists", 409))]
fn invalid_creates_are_refused(#[case] value: Value, #[case] expected: (&'static str, u16)) {
    let store = store();
    create(&store, pod("p"));
    assert_eq!(reason(store.create(value, at(1))), expected);
    assert_eq!(store.list(&Selection::default()).items.len(), 1);
}

#[rstest]
#[case::labels("/metadata/labels", json!({"a": "b"}), Part::Main, 1)]
#[case::spec("/spec/containers/0/image", json!("j"), Part::Main, 2)]
#[case::status("/status", json!({"phase": "Running"}), Part::Status, 1)]
#[case::ephemeral("/spec/ephemeralContainers", json!([{"name": "debug", "image": "d"}]), Part::EphemeralContainers, 2)]
fn generation_increments_when_spec_changes(
    #[case] path: &str,
    #[case] to: Value,
    #[case] part: Part,
    #[case] generation: i64,
) {
    let store = store();
    let old = create(&store, pod("p"));
    let new = store.update(with(&old.value, path, to.clone()), part).unwrap();
    assert_eq!(new.value.pointer(path), Some(&to));
    assert_eq!(new.value["metadata"]["generation"], generation);
    assert!(new.version > old.version);
    let again = store.update(new.value.clone(), part).unwrap();
    assert_eq!(again.version, new.version, "an update that changes nothing makes no version");
}

#[rstest]
#[case::main_leaves_status("/status", json!({"phase": "Failed"}), Part::Main)]
#[case::status_leaves_spec("/spec/nodeName", json!("n"), Part::Status)]
#[case::status_leaves_labels("/metadata/labels", json!({"a": "b"}), Part::Status)]
#[case::resize_leaves_image("/spec/containers/0/image", json!("j"), Part::Resize)]
#[case::ephemeral_leaves_image("/spec/containers/0/image", json!("j"), Part::EphemeralContainers)]
#[case::creation("/metadata/creationTimestamp", json!("1999-01-01T00:00:00Z"), Part::Main)]
#[case::generation("/metadata/generation", json!(77), Part::Main)]
#[case::deletion("/metadata/deletionTimestamp", json!("1999-01-01T00:00:00Z"), Part::Main)]
#[case::managed_fields("/metadata/managedFields", json!([{"manager": "m"}]), Part::Main)]
fn each_part_leaves_the_others(#[case] path: &str, #[case] to: Value, #[case] part: Part) {
    let store = store();
    let old = create(&store, with(&pod("p"), "/spec/ephemeralContainers", json!([])));
    let new = store.update(with(&old.value, path, to), part).unwrap();
    assert_eq!(new, old);
}

/// A pod with resources of its own, and of its container.
fn resizable() -> Value {
    let resources = json!({"requests": {"cpu": "500m"}});
    let pod = with(&pod("p"), "/spec/containers/0/resources", resources);
    let limits = json!({"cpu": "2", "memory": "2Gi"});
    let requests = json!({"cpu": "1", "memory": "1Gi"});
    with(&pod, "/spec/resources", json!({"limits": limits, "requests": requests}))
}

#[rstest]
#[case::container("/spec/containers/0/resources", json!({"requests": {"cpu": "600m", "memory": "1Gi"}}))]
#[case::pod("/spec/resources", json!({"limits": {"cpu": "3", "memory": "2Gi"}, "requests": {"cpu": "2", "memory": "1Gi"}}))]
fn resize_changes_the_resources_of_pod_and_containers(#[case] path: &str, #[case] to: Value) {
    let store = store();
    let old = create(&store, resizable());
    let new = store.update(with(&old.value, path, to.clone()), Part::Resize).unwrap();
    assert_eq!(new.value.pointer(path), Some(&to));
    assert_eq!(new.value["metadata"]["generation"], 2);
    let again = store.update(new.value.clone(), Part::Resize).unwrap();
    assert_eq!(again.version, new.version, "an update that changes nothing makes no version");
}

#[rstest]
#[case::removed("/spec/resources", json!(null), "spec.resources: Forbidden: pod-level resources cannot be removed")]
#[case::removed_from_container("/spec/containers/0/resources", json!({}), "spec.containers[0].resources.requests: Forbidden")]
#[case::less_than_containers("/spec/resources/requests/cpu", json!("100m"), "spec.resources.requests[cpu]")]
#[case::class("/spec/resources/requests", json!({"cpu": "2", "memory": "2Gi"}), "Pod QOS Class may not change")]
#[case::no_quantity("/spec/resources/requests/cpu", json!([]), "\"p\" is invalid")]
fn invalid_resizes_are_refused(#[case] path: &str, #[case] to: Value, #[case] message: &str) {
    let store = store();
    let old = create(&store, resizable());
    let error = store.update(with(&old.value, path, to), Part::Resize).unwrap_err();
    assert_eq!(error.reason(), ("Invalid", 422));
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(store.get(&old.key).unwrap(), old);
}

#[rstest]
#[case::old_version("/metadata/resourceVersion", json!("1"), Part::Main, "Conflict", "the object has been modified")]
#[case::old_version_of_status("/metadata/resourceVersion", json!("1"), Part::Status, "Conflict", "the object has been modified")]
#[case::no_number("/metadata/resourceVersion", json!("x"), Part::Main, "Invalid", "metadata.resourceVersion")]
#[case::another_uid("/metadata/uid", json!("other"), Part::Main, "Conflict", "UID in precondition: other")]
#[case::another_name("/metadata/name", json!("q"), Part::Main, "NotFound", "pods \"q\" not found")]
#[case::container_removed("/spec/containers", json!([{"name": "d"}]), Part::Resize, "Invalid", "spec.containers: Forbidden")]
#[case::ephemeral_removed("/spec/ephemeralContainers", json!([]), Part::EphemeralContainers, "Invalid", "may not be removed")]
#[case::ephemeral_changed("/spec/ephemeralContainers/0/image", json!("x"), Part::EphemeralContainers, "Invalid", "may not be changed")]
fn invalid_updates_are_refused(
    #[case] path: &str,
    #[case] to: Value,
    #[case] part: Part,
    #[case] expected: &str,
    #[case] message: &str,
) {
    let store = store();
    let debug = json!([{"name": "debug", "image": "d"}]);
    let old = create(&store, with(&pod("p"), "/spec/ephemeralContainers", debug));
    let error = store.update(with(&old.value, path, to), part).unwrap_err();
    assert_eq!(error.reason().0, expected);
    assert!(error.to_string().contains(message), "{error}");
    assert_eq!(store.get(&old.key).unwrap(), old);
}

#[test]
fn write_without_version_overwrites_the_object() {
    let store = store();
    create(&store, config_map("m"));
    let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"b": "2"}});
    let new = store.update(value, Part::Main).unwrap();
    assert_eq!(new.value["data"], json!({"b": "2"}));
    assert_eq!(new.value["metadata"].get("generation"), None);
    let changed = store.change(&new.key, Part::Main, |value| {
        value["data"]["c"] = json!("3");
        Ok(())
    });
    assert_eq!(changed.unwrap().value["data"], json!({"b": "2", "c": "3"}));
    let renamed = store.change(&new.key, Part::Main, |value| {
        value["metadata"]["name"] = json!("n");
        Ok(())
    });
    assert_eq!(reason(renamed), ("Invalid", 422));
}

#[rstest]
#[case::data("/data", json!({"a": "2"}), true)]
#[case::mutable_again("/immutable", json!(false), true)]
#[case::labels("/metadata/labels", json!({"a": "b"}), false)]
fn immutable_objects_keep_their_data(#[case] path: &str, #[case] to: Value, #[case] refused: bool) {
    let store = store();
    for kind in ["ConfigMap", "Secret"] {
        let map = with(&config_map("m"), "/immutable", json!(true));
        let old = create(&store, with(&map, "/kind", json!(kind)));
        let result = store.update(with(&old.value, path, to.clone()), Part::Main);
        match refused {
            true => {
                let error = result.unwrap_err();
                assert_eq!(error.reason(), ("Invalid", 422));
                assert!(error.to_string().contains("Forbidden: field is immutable"), "{error}");
            }
            false => assert!(result.is_ok(), "{result:?}"),
        }
    }
}

#[test]
fn patches_merge_as_their_kind_does() {
    let store = store();
    let pod = create(&store, pod("p"));
    let sidecar = json!({"spec": {"containers": [{"name": "s", "image": "j"}]}});
    let names = |object: &Object| -> Vec<Value> {
        let containers = object.value["spec"]["containers"].as_array().unwrap();
        containers.iter().map(|container| container["name"].clone()).collect()
    };
    let merged = store.patch(&pod.key, Part::Main, &Patch::Strategic(sidecar.clone())).unwrap();
    assert_eq!(names(&merged), ["s", "c"]);
    assert_eq!(merged.value["metadata"]["generation"], 2);
    let replaced = store.patch(&pod.key, Part::Main, &Patch::Merge(sidecar)).unwrap();
    assert_eq!(names(&replaced), ["s"]);
    let old =
        json!({"metadata": {"resourceVersion": pod.version.to_string(), "labels": {"a": "b"}}});
    assert_eq!(reason(store.patch(&pod.key, Part::Main, &Patch::Merge(old))), ("Conflict", 409));
    let renamed = Patch::Merge(json!({"metadata": {"name": "q"}}));
    assert_eq!(reason(store.patch(&pod.key, Part::Main, &renamed)), ("Invalid", 422));
    let no_key = Patch::Strategic(json!({"spec": {"containers": [{"image": "j"}]}}));
    assert_eq!(reason(store.patch(&pod.key, Part::Main, &no_key)), ("BadRequest", 400));
    let custom =
        json!({"apiVersion": "example.org/v1", "kind": "Crane", "metadata": {"name": "c"}});
    let custom = create(&store, custom);
    let patch = json!({"spec": {"load": 1}});
    let refused = store.patch(&custom.key, Part::Main, &Patch::Strategic(patch.clone()));
    assert_eq!(reason(refused), ("UnsupportedMediaType", 415));
    let merged = store.patch(&custom.key, Part::Main, &Patch::Merge(patch)).unwrap();
    assert_eq!(merged.value["spec"]["load"], 1);
}

#[test]
fn pod_is_bound_once() {
    let store = store();
    let pod = create(&store, pod("p"));
    let bound = store.bind(&pod.key, "n1", at(5)).unwrap();
    assert_eq!(bound.value["spec"]["nodeName"], "n1");
    assert_eq!(bound.value["status"]["conditions"][0]["type"], "PodScheduled");
    let error = store.bind(&pod.key, "n2", at(5)).unwrap_err();
    assert!(error.to_string().ends_with("pod p is already assigned to node \"n1\""), "{error}");
    let map = create(&store, config_map("m"));
    assert_eq!(reason(store.bind(&map.key, "n1", at(5))), ("BadRequest", 400));
}

#[rstest]
#[case::own_grace(None, Some(20))]
#[case::shorter(Some(3), Some(3))]
#[case::negative(Some(-4), Some(1))]
#[case::none(Some(0), None)]
fn pod_on_a_node_has_its_grace_period(#[case] asked: Option<i64>, #[case] grace: Option<i64>) {
    let store = store();
    let pod = create(&store, with(&pod("p"), "/spec/nodeName", json!("n")));
    let options = DeleteOptions { grace_seconds: asked, ..DeleteOptions::default() };
    let deleted = store.delete(&pod.key, &options, at(100)).unwrap();
    assert_eq!(deleted.removed, grace.is_none());
    assert_eq!(store.get(&pod.key).is_err(), grace.is_none());
    if let Some(grace) = grace {
        let metadata = &deleted.object.value["metadata"];
        assert_eq!(metadata["deletionGracePeriodSeconds"], grace);
        assert_eq!(metadata["deletionTimestamp"], at(100 + grace).to_string());
        assert_eq!(metadata["generation"], 2);
        assert!(store.delete(&pod.key, &DeleteOptions::now(), at(101)).unwrap().removed);
    }
}

#[rstest]
#[case::longer(Some(50), false, 20)]
#[case::same(None, false, 20)]
#[case::shorter(Some(5), false, 5)]
#[case::now(Some(0), true, 0)]
fn later_delete_only_shortens_the_grace_period(
    #[case] asked: Option<i64>,
    #[case] removed: bool,
    #[case] grace: i64,
) {
    let store = store();
    let pod = create(&store, with(&pod("p"), "/spec/nodeName", json!("n")));
    let first = store.delete(&pod.key, &DeleteOptions::default(), at(100)).unwrap();
    let options = DeleteOptions { grace_seconds: asked, ..DeleteOptions::default() };
    let deleted = store.delete(&pod.key, &options, at(110)).unwrap();
    assert_eq!(deleted.removed, removed);
    assert_eq!(deleted.object.value["metadata"]["deletionGracePeriodSeconds"], grace);
    assert_eq!(deleted.object.version == first.object.version, grace == 20);
    assert_eq!(deleted.object.value["metadata"]["generation"], 2);
}

#[rstest]
#[case::without_node("/metadata/labels", json!({}))]
#[case::succeeded("/status", json!({"phase": "Succeeded"}))]
fn pod_without_running_containers_is_removed_at_once(#[case] path: &str, #[case] to: Value) {
    let store = store();
    let has_node = path == "/status";
    let node = if has_node { json!("n") } else { json!("") };
    let pod = create(&store, with(&pod("p"), "/spec/nodeName", node));
    store.update(with(&pod.value, path, to), Part::Status).unwrap();
    assert!(store.delete(&pod.key, &DeleteOptions::default(), at(9)).unwrap().removed);
}

#[test]
fn finalizers_delay_removal_of_a_deleted_object() {
    let store = store();
    let held = with(&config_map("m"), "/metadata/finalizers", json!(["a/b", "c/d"]));
    let map = create(&store, held);
    let deleted = store.delete(&map.key, &DeleteOptions::default(), at(9)).unwrap();
    assert!(!deleted.removed && deleted.object.is_terminating());
    let again = store.delete(&map.key, &DeleteOptions::default(), at(10)).unwrap();
    assert_eq!(again.object, deleted.object);
    let more = with(&deleted.object.value, "/metadata/finalizers", json!(["a/b", "c/d", "e/f"]));
    assert_eq!(reason(store.update(more, Part::Main)), ("Invalid", 422));
    let one = with(&deleted.object.value, "/metadata/finalizers", json!(["c/d"]));
    let one = store.update(one, Part::Main).unwrap();
    assert!(store.get(&map.key).is_ok());
    store.update(with(&one.value, "/metadata/finalizers", json!([])), Part::Main).unwrap();
    assert_eq!(reason(store.get(&map.key)), ("NotFound", 404));
}

#[test]
fn pod_with_finalizer_ends_after_node_and_finalizer() {
    let store = store();
    let held = with(&pod("p"), "/spec/nodeName", json!("n"));
    let pod = create(&store, with(&held, "/metadata/finalizers", json!(["a/b"])));
    store.delete(&pod.key, &DeleteOptions::default(), at(9)).unwrap();
    let by_node = store.delete(&pod.key, &DeleteOptions::now(), at(10)).unwrap();
    assert!(!by_node.removed);
    let free = with(&by_node.object.value, "/metadata/finalizers", json!([]));
    store.update(free, Part::Main).unwrap();
    assert!(store.get(&pod.key).is_err());
}

#[test]
fn finalizer_removed_during_grace_period_does_not_remove_pod() {
    let store = store();
    let held = with(&pod("p"), "/spec/nodeName", json!("n"));
    let pod = create(&store, with(&held, "/metadata/finalizers", json!(["a/b"])));
    let marked = store.delete(&pod.key, &DeleteOptions::default(), at(9)).unwrap();
    store
        .update(with(&marked.object.value, "/metadata/finalizers", json!([])), Part::Main)
        .unwrap();
    assert!(store.get(&pod.key).unwrap().is_terminating());
    assert!(store.delete(&pod.key, &DeleteOptions::now(), at(10)).unwrap().removed);
}

#[test]
fn delete_has_preconditions() {
    let store = store();
    let map = create(&store, config_map("m"));
    let other = DeleteOptions::default().with_uid("other");
    assert_eq!(reason(store.delete(&map.key, &other, at(9))), ("Conflict", 409));
    let old = DeleteOptions { version: Some(map.version - 1), ..DeleteOptions::default() };
    assert_eq!(reason(store.delete(&map.key, &old, at(9))), ("Conflict", 409));
    let right = DeleteOptions { version: Some(map.version), ..DeleteOptions::default() };
    assert!(store.delete(&map.key, &right.with_uid(map.uid()), at(9)).unwrap().removed);
    assert_eq!(reason(store.delete(&map.key, &DeleteOptions::default(), at(9))), ("NotFound", 404));
}

#[test]
fn propagation_is_kept_as_a_finalizer() {
    let store = store();
    for (name, propagation, finalizer) in
        [("a", Propagation::Foreground, "foregroundDeletion"), ("b", Propagation::Orphan, "orphan")]
    {
        let map = create(&store, config_map(name));
        let options = DeleteOptions { propagation, ..DeleteOptions::default() };
        let deleted = store.delete(&map.key, &options, at(9)).unwrap();
        assert!(!deleted.removed);
        assert_eq!(deleted.object.finalizers().collect::<Vec<_>>(), [finalizer]);
    }
}

#[test]
fn messages_are_those_of_an_api_server() {
    let store = store();
    let deployment = Key::new(Kind::of("apps/v1", "Deployment"), "default", "web");
    let error = store.get(&deployment).unwrap_err();
    assert_eq!(error.to_string(), "deployments.apps \"web\" not found");
    let old = create(&store, pod("p"));
    store.bind(&old.key, "n", at(1)).unwrap();
    let error = store.update(old.value.clone(), Part::Main).unwrap_err();
    assert_eq!(
        error.to_string(),
        "Operation cannot be fulfilled on pods \"p\": the object has been modified; please apply your changes to the latest version and try again"
    );
}

/// A Deployment of two pods.
fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {"replicas": 2, "selector": {"matchLabels": {"app": "web"}}, "template": {}},
    })
}

#[test]
fn scale_changes_the_number_of_pods_alone() {
    let store = store();
    let old = create(&store, deployment());
    let new = store.scale(&old.key, 5, Some(2)).unwrap();
    let mut expected = with(&old.value, "/spec/replicas", json!(5));
    expected["metadata"]["generation"] = json!(2);
    expected["metadata"]["resourceVersion"] = new.value["metadata"]["resourceVersion"].clone();
    assert_eq!(new.value, expected);
    assert_eq!(store.scale(&old.key, 5, None).unwrap().version, new.version);
}

#[rstest]
#[case::negative(-1, None, "Invalid", "must be greater than or equal to 0")]
#[case::other_number(1, Some(3), "BadRequest", "expected replicas to be 3, was 2")]
fn scale_is_refused(
    #[case] replicas: i32,
    #[case] expected: Option<i32>,
    #[case] reason: &str,
    #[case] words: &str,
) {
    let store = store();
    let old = create(&store, deployment());
    let error = store.scale(&old.key, replicas, expected).unwrap_err();
    assert_eq!(error.reason().0, reason);
    assert!(error.to_string().contains(words), "{error}");
    assert_eq!(store.get(&old.key).unwrap(), old);
}

#[test]
fn only_workloads_have_a_scale() {
    let store = store();
    let map = create(&store, config_map("m"));
    let error = store.scale(&map.key, 1, None).unwrap_err();
    assert_eq!(error.to_string(), "configmaps have no subresource scale");
    let missing = Key::new(Kind::of("apps/v1", "Deployment"), "default", "none");
    assert_eq!(store.scale(&missing, 1, None).unwrap_err().reason(), ("NotFound", 404));
}
