//! The controllers of a store: they watch the objects that create pods, decide, and write statuses and created objects.
//!
//! One owner runs all of them: it calls [`Manager::sync`] when the store or a pod has changed, or at the time that the last call
//! returned, and creates and deletes the pods that it returns. Then [`Manager::write`] writes the rest.
//!
//! Source: Kubernetes 1.36, cmd/kube-controller-manager.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use api::manifest::{Strictness, Workload, parse, to_json};
use api::pod::Pod;
use jiff::Timestamp;
use serde_json::Value;

use crate::apply::{Applied, REMOVED, REPLACED};
use crate::claims::{Claims, Directories};
use crate::controllers::{Changes, Controllers, CronStarts, Pods, Refused, since};
use crate::delete::DeleteOptions;
use crate::endpoint_slices::EndpointSlices;
use crate::error::Error;
use crate::garbage::{self, Step};
use crate::key::Key;
use crate::kind::Kind;
use crate::object::Object;
use crate::selection::Selection;
use crate::state::Event;
use crate::store::{Store, Watch};
use crate::write::Part;

/// The kinds of objects that create pods: group and name.
const WORKLOADS: [(&str, &str); 7] = [
    ("", "ReplicationController"),
    ("apps", "DaemonSet"),
    ("apps", "Deployment"),
    ("apps", "ReplicaSet"),
    ("apps", "StatefulSet"),
    ("batch", "CronJob"),
    ("batch", "Job"),
];

/// The maximum number of levels of owners per sync, and of attempts of a step that conflicts with other writes.
const LEVELS: usize = 32;

/// The origin of objects, for messages.
const STORE: &str = "store";

/// The controllers of a store.
pub struct Manager {
    store: Store,
    watch: Watch,
    controllers: Controllers,
    slices: EndpointSlices,
    claims: Claims,
    /// The objects that create pods, as last read.
    workloads: BTreeMap<Key, Arc<Object>>,
    /// The statuses of objects with controllers, as in the store; null for objects without one.
    statuses: BTreeMap<Key, Value>,
    /// Those of these objects that a controller created.
    created: BTreeSet<Key>,
    /// The store's errors since the last [`Manager::write`], and invalid objects.
    refused: Vec<Error>,
}

impl Manager {
    /// Creates the controllers of a store without objects that create pods. Names of pods depend on `seed`. Claims without a
    /// matching volume get `directories`.
    ///
    /// # Errors
    ///
    /// Never, unless more changes happen meanwhile than the store records.
    pub fn new(
        store: &Store,
        refused: Refused,
        starts: CronStarts,
        seed: u64,
        directories: Directories,
    ) -> Result<Self, Error> {
        let all = Selection::default();
        Ok(Self {
            watch: store.watch(all.clone(), store.list(&all).version)?,
            controllers: Controllers::new(Vec::new(), refused, starts, seed, Timestamp::UNIX_EPOCH),
            slices: EndpointSlices::new(store)?,
            claims: Claims::new(store, directories)?,
            store: store.clone(),
            workloads: BTreeMap::new(),
            statuses: BTreeMap::new(),
            created: BTreeSet::new(),
            refused: Vec::new(),
        })
    }

    /// The controllers.
    #[must_use]
    pub fn controllers(&self) -> &Controllers {
        &self.controllers
    }

    /// Reads the changes of the store and the states of pods, and decides.
    pub fn sync(&mut self, pods: &dyn Pods, now: Timestamp) -> Changes {
        let events = self.events();
        self.collect_garbage(&events, now);
        let applied = self.follow(events);
        let mut changes = self.controllers.change(applied, now);
        let Changes { created, deleted, messages, problems, again } =
            self.controllers.sync(pods, now);
        changes.created.extend(created);
        changes.deleted.extend(deleted);
        changes.messages.extend(messages);
        changes.problems.extend(problems);
        changes.again = again;
        for pod in &changes.created {
            self.create_claims(pod, now);
        }
        changes
    }

    /// Ends all objects: no further pods are created ([`Controllers::end`]).
    pub fn end(&mut self, pods: &dyn Pods, now: Timestamp) -> Changes {
        self.controllers.end(pods, now)
    }

