//! The objects of a run in one store, where manifests, controllers and the agent meet.
//!
//! Manifests and controllers create and delete pods here; the agent watches the store ([`StoreCluster`]), which records the agent's
//! reports as pod statuses. A deleted pod stays in the store until the agent has removed it. The hub keeps the last state of pods
//! that were stopped or can never run.

use std::sync::Arc;
use std::time::Duration;

use agent::objects::ObjectMap;
use api::manifest::{Strictness, Workload, parse, to_json};
use api::pod::{Pod, PodUid};
use api::pod_update::with_ephemeral_container;
use cluster::apply::{Applied, ManifestObject};
use cluster::claims::without_binding;
use cluster::{DeleteOptions, Event, Key, Kind, List, Object, Part, Selection, Store, Watch};
use compact::{Map, Set};
use crib_base::run_socket::{Restart, Scale, Undo};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::EphemeralContainer;
use serde_json::Value;

use crate::reports::Reports;
use crate::snapshot::{PodEnd, RunSnapshot};
use crate::store_cluster::{StoreCluster, written};

mod known_pod;
mod restarts;
mod rollbacks;

pub(crate) use known_pod::Deletion;
use known_pod::KnownPod;

/// The effect of changed manifests on the objects that are neither pods nor workloads.
#[derive(Debug, Default)]
pub(super) struct ReplacedObjects {
    /// The existing objects that were changed.
    pub(super) changed: Vec<Key>,
    /// Warnings about objects that were not changed.
    pub(super) warnings: Vec<String>,
}

/// The source of objects in error messages.
const STORE: &str = "store";

/// The store of a run, and the pods of the agent.
pub(super) struct Hub {
    store: Store,
    /// The name of the node of all pods.
    node: String,
    /// A watch of the pods.
    watch: Watch,
    /// The pods that the agent runs, in the order of their creation.
    desired: Vec<Pod>,
    /// The reasons for which pods were deleted.
    deleted: Map<PodUid, &'static str>,
    /// The pods that are shown.
    pods: Map<PodUid, KnownPod>,
    /// The number of removed pods that are no longer shown.
    removed: usize,
    /// The objects of manifests that are neither pods nor workloads.
    others: Set<Key>,
}

impl Hub {
    /// Creates the hub of an empty store.
    pub(super) fn new(cluster: &StoreCluster) -> Option<Self> {
        let store = cluster.store().clone();
        let pods = Selection::of(Kind::pod());
        let watch = written(store.watch(pods.clone(), store.list(&pods).version))?;
        Some(Self {
            store,
            node: cluster.node().to_owned(),
            watch,
            desired: Vec::new(),
            deleted: Map::new(),
            pods: Map::new(),
            removed: 0,
            others: Set::new(),
        })
    }

    /// The pods that the agent runs.
    pub(super) fn desired(&self) -> &[Pod] {
        &self.desired
    }

