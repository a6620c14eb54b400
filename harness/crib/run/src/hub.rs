//! The objects of a run in one store, where manifests, controllers and the agent meet.
//!
//! Pods are created and deleted here, by manifests and controllers; the agent gets those that are not deleted, and its reports
//! become their statuses. A deleted pod stays in the store until the agent has removed it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent::source::PodsSender;
use api::manifest::{Workload, to_json};
use api::pod::{Pod, PodUid};
use api::pod_update::with_ephemeral_container;
use cluster::controllers::since;
use cluster::{DeleteOptions, Error, Key, List, Object, Part, Selection, Store, Watch};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{EphemeralContainer, PodStatus};
use serde_json::Value;

use crate::reports::Reports;

/// The store of a run, and the agent's part of it.
pub(super) struct Hub {
    store: Store,
    /// The node of all pods.
    node: String,
    agent: PodsSender,
    /// The pods that the agent is to run, in the order of their creation.
    desired: Vec<Pod>,
    /// Why the others were deleted.
    deleted: BTreeMap<PodUid, &'static str>,
    /// The pods in the store.
    pods: BTreeMap<PodUid, InStore>,
    /// The objects of manifests that are no pods.
    others: BTreeSet<Key>,
    /// The statuses of objects with controllers, as they are in the store.
    statuses: BTreeMap<Key, Value>,
}

/// A pod in the store.
struct InStore {
    key: Key,
    /// Its status there.
    status: Option<Arc<PodStatus>>,
}

impl Hub {
    /// An empty store, whose pods go to `agent`. Generated uids depend on `seed`.
    pub(super) fn new(agent: PodsSender, node: String, seed: u64) -> Self {
        Self {
            store: Store::new(seed),
            node,
            agent,
            desired: Vec::new(),
            deleted: BTreeMap::new(),
            pods: BTreeMap::new(),
            others: BTreeSet::new(),
            statuses: BTreeMap::new(),
        }
    }

    /// The pods that the agent is to run.
    pub(super) fn desired(&self) -> &[Pod] {
        &self.desired
    }

