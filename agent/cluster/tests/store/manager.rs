//! The controllers of a store: objects are written to it, and pods are created and deleted for them.

use std::collections::BTreeMap;

use api::manifest::{Strictness, Workload, parse};
use api::pod::{Pod, PodUid};
use cluster::claims::Directories;
use cluster::controllers::{Changes, CronStarts, PodState, Refused};
use cluster::manager::Manager;
use cluster::{DeleteOptions, Kind, Part, Selection};
use serde_json::json;

use super::*;

/// The directories of claims.
fn directories() -> Directories {
    Box::new(|claim| format!("/volumes/{claim}").into())
}

/// A store with controllers, and a node that runs their pods.
struct World {
    store: Store,
    manager: Manager,
    pods: Vec<Pod>,
    states: BTreeMap<PodUid, PodState>,
    now: i64,
}

impl World {
    fn new(store: Store) -> Self {
        let starts = CronStarts::Scheduled;
        let manager = Manager::new(&store, Refused::Deleted, starts, 1, directories()).unwrap();
        Self { store, manager, pods: Vec::new(), states: BTreeMap::new(), now: 0 }
    }

    /// Creates the object of a manifest.
    fn create(&self, manifest: &str) -> Key {
        let workload = workload(manifest);
        self.store.create(workload.json(), at(self.now)).unwrap().key.clone()
    }

    /// Lets the controllers decide and write. Returns how many pods they created, and why they deleted others.
    fn sync(&mut self) -> String {
        let changes = self.manager.sync(&self.states, at(self.now));
        assert_eq!(self.manager.write(at(self.now)), []);
        let Changes { created, deleted, .. } = changes;
        for (uid, _) in &deleted {
            self.pods.retain(|pod| pod.uid() != uid);
            let removed =
                PodState { is_finished: true, is_removed: true, ..self.states[uid].clone() };
            self.states.insert(uid.clone(), removed);
        }
        for pod in &created {
            self.states.insert(pod.uid().clone(), PodState::default());
        }
        let mut shown: Vec<String> = deleted.iter().map(|(_, why)| format!("-{why}")).collect();
        shown.dedup();
        if !created.is_empty() {
            shown.insert(0, format!("+{}", created.len()));
        }
        self.pods.extend(created);
        shown.join(" ")
    }

    /// The names of the objects of a kind.
    fn names(&self, api_version: &str, kind: &str) -> Vec<String> {
        let items = self.store.list(&Selection::of(Kind::of(api_version, kind))).items;
        items.iter().map(|object| object.key.name.to_string()).collect()
    }

    fn status(&self, key: &Key) -> Value {
        self.store.get(key).unwrap().value["status"].clone()
    }
}

fn workload(manifest: &str) -> Workload {
    let parsed = parse("m.yaml", manifest, Strictness::Strict);
    assert_eq!(parsed.problems, []);
    parsed.workloads.into_iter().next().unwrap()
}

fn deployment(image: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: 2\n  selector: {{matchLabels: {{a: b}}}}\n  \
         template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: {image}}}]}}}}\n"
    )
}

const CRON_JOB: &str = "apiVersion: batch/v1
kind: CronJob
metadata: {name: tick}
spec:
  schedule: '* * * * *'
  jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: i}]}}}}
";

#[test]
fn deployment_in_the_store_has_pods_a_replica_set_and_a_status() {
    let mut world = World::new(store());
    assert_eq!(world.sync(), "");
    let key = world.create(&deployment("i"));
    assert_eq!(world.sync(), "+2");
    assert_eq!(world.status(&key)["replicas"], 2);
    let sets = world.names("apps/v1", "ReplicaSet");
    let owners = world.pods[0].api().metadata.owner_references.clone().unwrap();
    assert_eq!(sets, [owners[0].name.clone()]);
    assert_eq!(world.sync(), "", "what controllers wrote is nothing new");
    let version = world.store.list(&Selection::default()).version;
    assert_eq!(world.sync(), "");
    assert_eq!(world.store.list(&Selection::default()).version, version);
}

#[test]
fn scaled_deployment_has_other_pods() {
    let mut world = World::new(store());
    let key = world.create(&deployment("i"));
    assert_eq!(world.sync(), "+2");
    world.store.scale(&key, 5, None).unwrap();
    assert_eq!(world.sync(), "+3");
    let observed = &world.status(&key)["observedGeneration"];
    assert_eq!(*observed, 2);
    world.store.scale(&key, 0, None).unwrap();
    let _ = world.sync();
    assert_eq!(world.pods.len(), 0);
}

