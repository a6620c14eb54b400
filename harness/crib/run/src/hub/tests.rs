//! The hub as used by manifests, controllers, the agent and other commands.

use std::ops::{Deref, DerefMut};

use agent::PodReport;
use api::manifest::{Strictness, parse};
use rstest::rstest;
use serde_json::json;
use tokio::sync::watch;

use super::*;
use crate::output::view::tests::{pod as report, reports};

/// A hub, and the store as its agent's cluster.
struct Scene {
    cluster: StoreCluster,
    hub: Hub,
}

impl Scene {
    fn new() -> Self {
        let cluster = StoreCluster::new("here".to_owned(), Arc::default(), 1);
        let hub = Hub::new(&cluster).unwrap();
        Self { cluster, hub }
    }

    /// Records a report of the agent.
    fn observe(&mut self, reports: &Reports) {
        let (_sender, mut receiver) = watch::channel(Arc::new(reports.clone()));
        self.cluster.take(&mut receiver, now());
        self.hub.observe(reports, now());
    }
}

impl Deref for Scene {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        &self.hub
    }
}

impl DerefMut for Scene {
    fn deref_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }
}

fn hub() -> Scene {
    Scene::new()
}

/// A pod as printed by kubectl from a cluster.
fn pod(uid: &str) -> Pod {
    let metadata = json!({
        "name": "p", "namespace": "default", "uid": uid, "resourceVersion": "77",
        "finalizers": ["example.org/held"],
    });
    let spec = json!({"containers": [{"name": "c", "image": "i"}], "nodeName": "there"});
    Pod::new(serde_json::from_value(json!({"metadata": metadata, "spec": spec})).unwrap())
}

fn now() -> Timestamp {
    Timestamp::UNIX_EPOCH
}

#[test]
fn pod_of_another_cluster_has_its_node_status_and_end_here() {
    let mut hub = hub();
    hub.create(vec![pod("u")], now());
    let value = &hub.pods()[0].value;
    assert_eq!(value["spec"]["nodeName"], "here");
    assert_eq!(value["metadata"].get("finalizers"), None);
    let mut running = report("p", "Running");
    running.uid = PodUid::new("u");
    hub.observe(&reports(vec![running.clone()]));
    assert_eq!(hub.pods()[0].value["status"]["phase"], "Running");
    hub.delete(|_| Some("gone"), |_| None, Deletion::Forgotten, now());
    hub.observe(&reports(vec![running.clone()]));
    assert!(hub.pods()[0].is_terminating(), "the agent still ends it");
    running.removed = true;
    hub.observe(&reports(vec![running]));
    assert_eq!(hub.pods(), []);
}

#[test]
fn ephemeral_container_stays_in_a_pod_whose_manifest_changes() {
    let mut hub = hub();
    hub.create(vec![pod("u")], now());
    let container = || serde_json::from_value(json!({"name": "e", "image": "i"})).unwrap();
    hub.add_ephemeral_container(&PodUid::new("u"), container()).unwrap();
    let again = hub.add_ephemeral_container(&PodUid::new("u"), container()).unwrap_err();
    assert!(again.contains("duplicate value"), "{again}");
    let error = hub.add_ephemeral_container(&PodUid::new("v"), container()).unwrap_err();
    assert!(error.contains("does not belong to this run"), "{error}");
    let mut changed = pod("u").api().clone();
    changed.metadata.labels = Some([("a".to_owned(), "b".to_owned())].into());
    hub.update(&[Pod::new(changed)]);
    let value = &hub.pods()[0].value;
    assert_eq!(value["metadata"]["labels"]["a"], "b");
    assert_eq!(value["spec"]["ephemeralContainers"][0]["name"], "e");
    assert_eq!(hub.desired()[0].ephemeral_containers().len(), 1);
}

#[test]
fn new_pod_takes_the_place_of_one_that_ends() {
    let mut hub = hub();
    hub.create(vec![pod("old")], now());
    hub.delete(|_| Some("replaced"), |_| None, Deletion::Forgotten, now());
    hub.create(vec![pod("new")], now());
    let uids = |hub: &Hub| -> Vec<String> {
        let mut pods = hub.pods();
        pods.sort_by_key(|object| object.uid() == "new");
        pods.iter().map(|object| object.uid().to_owned()).collect()
    };
    assert_eq!(uids(&hub), ["old", "new"], "the old one still ends");
    assert_eq!(hub.objects().len(), 1);
    let ended = |uid: &str, removed: bool| {
        let mut report = report("p", "Running");
        (report.uid, report.removed) = (PodUid::new(uid), removed);
        report
    };
    hub.observe(&reports(vec![ended("old", true), ended("new", false)]));
    assert_eq!(uids(&hub), ["new"], "the end of the old one is not that of the new one");
}