    /// Creates the missing claims of a StatefulSet's pod: they outlive the pod.
    fn create_claims(&mut self, pod: &Pod, now: Timestamp) {
        for claim in self.controllers.claims_of(pod) {
            let claim = to_json(&claim);
            let is_there = Key::of(&claim).is_ok_and(|key| self.store.get(&key).is_ok());
            if !is_there {
                let created = self.store.create(claim, now);
                self.written(created);
            }
        }
    }

    /// Deletes the dependents of deleted objects, or removes these from their owners. Pods are left to their controllers, and
    /// objects whose owners never existed here, such as those in a manifest that a cluster printed, to their manifests.
    fn collect_garbage(&self, events: &[Event], now: Timestamp) {
        let gone = events.iter().filter(|event| matches!(event, Event::Deleted(_)));
        let gone = gone.map(Event::object).filter(|object| !object.key.kind.is_pod());
        let mut gone: BTreeSet<String> = gone.map(|object| object.uid().to_owned()).collect();
        if gone.is_empty() {
            return;
        }
        for _ in 0..LEVELS {
            let steps = garbage::plan(&self.store.list(&Selection::default()).items);
            let steps = steps.into_iter().filter(|step| {
                let object = step.object();
                let is_owned = object.owners().any(|(uid, _)| gone.contains(uid));
                is_owned && !object.key.kind.is_pod()
            });
            let steps: Vec<Step> = steps.collect();
            if steps.is_empty() {
                return;
            }
            for step in steps {
                // A step that conflicts with another write is planned again.
                if step.take(&self.store, now).is_ok() && matches!(step, Step::Delete(..)) {
                    gone.insert(step.object().uid().to_owned());
                }
            }
        }
    }

    /// The changes of the objects that create pods.
    fn follow(&mut self, events: Vec<Event>) -> Applied<Workload> {
        let mut applied = Applied::default();
        let mut gone = BTreeMap::new();
        for event in events {
            let object = Arc::clone(event.object());
            let key = object.key.clone();
            if !WORKLOADS.contains(&(&*key.kind.group, &*key.kind.name)) {
                continue;
            }
            if let Event::Deleted(_) = event {
                gone.extend(self.workloads.remove(&key).map(|old| (key, old)));
                continue;
            }
            let before = self.workloads.insert(key.clone(), Arc::clone(&object));
            match before {
                Some(before) if before.uid() == object.uid() => {
                    if differs(&before, &object) && self.controllers.knows(object.uid()) {
                        applied.updated.extend(self.written(workload(&object)));
                    }
                }
                other => {
                    let old = gone.remove(&key).or(other);
                    applied.ended.extend(old.and_then(|old| self.ended(&old, REPLACED)));
                    if !self.controllers.knows(object.uid()) && !self.is_made(&object) {
                        applied.started.extend(self.written(workload(&object)));
                    }
                }
            }
        }
        let removed = gone.values().filter_map(|old| self.ended(old, REMOVED));
        applied.ended.extend(removed.collect::<Vec<_>>());
        applied
    }

    /// An object that ended, and why, if it has a controller.
    fn ended(&mut self, old: &Object, why: &'static str) -> Option<(Workload, &'static str)> {
        let has_controller = self.controllers.knows(old.uid());
        has_controller.then(|| self.written(workload(old))).flatten().map(|old| (old, why))
    }

    /// Whether a controller created the object: the ReplicaSet of a Deployment, the Job of a CronJob.
    fn is_made(&self, object: &Object) -> bool {
        object.owners().any(|(uid, _)| self.controllers.knows(uid))
    }

    fn events(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        loop {
            match self.watch.try_next() {
                Ok(Some(event)) => events.push(event),
                Ok(None) => return events,
                // The store no longer has the missed changes.
                Err(_) => {
                    let all = Selection::default();
                    let list = self.store.list(&all);
                    let watch = self.store.watch(all, list.version);
                    let Some(watch) = self.written(watch) else {
                        return events;
                    };
                    self.watch = watch;
                    let is_there = |key: &Key| list.items.iter().any(|object| object.key == *key);
                    let gone = self.workloads.iter().filter(|(key, _)| !is_there(key));
                    let gone = gone.map(|(_, object)| Event::Deleted(Arc::clone(object)));
                    events = gone.collect();
                    events.extend(list.items.into_iter().map(Event::Modified));
                }
            }
        }
    }

