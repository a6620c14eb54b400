//! The objects of a run in one store, where manifests, controllers and the agent meet.
//!
//! Pods are created and deleted here, by manifests and controllers; the agent watches the store ([`StoreCluster`]), where its reports
//! become their statuses. A deleted pod stays in the store until the agent has removed it. Of one that was stopped, or can never
//! run, the last state stays here.

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
use crib_base::run_socket::Scale;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::EphemeralContainer;
use serde_json::Value;

use crate::reports::Reports;
use crate::shown::{PodEnd, Shown};
use crate::store_cluster::{StoreCluster, written};

mod known_pod;

pub(crate) use known_pod::Deletion;
use known_pod::KnownPod;

/// What changed manifests did to the objects that they have.
#[derive(Debug, Default)]
pub(super) struct ReplacedObjects {
    /// Those that existed, and have changed.
    pub(super) changed: Vec<Key>,
    /// Why others stay as they were, each in a sentence.
    pub(super) warnings: Vec<String>,
}

/// Where objects come from, for messages.
const STORE: &str = "store";

/// The store of a run, and the agent's part of it.
pub(super) struct Hub {
    store: Store,
    /// The node of all pods.
    node: String,
    /// The changes of pods.
    watch: Watch,
    /// The pods that the agent is to run, in the order of their creation.
    desired: Vec<Pod>,
    /// Why the others were deleted.
    deleted: Map<PodUid, &'static str>,
    /// The pods that are shown.
    pods: Map<PodUid, KnownPod>,
    /// How many pods were removed and are not shown any more.
    removed: usize,
    /// The objects of manifests that are no pods and create none.
    others: Set<Key>,
}

impl Hub {
    /// The hub of an empty store.
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

    /// The pods that the agent is to run.
    pub(super) fn desired(&self) -> &[Pod] {
        &self.desired
    }