    /// Why pods were deleted.
    pub(super) fn deleted(&self) -> &BTreeMap<PodUid, &'static str> {
        &self.deleted
    }

    /// The pods in the store, those that end among them, in the order of namespaces and names.
    pub(super) fn pods(&self) -> Vec<Arc<Object>> {
        self.store.list(&Selection::of(cluster::Kind::pod())).items
    }

    /// All objects, by kind, namespace and name.
    pub(super) fn objects(&self) -> Vec<Value> {
        let all = self.store.list(&Selection::default()).items;
        all.iter().map(|object| object.value.clone()).collect()
    }

    /// All objects, and the changes after them.
    pub(super) fn watch(&self) -> Option<(List, Watch)> {
        let list = self.store.list(&Selection::default());
        let watch = written(self.store.watch(Selection::default(), list.version))?;
        Some((list, watch))
    }

    /// Hands the agent its pods.
    pub(super) fn publish(&self) {
        self.agent.set(self.desired.clone());
    }

    /// Creates pods. One that has the name of another, which ends, takes its place in the store.
    pub(super) fn create(&mut self, pods: Vec<Pod>, now: Timestamp) {
        for pod in pods {
            let key = Key::pod(pod.namespace(), pod.name());
            // The agent still ends it.
            if self.store.get(&key).is_ok_and(|old| old.is_terminating()) {
                written(self.store.delete(&key, &DeleteOptions::now(), now));
            }
            let created = self.store.create(without_cluster(to_json(pod.api())), now);
            if written(created.and_then(|_| self.store.bind(&key, &self.node, now))).is_some() {
                self.pods.insert(pod.uid().clone(), InStore { key, status: None });
            }
            self.desired.push(pod);
        }
    }

    /// Replaces the specs and metadata of pods that there are.
    pub(super) fn update(&mut self, pods: &[Pod]) {
        for pod in pods {
            let Some(old) = self.desired.iter_mut().find(|old| old.uid() == pod.uid()) else {
                continue;
            };
            // Manifests have no ephemeral containers, and do not remove any.
            let pod = pod.with_ephemeral_containers_of(old);
            if !pod.is_updated_from(old) {
                continue;
            }
            old.clone_from(&pod);
            let mut value = without_cluster(to_json(pod.api()));
            value["spec"]["nodeName"] = Value::String(self.node.clone());
            written(self.store.update(value, Part::Main));
        }
    }

    /// Adds an ephemeral container to a pod, as an API server does, and has the agent start it.
    pub(super) fn add_ephemeral_container(
        &mut self,
        uid: &PodUid,
        container: EphemeralContainer,
    ) -> Result<(), String> {
        let pod = self.desired.iter_mut().find(|pod| pod.uid() == uid);
        let pod = pod.ok_or("the pod is ending, or not one of this run")?;
        let changed = with_ephemeral_container(pod, container)?;
        if let Some(InStore { key, .. }) = self.pods.get(uid) {
            let containers = to_json(&changed.spec().ephemeral_containers);
            let written = self.store.change(key, Part::EphemeralContainers, |value| {
                value["spec"]["ephemeralContainers"] = containers;
                Ok(())
            });
            written.map_err(|error| error.to_string())?;
        }
        *pod = changed;
        self.publish();
        Ok(())
    }

    /// Deletes the pods of which `why` knows why. Says whether there were any.
    pub(super) fn delete(
        &mut self,
        why: impl Fn(&Pod) -> Option<&'static str>,
        now: Timestamp,
    ) -> bool {
        let before = self.desired.len();
        let (pods, deleted, store) = (&self.pods, &mut self.deleted, &self.store);
        self.desired.retain(|pod| {
            let Some(why) = why(pod) else {
                return true;
            };
            deleted.insert(pod.uid().clone(), why);
            if let Some(InStore { key, .. }) = pods.get(pod.uid()) {
                let options = DeleteOptions::default().with_uid(pod.uid().as_str());
                written(store.delete(key, &options, now));
            }
            false
        });
        self.desired.len() < before
    }

    /// Takes the agent's reports: they are the statuses of the pods, and the end of those that were deleted.
    pub(super) fn observe(&mut self, reports: &Reports, now: Timestamp) {
        let (store, deleted) = (&self.store, &self.deleted);
        self.pods.retain(|uid, pod| {
            let report = reports.get(uid);
            // One that was deleted before the agent saw it never runs.
            if deleted.contains_key(uid) && report.is_none_or(|report| report.removed) {
                let options = DeleteOptions::now().with_uid(uid.as_str());
                // Another pod may have taken its place.
                let _ = store.delete(&pod.key, &options, now);
                return false;
            }
            let Some(report) = report else {
                return true;
            };
            let is_known =
                pod.status.as_ref().is_some_and(|known| Arc::ptr_eq(known, &report.status));
            if !is_known {
                pod.status = Some(report.status.clone());
                let status = to_json(&*report.status);
                // Another pod may have taken its place.
                let _ = store.change(&pod.key, Part::Status, |value| {
                    if value["metadata"]["uid"].as_str() != Some(uid.as_str()) {
                        return Err(Error::NotFound(pod.key.clone()));
                    }
                    value["status"] = status;
                    Ok(())
                });
            }
            true
        });
    }

    /// Takes the statuses of all objects with controllers. Controllers make some of these, and remove them.
    pub(super) fn set_statuses<'w>(
        &mut self,
        statuses: impl Iterator<Item = (&'w Workload, Value)>,
        now: Timestamp,
    ) {
        let mut before = std::mem::take(&mut self.statuses);
        for (workload, status) in statuses {
            let (api_version, kind) = workload.kind();
            let kind = cluster::Kind::of(api_version, kind);
            let key = Key::new(kind, workload.namespace(), workload.name());
            let old = before.remove(&key);
            let mut status = since(status, old.as_ref().unwrap_or(&Value::Null), now);
            if self.store.get(&key).is_err() {
                written(self.store.create(without_cluster(workload.json()), now));
            }
            // The controllers have the object of the manifests, and the store counts how often that changed.
            if status.get("observedGeneration").is_some()
                && let Ok(object) = self.store.get(&key)
            {
                status["observedGeneration"] = object.value["metadata"]["generation"].clone();
            }
            if old.as_ref() != Some(&status) {
                written(self.store.change(&key, Part::Status, |value| {
                    value["status"] = status.clone();
                    Ok(())
                }));
            }
            self.statuses.insert(key, status);
        }
        for key in before.into_keys().filter(|key| !self.others.contains(key)) {
            // One whose manifest was removed has gone already.
            let _ = self.store.delete(&key, &DeleteOptions::now(), now);
        }
    }

    /// Replaces the objects of manifests that are no pods: those that are missing are deleted.
    pub(super) fn set_others(&mut self, values: Vec<Value>, now: Timestamp) {
        let mut kept = BTreeSet::new();
        for value in values {
            let mut value = without_cluster(value);
            let Some(key) = written(Key::of(&value)) else {
                continue;
            };
            let set = match self.store.get(&key) {
                Ok(old) => {
                    // A manifest may have got another one: the object stays the same.
                    value["metadata"]["uid"] = Value::String(old.uid().to_owned());
                    self.store.update(value, Part::Main)
                }
                Err(_) => self.store.create(value, now),
            };
            written(set);
            kept.insert(key);
        }
        for key in self.others.difference(&kept) {
            written(self.store.delete(key, &DeleteOptions::now(), now));
        }
        self.others = kept;
    }
}