/// One pod is stopped; the other one ended before.
#[test]
fn stopped_pods_keep_their_last_state() {
    let mut hub = hub();
    let named = |name: &str| {
        let mut api = pod(name).api().clone();
        api.metadata.name = Some(name.to_owned());
        Pod::new(api)
    };
    hub.create(vec![named("runs"), named("done"), named("surplus")], now());
    let phases = |phases: [&str; 3], removed: bool| {
        let names = ["runs", "done", "surplus"].into_iter().zip(phases);
        reports(names.map(|(name, phase)| PodReport { removed, ..report(name, phase) }).collect())
    };
    hub.observe(&phases(["Running", "Succeeded", "Running"], false));
    hub.delete(
        |pod| (pod.name() == "surplus").then_some("x"),
        |_| None,
        Deletion::Forgotten,
        now(),
    );
    hub.delete(|_| Some("interrupted"), |_| Some(10), Deletion::Stopped, now());
    let mut ending: Vec<_> = hub.ending().map(|(name, until)| (name, until.as_second())).collect();
    ending.sort();
    assert_eq!(ending, [("default/runs".to_owned(), 10), ("default/surplus".to_owned(), 30)]);
    hub.observe(&phases(["Failed", "Succeeded", "Failed"], true));
    let snapshot = hub.snapshot();
    let mut ends: Vec<_> = snapshot.pods.iter().map(|pod| (pod.status(), pod.end)).collect();
    ends.sort_by_key(|(status, _)| *status);
    assert_eq!(ends, [("Stopped", PodEnd::Stopped), ("Succeeded", PodEnd::None)]);
    assert_eq!((snapshot.removed, hub.ending().count()), (1, 0));
}

#[test]
fn changed_manifest_changes_its_object() {
    let mut hub = hub();
    let map = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "uid": value}, "data": {"k": value},
        })
    };
    assert_eq!(hub.set_objects(vec![map("1")], now()).changed, []);
    let before = hub.objects();
    assert_eq!(hub.set_objects(vec![map("2")], now()).changed.len(), 1);
    let data = hub.referred().config_map("default", "m").unwrap().data.clone();
    assert_eq!(data.unwrap()["k"], "2");
    let after = hub.objects();
    assert_eq!(after[0]["data"]["k"], "2");
    assert_eq!(after[0]["metadata"]["uid"], before[0]["metadata"]["uid"]);
    drop(hub.set_objects(Vec::new(), now()));
    assert_eq!(hub.objects(), [json!(null); 0]);
}

#[rstest]
#[case::other_data(json!({"immutable": true, "data": {"k": "Mg=="}}))]
#[case::no_longer_immutable(json!({"data": {"k": "MQ=="}}))]
fn immutable_objects_stay_with_a_warning(#[case] changed: Value) {
    let mut hub = hub();
    let named = |kind: &str, rest: &Value| {
        let mut value = json!({"apiVersion": "v1", "kind": kind, "metadata": {"name": "o", "namespace": "default"}});
        value.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        value
    };
    let first = json!({"immutable": true, "data": {"k": "MQ=="}});
    let both = |rest: &Value| vec![named("ConfigMap", rest), named("Secret", rest)];
    assert_eq!(hub.set_objects(both(&first), now()).warnings, [""; 0]);
    let before = hub.referred();
    let replaced = hub.set_objects(both(&changed), now());
    assert_eq!(
        replaced.warnings,
        [
            "configmap default/o is immutable and was not changed: give the new object another name",
            "secret default/o is immutable and was not changed: give the new object another name",
        ]
    );
    assert_eq!(replaced.changed, []);
    assert_eq!(hub.referred(), before);
    // It can be removed, and then created with other content.
    drop(hub.set_objects(Vec::new(), now()));
    assert_eq!(hub.set_objects(both(&changed), now()).warnings, [""; 0]);
    assert_ne!(hub.referred(), before);
}

#[test]
fn changed_workloads_are_written_to_the_store() {
    let mut hub = hub();
    let set = |replicas: usize, uid: &str| {
        let text = format!(
            "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: web, uid: {uid}}}\nspec:\n  replicas: {replicas}\n  \
             selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
             spec: {{containers: [{{name: c, image: i}}]}}\n"
        );
        let parsed = parse("m.yaml", &text, Strictness::Strict);
        assert_eq!(parsed.problems, []);
        parsed.workloads.into_iter().next().unwrap()
    };
    let snapshot = |hub: &Hub| -> Vec<String> {
        let of = |object: &Value| {
            let uid = object["metadata"]["uid"].as_str().unwrap();
            format!("{uid} {}", object["spec"]["replicas"])
        };
        hub.objects().iter().map(of).collect()
    };
    hub.create_workloads(&[set(1, "u")], now());
    let updated = Applied { updated: vec![set(3, "u")], ..Applied::default() };
    hub.apply_workloads(&updated, now());
    assert_eq!(snapshot(&hub), ["u 3"]);
    let ended = vec![(set(3, "u"), "replaced")];
    let replaced = Applied { ended, started: vec![set(2, "v")], ..Applied::default() };
    hub.apply_workloads(&replaced, now());
    assert_eq!(snapshot(&hub), ["v 2"]);
    let ended = vec![(set(2, "v"), "removed")];
    hub.apply_workloads(&Applied { ended, ..Applied::default() }, now());
    assert_eq!(snapshot(&hub), [""; 0]);
}
