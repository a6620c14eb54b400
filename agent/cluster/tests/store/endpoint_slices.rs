//! The EndpointSlices that the controller maintains in the store.

use cluster::endpoint_slices::EndpointSlices;
use cluster::{DeleteOptions, Kind, Part, Selection};
use serde_json::json;

use super::*;

fn service(name: &str, app: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": name},
        "spec": {"selector": {"app": app}, "ports": [{"port": 80}]},
    })
}

/// A ready pod with this label.
fn ready(store: &Store, name: &str, app: &str) {
    let key = create(store, with(&pod(name), "/metadata/labels", json!({"app": app}))).key.clone();
    let number = name.len();
    let status = json!({
        "phase": "Running", "podIP": format!("10.0.0.{number}"),
        "conditions": [{"type": "Ready", "status": "True"}],
    });
    set(store, &key, Part::Status, "/status", status);
}

fn set(store: &Store, key: &Key, part: Part, path: &str, to: Value) {
    let changed = store.change(key, part, |value| {
        *value = with(value, path, to);
        Ok(())
    });
    changed.unwrap();
}

/// `SERVICE: ADDRESSES` of all slices.
fn slices(store: &Store) -> Vec<String> {
    let kind = Kind::of("discovery.k8s.io/v1", "EndpointSlice");
    let shown = |slice: &Arc<Object>| {
        let endpoints = slice.value["endpoints"].as_array().unwrap();
        let addresses = endpoints.iter().map(|it| it["addresses"][0].as_str().unwrap());
        let service = &slice.value["metadata"]["labels"]["kubernetes.io/service-name"];
        format!("{}: {}", service.as_str().unwrap(), addresses.collect::<Vec<_>>().join(" "))
    };
    let mut all: Vec<String> = store.list(&Selection::of(kind)).items.iter().map(shown).collect();
    all.sort();
    all
}

/// Syncs, and returns the names of the affected Services.
fn sync(controller: &mut EndpointSlices) -> String {
    let touched = controller.sync(at(9)).unwrap();
    touched.iter().map(|key| &*key.name).collect::<Vec<_>>().join(" ")
}

#[test]
fn change_processes_only_affected_services() {
    let store = store();
    ready(&store, "a", "web");
    create(&store, service("web", "web"));
    create(&store, service("db", "db"));
    let mut controller = EndpointSlices::new(&store).unwrap();
    assert_eq!(sync(&mut controller), "db web");
    assert_eq!(slices(&store), ["db: ", "web: 10.0.0.1"]);
    assert_eq!(sync(&mut controller), "");

    ready(&store, "bb", "db");
    assert_eq!(sync(&mut controller), "db");
    assert_eq!(slices(&store), ["db: 10.0.0.2", "web: 10.0.0.1"]);

    set(&store, &pod_key("bb"), Part::Main, "/metadata/labels/app", json!("web"));
    assert_eq!(sync(&mut controller), "db web");
    assert_eq!(slices(&store), ["db: ", "web: 10.0.0.1 10.0.0.2"]);

    store.delete(&pod_key("a"), &DeleteOptions::now(), at(5)).unwrap();
    create(&store, config_map("other"));
    assert_eq!(sync(&mut controller), "web");
    assert_eq!(slices(&store), ["db: ", "web: 10.0.0.2"]);
}

#[test]
fn slices_follow_their_service() {
    let store = store();
    ready(&store, "a", "web");
    let mut controller = EndpointSlices::new(&store).unwrap();
    assert_eq!(sync(&mut controller), "");
    let key = create(&store, service("web", "web")).key.clone();
    assert_eq!(sync(&mut controller), "web");
    set(&store, &key, Part::Main, "/spec/selector", json!({"app": "db"}));
    assert_eq!(sync(&mut controller), "web");
    assert_eq!(slices(&store), ["web: "]);
    store.delete(&key, &DeleteOptions::now(), at(5)).unwrap();
    assert_eq!(sync(&mut controller), "web");
    assert_eq!(slices(&store), [""; 0]);
}

#[test]
fn slices_are_complete_after_missed_changes() {
    let store = Store::with_history(7, 2);
    create(&store, service("web", "web"));
    create(&store, service("old", "web"));
    let mut controller = EndpointSlices::new(&store).unwrap();
    assert_eq!(sync(&mut controller), "old web");
    let old = Key::new(Kind::of("v1", "Service"), "default", "old");
    store.delete(&old, &DeleteOptions::now(), at(5)).unwrap();
    ready(&store, "a", "web");
    ready(&store, "bb", "web");
    assert_eq!(sync(&mut controller), "old web");
    assert_eq!(slices(&store), ["web: 10.0.0.1 10.0.0.2"]);
}