/// An object without what the cluster had added that it was printed in, as by `kubectl get -o yaml`: its version there, its node,
/// and finalizers, whose controllers are not here.
fn without_cluster(mut value: Value) -> Value {
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.retain(|field, _| field != "resourceVersion" && field != "finalizers");
    }
    if value["kind"] == "Pod"
        && let Some(spec) = value["spec"].as_object_mut()
    {
        spec.remove("nodeName");
    }
    value
}

/// What the store wrote. Manifests are validated, so that it refuses nothing; should it, the pods run nevertheless.
fn written<T>(result: Result<T, Error>) -> Option<T> {
    result.inspect_err(|error| tracing::error!(%error, "the store refused an object")).ok()
}

#[cfg(test)]
mod tests {
    use agent::source;
    use api::manifest::{Strictness, parse};
    use serde_json::json;

    use super::*;
    use crate::output::view::tests::{pod as report, reports};

    fn hub() -> Hub {
        Hub::new(source::fixed().1, "here".to_owned(), 1)
    }

    /// A pod as a cluster prints it.
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
        hub.observe(&reports(vec![running.clone()]), now());
        assert_eq!(hub.pods()[0].value["status"]["phase"], "Running");
        assert!(hub.delete(|_| Some("gone"), now()));
        hub.observe(&reports(vec![running.clone()]), now());
        assert!(hub.pods()[0].is_terminating(), "the agent still ends it");
        running.removed = true;
        hub.observe(&reports(vec![running]), now());
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
        let gone = hub.add_ephemeral_container(&PodUid::new("v"), container()).unwrap_err();
        assert!(gone.contains("not one of this run"), "{gone}");
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
        hub.delete(|_| Some("replaced"), now());
        hub.create(vec![pod("new")], now());
        let uids = |hub: &Hub| -> Vec<String> {
            hub.pods().iter().map(|object| object.uid().to_owned()).collect()
        };
        assert_eq!(uids(&hub), ["new"]);
        let ended = |uid: &str, removed: bool| {
            let mut report = report("p", "Running");
            (report.uid, report.removed) = (PodUid::new(uid), removed);
            report
        };
        hub.observe(&reports(vec![ended("old", true), ended("new", false)]), now());
        assert_eq!(uids(&hub), ["new"], "the end of the old one is not that of the new one");
    }

    #[test]
    fn status_observes_the_generation_of_its_object() {
        let mut hub = hub();
        let set = |hub: &mut Hub, replicas: usize| {
            let text = format!(
                "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: web}}\nspec:\n  replicas: {replicas}\n  \
                 selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
                 spec: {{containers: [{{name: c, image: i}}]}}\n"
            );
            let parsed = parse("m.yaml", &text, Strictness::Strict);
            hub.set_others(parsed.workloads.iter().map(Workload::json).collect(), now());
            let status = json!({"observedGeneration": 1, "replicas": 1});
            hub.set_statuses(parsed.workloads.iter().map(|it| (it, status.clone())), now());
            hub.objects()[0].clone()
        };
        for (replicas, generation) in [(1, 1), (3, 2), (3, 2), (4, 3)] {
            let object = set(&mut hub, replicas);
            assert_eq!(object["metadata"]["generation"], generation);
            assert_eq!(object["status"]["observedGeneration"], generation);
        }
    }

    #[test]
    fn changed_manifest_changes_its_object() {
        let mut hub = hub();
        let set = |hub: &mut Hub, replicas: usize| {
            let text = format!(
                "apiVersion: apps/v1\nkind: ReplicaSet\nmetadata: {{name: web, uid: u{replicas}}}\nspec:\n  replicas: {replicas}\n  \
                 selector: {{matchLabels: {{a: b}}}}\n  template:\n    metadata: {{labels: {{a: b}}}}\n    \
                 spec: {{containers: [{{name: c, image: i}}]}}\n"
            );
            let parsed = parse("m.yaml", &text, Strictness::Strict);
            assert_eq!(parsed.problems, []);
            hub.set_others(parsed.workloads.iter().map(Workload::json).collect(), now());
            hub.objects()
        };
        let before = set(&mut hub, 1);
        let after = set(&mut hub, 3);
        assert_eq!(after[0]["spec"]["replicas"], 3);
        assert_eq!(after[0]["metadata"]["uid"], before[0]["metadata"]["uid"]);
        hub.set_others(Vec::new(), now());
        assert_eq!(hub.objects(), [json!(null); 0]);
    }
}