    /// The reasons for which pods were deleted.
    pub(super) fn deleted(&self) -> &Map<PodUid, &'static str> {
        &self.deleted
    }

    /// The pods that are shown, as in an API server, sorted by namespace and name. A terminating pod may be listed in addition to
    /// its successor of the same name.
    pub(super) fn pods(&self) -> Vec<Arc<Object>> {
        let mut pods: Vec<Arc<Object>> =
            self.pods.values().map(|known| known.object.clone()).collect();
        compact::sort_by(&mut pods, |one, other| one.key.cmp(&other.key));
        pods
    }

    /// The view of the pods.
    pub(super) fn snapshot(&self) -> RunSnapshot {
        let pods = self.pods.values().map(|known| known.snapshot.clone());
        RunSnapshot { pods: pods.collect(), removed: self.removed, next_job: None }
    }

    /// Whether a pod is shown and was not stopped while it ran.
    pub(super) fn ended_by_itself(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|known| !known.was_stopped)
    }

    /// The terminating pods, each with the end of its grace period.
    pub(super) fn ending(&self) -> impl Iterator<Item = (String, Timestamp)> {
        let pods = self.pods.values();
        pods.filter_map(|known| Some((known.snapshot.full_name(), known.ends_at()?)))
    }

    /// The time until the last pod must have ended. `grace` returns the grace period of a pod in seconds.
    pub(super) fn max_termination_time(
        &self,
        grace: impl Fn(&Pod) -> i64,
        now: Timestamp,
    ) -> Duration {
        let has_ended = |pod: &&Pod| {
            let known = self.pods.get(pod.uid());
            known.is_some_and(|known| known.snapshot.has_ended())
        };
        let runs = self.desired.iter().filter(|pod| !has_ended(pod)).map(grace);
        let ends = self.ending().map(|(_, until)| until.duration_since(now).as_secs());
        let longest = runs.chain(ends).max().unwrap_or_default();
        Duration::from_secs(u64::try_from(longest).unwrap_or_default())
    }

    /// Forgets the pods that could never run, so that they are retried.
    pub(super) fn forget_refused(&mut self) {
        self.pods.retain(|_, known| known.is_in_store || known.deletion != Some(Deletion::Refused));
    }

    /// All objects, sorted by kind, namespace and name.
    pub(super) fn objects(&self) -> Vec<Value> {
        let all = self.store.list(&Selection::default()).items;
        all.iter().map(|object| object.value.clone()).collect()
    }

    /// All objects, and a watch of later changes.
    pub(super) fn watch(&self) -> Option<(List, Watch)> {
        let list = self.store.list(&Selection::default());
        let watch = written(self.store.watch(Selection::default(), list.version))?;
        Some((list, watch))
    }

    /// Creates pods. A pod replaces a terminating pod of the same name in the store.
    pub(super) fn create(&mut self, pods: Vec<Pod>, now: Timestamp) {
        for pod in pods {
            let key = Key::pod(pod.namespace(), pod.name());
            // The agent continues to terminate the old pod.
            if let Some(old) = self.store.get(&key).ok().filter(|old| old.is_terminating()) {
                written(self.store.delete(&key, &DeleteOptions::now(), now));
                if let Some(known) = self.pods.get_mut(&PodUid::new(old.uid())) {
                    known.is_in_store = false;
                }
            }
            let created = self.store.create(without_cluster(to_json(pod.api())), now);
            let bound = created.and_then(|_| self.store.bind(&key, &self.node, now));
            if let Some(object) = written(bound) {
                self.pods.insert(pod.uid().clone(), KnownPod::new(object));
            }
            self.desired.push(pod);
        }
    }

    /// Updates the specs and metadata of existing pods.
    pub(super) fn update(&mut self, pods: &[Pod]) {
        for pod in pods {
            let Some(old) = self.desired.iter_mut().find(|old| old.uid() == pod.uid()) else {
                continue;
            };
            // A manifest does not contain the ephemeral containers that were added; they are kept.
            let pod = pod.with_ephemeral_containers_of(old);
            if !pod.is_updated_from(old) {
                continue;
            }
            old.clone_from(&pod);
            let mut value = without_cluster(to_json(pod.api()));
            value["spec"]["nodeName"] = Value::String(self.node.clone());
            let object = written(self.store.update(value, Part::Main));
            if let Some((object, known)) = object.zip(self.pods.get_mut(pod.uid())) {
                known.set(object);
            }
        }
    }

    /// Adds an ephemeral container to a pod, as an API server does; the agent starts it.
    pub(super) fn add_ephemeral_container(
        &mut self,
        uid: &PodUid,
        container: EphemeralContainer,
    ) -> Result<(), String> {
        let pod = self.desired.iter_mut().find(|pod| pod.uid() == uid);
        let pod = pod.ok_or("the pod is terminating or does not belong to this run")?;
        let changed = with_ephemeral_container(pod, container)?;
        if let Some(known) = self.pods.get_mut(uid) {
            let containers = to_json(&changed.spec().ephemeral_containers);
            let key = known.object.key.clone();
            let written = self.store.change(&key, Part::EphemeralContainers, |value| {
                value["spec"]["ephemeralContainers"] = containers;
                Ok(())
            });
            known.set(written.map_err(|error| error.to_string())?);
        }
        *pod = changed;
        Ok(())
    }

    /// Sets the number of replicas of an object, as the scale subresource does.
    pub(super) fn scale(&self, scale: &Scale) -> Result<(), String> {
        let kind = Kind::of(&scale.api_version, &scale.kind);
        let key = Key::new(kind, &scale.namespace, &scale.name);
        let scaled = self.store.scale(&key, scale.replicas, scale.current_replicas);
        scaled.map(drop).map_err(|error| error.to_string())
    }

    /// Replaces the pods of a workload, by a change of its pod template.
    pub(super) fn restart(&self, restart: &Restart, now: Timestamp) -> Result<(), String> {
        let kind = Kind::of(&restart.api_version, &restart.kind);
        let key = Key::new(kind, &restart.namespace, &restart.name);
        let restarted = self.store.change(&key, Part::Main, |value| {
            restarts::mark(value, now).map_err(|why| cluster::Error::BadRequest(why.to_owned()))
        });
        restarted.map(drop).map_err(|error| error.to_string())
    }

    /// Restores the pod template of an earlier revision of a Deployment.
    pub(super) fn undo(&self, undo: &Undo) -> Result<(), String> {
        let kind = Kind::of(&undo.api_version, &undo.kind);
        let key = Key::new(kind, &undo.namespace, &undo.name);
        let sets = self.store.list(&Selection::of(Kind::of("apps/v1", "ReplicaSet"))).items;
        let restored = self.store.change(&key, Part::Main, |value| {
            let sets = sets.iter().map(|set| &set.value);
            rollbacks::restore(value, sets, undo.revision).map_err(cluster::Error::BadRequest)
        });
        restored.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes the pods for which `why` returns a reason, each with the grace period that `grace` returns, or else its own.
    pub(super) fn delete(
        &mut self,
        why: impl Fn(&Pod) -> Option<&'static str>,
        grace: impl Fn(&Pod) -> Option<i64>,
        deletion: Deletion,
        now: Timestamp,
    ) {
        let mut kept = Vec::new();
        for pod in std::mem::take(&mut self.desired) {
            let Some(why) = why(&pod) else {
                kept.push(pod);
                continue;
            };
            self.deleted.insert(pod.uid().clone(), why);
            let grace_seconds = grace(&pod);
            if let Some(known) = self.pods.get_mut(pod.uid()) {
                let options = DeleteOptions { grace_seconds, ..DeleteOptions::default() };
                let options = options.with_uid(pod.uid().as_str());
                if let Some(deleted) = written(self.store.delete(&known.object.key, &options, now))
                {
                    known.delete(deletion, deleted);
                }
            }
        }
        self.desired = kept;
    }

    /// Shortens the grace periods of the terminating pods.
    pub(super) fn shorten(&mut self, seconds: i64, now: Timestamp) {
        for known in self.pods.values_mut() {
            if known.is_in_store && known.ends_at().is_some() {
                let options =
                    DeleteOptions { grace_seconds: Some(seconds), ..DeleteOptions::default() };
                if let Some(deleted) = written(self.store.delete(&known.object.key, &options, now))
                {
                    known.set(deleted.object);
                }
            }
        }
    }

    /// Applies the store's changes of pods, and the agent's reports, which show which pods have ended.
    pub(super) fn observe(&mut self, reports: &Reports, now: Timestamp) {
        self.follow();
        let (store, removed) = (&self.store, &mut self.removed);
        self.pods.retain(|uid, pod| {
            let report = reports.get(uid);
            // A stopped pod keeps its last status.
            if let Some(report) = report.filter(|_| !pod.is_in_store)
                && pod.snapshot.end != PodEnd::Stopped
                && pod.status.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &report.status))
            {
                pod.status = Some(report.status.clone());
                pod.set_status(to_json(&*report.status));
            }
            if pod.deletion.is_some() && report.is_none_or(|report| report.finished) {
                pod.set_over();
            }
            // A pod that was deleted before the agent saw it never runs.
            let is_removed = report.is_none_or(|report| report.removed);
            let Some(deletion) = pod.deletion.filter(|_| is_removed) else {
                return true;
            };
            if pod.is_in_store {
                written(store.delete(&pod.object.key, &DeleteOptions::now(), now));
            }
            if pod.is_in_store || pod.object.is_terminating() {
                pod.end();
            }
            *removed += usize::from(deletion == Deletion::Forgotten);
            deletion != Deletion::Forgotten
        });
    }

    /// Applies the watch events of pods.
    fn follow(&mut self) {
        loop {
            match self.watch.try_next() {
                Ok(Some(Event::Added(object) | Event::Modified(object))) => {
                    if let Some(known) = self.pods.get_mut(&PodUid::new(object.uid()))
                        && known.object.version < object.version
                    {
                        known.set(object);
                    }
                }
                Ok(Some(Event::Deleted(object))) => {
                    if let Some(known) = self.pods.get_mut(&PodUid::new(object.uid())) {
                        known.is_in_store = false;
                    }
                }
                Ok(None) => return,
                // The watch has missed changes that the store no longer has; list the pods again.
                Err(_) => {
                    let selection = Selection::of(Kind::pod());
                    let list = self.store.list(&selection);
                    let watch = written(self.store.watch(selection, list.version));
                    let Some(watch) = watch else {
                        return;
                    };
                    self.watch = watch;
                    self.set_all(&list);
                }
            }
        }
    }

    fn set_all(&mut self, list: &List) {
        let objects = list.items.iter().map(|object| (object.uid(), object));
        let objects: Map<&str, &Arc<Object>> = objects.collect();
        for (uid, known) in &mut self.pods {
            match objects.get(uid.as_str()) {
                Some(object) if known.object.version < object.version => {
                    known.set(Arc::clone(object))
                }
                Some(_) => {}
                None => known.is_in_store = false,
            }
        }
    }

    /// Creates workloads.
    pub(super) fn create_workloads(&mut self, workloads: &[Workload], now: Timestamp) {
        for workload in workloads {
            written(self.store.create(without_cluster(workload.json()), now));
        }
    }

    /// Applies changes of workloads.
    pub(super) fn apply_workloads(&mut self, applied: &Applied<Workload>, now: Timestamp) {
        for (old, _) in &applied.ended {
            let options = DeleteOptions::now().with_uid(ManifestObject::uid(old));
            written(
                written(Key::of(&old.json()))
                    .map_or(Ok(()), |key| self.store.delete(&key, &options, now).map(drop)),
            );
        }
        for workload in &applied.updated {
            written(self.store.update(without_cluster(workload.json()), Part::Main));
        }
        self.create_workloads(&applied.started, now);
    }

    /// Replaces the objects of manifests that are neither pods nor workloads; deletes the ones that are missing in `values`.
    pub(super) fn set_objects(&mut self, values: Vec<Value>, now: Timestamp) -> ReplacedObjects {
        let (mut kept, mut replaced) = (Set::new(), ReplacedObjects::default());
        for value in values {
            let mut value = without_cluster(value);
            let Some(key) = written(Key::of(&value)) else {
                continue;
            };
            let set = match self.store.get(&key) {
                Ok(old) => {
                    // A changed manifest may set or generate a different uid, but the object keeps its uid.
                    value["metadata"]["uid"] = Value::String(old.uid().to_owned());
                    let new = self.store.update(value, Part::Main);
                    match &new {
                        Ok(new) if new.version != old.version => replaced.changed.push(key.clone()),
                        Err(cluster::Error::Invalid { why, .. }) => {
                            replaced.warnings.push(immutable_warning(&key, &old.value, why));
                            kept.insert(key);
                            continue;
                        }
                        Ok(_) | Err(_) => {}
                    }
                    new
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
        replaced
    }

    /// The store's objects that pods refer to, for the agent. The agent binds claims itself, so existing bindings are left out.
    pub(super) fn referred(&self) -> ObjectMap {
        let mut referred = ObjectMap::default();
        for key in &self.others {
            let Some(object) = written(self.store.get(key)) else {
                continue;
            };
            let mut value = object.value.clone();
            without_binding(&mut value);
            let parsed = parse(STORE, &value.to_string(), Strictness::Lenient);
            referred.extend(parsed.objects);
        }
        let sets = Selection::of(Kind::of("apps/v1", "StatefulSet"));
        for set in self.store.list(&sets).items {
            let parsed = parse(STORE, &set.value.to_string(), Strictness::Lenient);
            parsed.workloads.iter().for_each(|set| referred.insert_claims_of(set));
        }
        referred
    }
}

/// A message about an object whose change the store rejected.
fn immutable_warning(key: &Key, old: &Value, why: &str) -> String {
    let object = format!("{} {}/{}", key.kind.name.to_lowercase(), key.namespace, key.name);
    match old["immutable"] == true {
        true => {
            format!("{object} is immutable and was not changed: give the new object another name")
        }
        false => format!("{object} was not changed: {why}"),
    }
}

/// The object without the fields that a cluster added, which `kubectl get -o yaml` prints: its resource version, its node, and its
/// finalizers, whose controllers do not exist here.
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

#[cfg(test)]
mod tests;