    /// Records an error.
    fn written<T>(&mut self, result: Result<T, Error>) -> Option<T> {
        result.map_err(|error| self.refused.push(error)).ok()
    }

    /// Writes the statuses of all objects with controllers, the objects that controllers create, the bindings of claims, and
    /// EndpointSlices. Created objects that are no longer wanted are deleted. Returns the store's errors since the last call, and
    /// its invalid objects: they are ignored.
    pub fn write(&mut self, now: Timestamp) -> Vec<Error> {
        let mut before = std::mem::take(&mut self.statuses);
        let own = self.controllers.statuses(now).map(|(workload, status)| {
            let (api_version, kind) = workload.kind();
            let kind = Kind::of(api_version, kind);
            let key = Key::new(kind, workload.namespace(), workload.name());
            // A CronJob may have created it.
            let new = self.store.get(&key).is_err().then(|| workload.json());
            (key, new, status)
        });
        for (key, new, status) in own.collect::<Vec<_>>() {
            if let Some(object) = new {
                self.create(&key, object, now);
            }
            let old = before.remove(&key);
            self.set_status(key, status, old, now);
        }
        let synced = self.claims.sync();
        self.written(synced);
        let bound = self.claims.wanted().iter().cloned();
        let made: Vec<Value> = self.controllers.between(now).chain(bound).collect();
        for mut object in made {
            let fields = object.as_object_mut();
            let status = fields.and_then(|fields| fields.remove("status")).unwrap_or_default();
            let Some(key) = self.written(Key::of(&object)) else {
                continue;
            };
            match self.store.get(&key) {
                Ok(_) => {
                    let updated = self.store.update(object, Part::Main);
                    self.written(updated);
                }
                Err(_) => self.create(&key, object, now),
            }
            let old = before.remove(&key);
            if status.is_null() {
                self.statuses.insert(key, status);
            } else {
                self.set_status(key, status, old, now);
            }
        }
        for key in before.into_keys() {
            if self.created.remove(&key) {
                // It may have been deleted with its owner.
                let _ = self.store.delete(&key, &DeleteOptions::now(), now);
            }
        }
        let slices = self.slices.sync(now);
        self.written(slices);
        std::mem::take(&mut self.refused)
    }

    fn create(&mut self, key: &Key, object: Value, now: Timestamp) {
        let created = self.store.create(object, now);
        if self.written(created).is_some() {
            self.created.insert(key.clone());
        }
    }

    /// Writes the status of an object, unless it equals the `old` one.
    fn set_status(&mut self, key: Key, status: Value, old: Option<Value>, now: Timestamp) {
        let mut status = since(status, old.as_ref().unwrap_or(&Value::Null), now);
        // The store counts the changes of an object.
        if status.get("observedGeneration").is_some()
            && let Ok(object) = self.store.get(&key)
        {
            status["observedGeneration"] = object.value["metadata"]["generation"].clone();
        }
        if old.as_ref() != Some(&status) {
            let changed = self.store.change(&key, Part::Status, |value| {
                value["status"] = status.clone();
                Ok(())
            });
            self.written(changed);
        }
        self.statuses.insert(key, status);
    }
}

/// Whether an object differs in fields that its controller reads.
fn differs(before: &Object, after: &Object) -> bool {
    let part = |pointer: &str| before.value.pointer(pointer) != after.value.pointer(pointer);
    part("/spec") || part("/metadata/labels") || part("/metadata/annotations")
}

/// Decodes the object for a controller.
fn workload(object: &Object) -> Result<Workload, Error> {
    let parsed = parse(STORE, &object.value.to_string(), Strictness::Lenient);
    match (parsed.problems.first(), parsed.workloads.into_iter().next()) {
        (None, Some(workload)) => Ok(workload),
        (problem, _) => {
            let why = problem.map(ToString::to_string);
            Err(Error::invalid(&object.key, why.unwrap_or_else(|| "it creates no pods".to_owned())))
        }
    }
}