    /// Why pods were deleted.
    pub(super) fn deleted(&self) -> &Map<PodUid, &'static str> {
        &self.deleted
    }

    /// The pods that are shown, as an API server would have them, in the order of namespaces and names. Beside a pod there may be
    /// one of the same name that ends.
    pub(super) fn pods(&self) -> Vec<Arc<Object>> {
        let mut pods: Vec<Arc<Object>> =
            self.pods.values().map(|known| known.object.clone()).collect();
        compact::sort_by(&mut pods, |one, other| one.key.cmp(&other.key));
        pods
    }

    /// What is shown of the pods.
    pub(super) fn shown(&self) -> Shown {
        let pods = self.pods.values().map(|known| known.shown.clone());
        Shown { pods: pods.collect(), removed: self.removed, next_job: None }
    }

    /// Whether a pod is shown, and was not told to end while it ran.
    pub(super) fn ended_by_itself(&self, uid: &PodUid) -> bool {
        self.pods.get(uid).is_some_and(|known| !known.was_stopped)
    }

    /// The pods that were told to end and have not, each with the end of its grace period.
    pub(super) fn ending(&self) -> impl Iterator<Item = (String, Timestamp)> {
        let pods = self.pods.values();
        pods.filter_map(|known| Some((known.shown.full_name(), known.ends_at()?)))
    }

    /// How long the pods may take to end, each by this grace period in seconds.
    pub(super) fn longest_end(&self, grace: impl Fn(&Pod) -> i64, now: Timestamp) -> Duration {
        let has_ended = |pod: &&Pod| {
            let known = self.pods.get(pod.uid());
            known.is_some_and(|known| known.shown.has_ended())
        };
        let runs = self.desired.iter().filter(|pod| !has_ended(pod)).map(grace);
        let ends = self.ending().map(|(_, until)| until.duration_since(now).as_secs());
        let longest = runs.chain(ends).max().unwrap_or_default();
        Duration::from_secs(u64::try_from(longest).unwrap_or_default())
    }

    /// The pods that can never run are tried again.
    pub(super) fn forget_refused(&mut self) {
        self.pods.retain(|_, known| known.is_in_store || known.deletion != Some(Deletion::Refused));
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

    /// Creates pods. One that has the name of another, which ends, takes its place in the store.
    pub(super) fn create(&mut self, pods: Vec<Pod>, now: Timestamp) {
        for pod in pods {
            let key = Key::pod(pod.namespace(), pod.name());
            // The agent still ends it.
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
            let object = written(self.store.update(value, Part::Main));
            if let Some((object, known)) = object.zip(self.pods.get_mut(pod.uid())) {
                known.set(object);
            }
        }
    }

    /// Adds an ephemeral container to a pod, as an API server does, and has the agent start it.
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

    /// Changes how many pods an object is to have, as its subresource does.
    pub(super) fn scale(&self, scale: &Scale) -> Result<(), String> {
        let kind = Kind::of(&scale.api_version, &scale.kind);
        let key = Key::new(kind, &scale.namespace, &scale.name);
        let scaled = self.store.scale(&key).and_then(|mut now| {
            let replicas = now["spec"]["replicas"].take();
            if let Some(expected) = scale.current_replicas.filter(|expected| replicas != *expected)
            {
                let why = format!("expected replicas to be {expected}, was {replicas}");
                return Err(cluster::Error::BadRequest(why));
            }
            now["spec"]["replicas"] = Value::from(scale.replicas);
            self.store.update_scale(&key, &now)
        });
        scaled.map(drop).map_err(|error| error.to_string())
    }

    /// Deletes the pods of which `why` knows why, each with its own grace period or that of `grace`.
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

    /// Shortens the grace periods of the pods that end.
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

    /// Takes what the agent has changed in the store, and reports, which say when a pod is over.
    pub(super) fn observe(&mut self, reports: &Reports, now: Timestamp) {
        self.follow();
        let (store, removed) = (&self.store, &mut self.removed);
        self.pods.retain(|uid, pod| {
            let report = reports.get(uid);
            // One that was stopped keeps what was seen last.
            if let Some(report) = report.filter(|_| !pod.is_in_store)
                && pod.shown.end != PodEnd::Stopped
                && pod.status.as_ref().is_none_or(|known| !Arc::ptr_eq(known, &report.status))
            {
                pod.status = Some(report.status.clone());
                pod.set_status(to_json(&*report.status));
            }
            if pod.deletion.is_some() && report.is_none_or(|report| report.finished) {
                pod.set_over();
            }
            // One that was deleted before the agent saw it never runs.
            let is_gone = report.is_none_or(|report| report.removed);
            let Some(deletion) = pod.deletion.filter(|_| is_gone) else {
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

    /// Takes the changes of the pods in the store.
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
                // The store does not remember what was missed.
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

    /// Creates objects whose pods controllers create.
    pub(super) fn create_workloads(&mut self, workloads: &[Workload], now: Timestamp) {
        for workload in workloads {
            written(self.store.create(without_cluster(workload.json()), now));
        }
    }

    /// Takes what has happened to these objects.
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

    /// Replaces the objects of manifests that are no pods and create none: those that are missing are deleted.
    pub(super) fn set_others(&mut self, values: Vec<Value>, now: Timestamp) -> ReplacedObjects {
        let (mut kept, mut replaced) = (Set::new(), ReplacedObjects::default());
        for value in values {
            let mut value = without_cluster(value);
            let Some(key) = written(Key::of(&value)) else {
                continue;
            };
            let set = match self.store.get(&key) {
                Ok(old) => {
                    // A manifest may have got another one: the object stays the same.
                    value["metadata"]["uid"] = Value::String(old.uid().to_owned());
                    let new = self.store.update(value, Part::Main);
                    match &new {
                        Ok(new) if new.version != old.version => replaced.changed.push(key.clone()),
                        Err(cluster::Error::Invalid { why, .. }) => {
                            replaced.warnings.push(stays(&key, &old.value, why));
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

    /// The objects of manifests that pods refer to, as they are in the store, for the agent. It binds claims itself.
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

/// A sentence about an object that the store does not change.
fn stays(key: &Key, old: &Value, why: &str) -> String {
    let object = format!("{} {}/{}", key.kind.name.to_lowercase(), key.namespace, key.name);
    match old["immutable"] == true {
        true => {
            format!("{object} is immutable and was not changed: give the new object another name")
        }
        false => format!("{object} was not changed: {why}"),
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

#[cfg(test)]
mod tests;
