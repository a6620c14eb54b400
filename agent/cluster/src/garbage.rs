//! ◆ Plans what happens to objects whose owners are deleted. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/garbagecollector/garbagecollector.go attemptToDeleteItem, attemptToOrphan.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::{Value, json};

use crate::delete::{DeleteOptions, FOREGROUND, ORPHAN, Propagation};
use crate::error::Error;
use crate::object::{Object, metadata, set_metadata};
use crate::store::Store;
use crate::write::Part;

/// A step of garbage collection.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Delete an object whose owners no longer exist, or one that an owner waits for.
    Delete(Arc<Object>, Propagation),
    /// Remove the owners with these uids from an object, which is kept.
    Disown(Arc<Object>, BTreeSet<String>),
    /// Remove a finalizer, because nothing blocks it any more.
    Finalize(Arc<Object>, &'static str),
}

/// Plans the next steps. An empty plan stays empty until another change.
#[must_use]
pub fn plan(objects: &[Arc<Object>]) -> Vec<Step> {
    let by_uid: BTreeMap<&str, &Arc<Object>> =
        objects.iter().map(|object| (object.uid(), object)).collect();
    let mut dependents: BTreeMap<&str, Vec<&Arc<Object>>> = BTreeMap::new();
    for object in objects {
        for (owner, _) in object.owners() {
            dependents.entry(owner).or_default().push(object);
        }
    }
    let of = |owner: &Object| dependents.get(owner.uid()).map(Vec::as_slice).unwrap_or_default();
    let mut steps = Vec::new();
    for object in objects {
        if object.is_terminating() && object.finalizers().any(|name| name == ORPHAN) {
            let uid = BTreeSet::from([object.uid().to_owned()]);
            let all = of(object).iter();
            steps.extend(all.map(|it| Step::Disown(Arc::clone(it), uid.clone())));
            if of(object).is_empty() {
                steps.push(Step::Finalize(object.clone(), ORPHAN));
            }
        }
        if object.is_terminating() && object.finalizers().any(|name| name == FOREGROUND) {
            let living = of(object).iter().filter(|it| !it.is_terminating());
            steps.extend(living.map(|it| Step::Delete(Arc::clone(it), Propagation::Foreground)));
            let blocks = |it: &Arc<Object>| {
                let mut owners = it.owners();
                owners.any(|(uid, blocks)| uid == object.uid() && blocks)
            };
            if !of(object).iter().any(|it| blocks(it)) {
                steps.push(Step::Finalize(object.clone(), FOREGROUND));
            }
        }
        let owners: BTreeSet<&str> = object.owners().map(|(uid, _)| uid).collect();
        let gone = owners.iter().filter(|uid| !by_uid.contains_key(**uid));
        let gone: BTreeSet<String> = gone.map(|uid| (*uid).to_owned()).collect();
        if gone.is_empty() || object.is_terminating() {
            continue;
        }
        steps.push(match gone.len() == owners.len() {
            true => Step::Delete(object.clone(), Propagation::Background),
            false => Step::Disown(object.clone(), gone),
        });
    }
    steps
}

impl Step {
    /// The object of the step.
    #[must_use]
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Delete(object, _) | Self::Disown(object, _) | Self::Finalize(object, _) => object,
        }
    }

    /// Carries out the step. If another write came first, it fails with a conflict, and the next plan takes the new state into
    /// account.
    pub fn take(&self, store: &Store, now: Timestamp) -> Result<(), Error> {
        match self {
            Self::Delete(object, propagation) => {
                let options =
                    DeleteOptions { propagation: *propagation, ..DeleteOptions::default() };
                let options = options.with_uid(object.uid());
                store.delete(&object.key, &options, now).map(|_| ())
            }
            Self::Disown(object, uids) => {
                let mut value = object.value.clone();
                let owners = metadata(&value, "ownerReferences").and_then(Value::as_array);
                let mut owners = owners.cloned().unwrap_or_default();
                owners.retain(|owner| {
                    let uid = owner.get("uid").and_then(Value::as_str).unwrap_or_default();
                    !uids.contains(uid)
                });
                let owners = (!owners.is_empty()).then_some(Value::Array(owners));
                set_metadata(&mut value, "ownerReferences", owners);
                store.update(value, Part::Main).map(|_| ())
            }
            Self::Finalize(object, finalizer) => {
                let mut value = object.value.clone();
                let others: Vec<&str> =
                    object.finalizers().filter(|name| name != finalizer).collect();
                set_metadata(&mut value, "finalizers", Some(json!(others)));
                store.update(value, Part::Main).map(|_| ())
            }
        }
    }
}