#[test]
fn status_change_changes_no_pod() {
    let mut world = World::new(store());
    let key = world.create(&deployment("i"));
    let _ = world.sync();
    let status = |value: &mut Value| {
        value["status"] = json!({"replicas": 7});
        Ok(())
    };
    world.store.change(&key, Part::Status, status).unwrap();
    assert_eq!(world.sync(), "");
    assert_eq!(world.pods.len(), 2);
}

#[test]
fn deleted_deployment_removes_all_its_dependents() {
    let mut world = World::new(store());
    let key = world.create(&deployment("i"));
    let _ = world.sync();
    world.store.delete(&key, &DeleteOptions::now(), at(1)).unwrap();
    assert_eq!(world.sync(), "-its manifest was removed");
    assert_eq!(world.names("apps/v1", "ReplicaSet"), [""; 0]);
    assert_eq!(world.sync(), "");
}

#[test]
fn replacing_object_gets_its_own_pods() {
    let mut world = World::new(store());
    let key = world.create(&deployment("i"));
    let _ = world.sync();
    world.store.delete(&key, &DeleteOptions::now(), at(1)).unwrap();
    let mut other = workload(&deployment("j"));
    other.set_uid(Some("other".to_owned()));
    world.store.create(other.json(), at(1)).unwrap();
    assert_eq!(world.sync(), "+2 -replaced, because its manifest changed");
    let sets = world.names("apps/v1", "ReplicaSet");
    let owners = world.pods[0].api().metadata.owner_references.clone().unwrap();
    assert_eq!(sets, [owners[0].name.clone()]);
}

#[test]
fn jobs_of_a_cron_job_are_objects_and_end_as_such() {
    let mut world = World::new(store());
    let key = world.create(CRON_JOB);
    assert_eq!(world.sync(), "");
    world.now = 60;
    assert_eq!(world.sync(), "+1");
    let jobs = world.names("batch/v1", "Job");
    assert_eq!(jobs.len(), 1);
    assert_eq!(world.sync(), "", "its Job is no other one");
    let job = Key::new(Kind::of("batch/v1", "Job"), "default", &jobs[0]);
    assert_eq!(world.status(&job)["active"], 1);
    for key in [&key, &job] {
        world.store.delete(key, &DeleteOptions::now(), at(61)).unwrap();
    }
    assert_eq!(world.sync(), "-its manifest was removed");
    assert_eq!(world.names("batch/v1", "Job"), [""; 0]);
}

#[test]
fn invalid_object_is_reported_and_has_no_pods() {
    let mut world = World::new(store());
    let mut invalid = workload(&deployment("i")).json();
    invalid["spec"]["selector"] = json!({"matchLabels": {"another": "label"}});
    world.store.create(invalid, at(1)).unwrap();
    let changes = world.manager.sync(&world.states, at(1));
    assert_eq!(changes.created, []);
    let refused = world.manager.write(at(1));
    assert_eq!(refused[0].reason(), ("Invalid", 422));
    assert_eq!(world.sync(), "", "it is reported once");
}

#[test]
fn dependents_are_deleted_with_their_last_owner() {
    let mut world = World::new(store());
    let owned = |name: &str, owners: &[&Arc<Object>]| {
        let of = |owner: &&Arc<Object>| json!({"apiVersion": "v1", "kind": "ConfigMap", "name": owner.key.name, "uid": owner.uid()});
        let references: Vec<Value> = owners.iter().map(of).collect();
        with(&config_map(name), "/metadata/ownerReferences", json!(references))
    };
    let one = create(&world.store, config_map("one"));
    let two = create(&world.store, config_map("two"));
    let child = create(&world.store, owned("child", &[&one]));
    create(&world.store, owned("grandchild", &[&child]));
    create(&world.store, owned("of-both", &[&one, &two]));
    let elsewhere =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "elsewhere"}]);
    create(&world.store, with(&config_map("printed"), "/metadata/ownerReferences", elsewhere));
    let mut left = |deleted: &Arc<Object>| {
        world.store.delete(&deleted.key, &DeleteOptions::now(), at(1)).unwrap();
        let _ = world.sync();
        world.names("v1", "ConfigMap").join(" ")
    };
    assert_eq!(left(&one), "of-both printed two");
    assert_eq!(left(&two), "printed");
}

#[test]
fn controllers_relist_all_objects_after_missed_changes() {
    let mut world = World::new(Store::with_history(7, 4));
    let key = world.create(&deployment("i"));
    assert_eq!(world.sync(), "+2");
    world.store.delete(&key, &DeleteOptions::now(), at(1)).unwrap();
    world.create(&deployment("i").replace("name: web", "name: other"));
    for number in 0..9 {
        create(&world.store, config_map(&format!("m{number}")));
    }
    assert_eq!(world.sync(), "+2 -its manifest was removed");
    assert_eq!(world.sync(), "");
}
