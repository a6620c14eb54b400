//! ◆ The effect of a delete on an object: it gets a deletion time, waits for its finalizers, or is removed. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/apiserver/pkg/registry/rest/delete.go BeforeDelete,
//! pkg/registry/core/pod/strategy.go CheckGracefulDelete.

use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use crate::error::Error;
use crate::object::{Object, metadata, set_metadata};
use crate::write::{generation, time};

/// The default grace period of a pod, in seconds.
const GRACE: i64 = 30;

/// The finalizers of objects that wait for their dependents, or orphan them.
pub(crate) const FOREGROUND: &str = "foregroundDeletion";
pub(crate) const ORPHAN: &str = "orphan";

/// The propagation policy for dependents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// They are deleted after the object.
    #[default]
    Background,
    /// They are deleted before the object.
    Foreground,
    /// They stay.
    Orphan,
}

/// The options of a delete.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeleteOptions {
    /// The grace period in seconds; by default the object's.
    pub grace_seconds: Option<i64>,
    /// The required uid.
    pub uid: Option<String>,
    /// The required version.
    pub version: Option<u64>,
    /// What happens to its dependents.
    pub propagation: Propagation,
}

impl DeleteOptions {
    /// A delete without a grace period.
    #[must_use]
    pub fn now() -> Self {
        Self { grace_seconds: Some(0), ..Self::default() }
    }

    /// A delete that requires this uid.
    #[must_use]
    pub fn with_uid(self, uid: &str) -> Self {
        Self { uid: Some(uid.to_owned()), ..self }
    }
}

/// The result of a delete.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// The object after the delete, or its last version.
    pub object: Arc<Object>,
    /// Whether it is removed. If not, its grace period has begun, or finalizers block its removal.
    pub removed: bool,
}

/// The effect of a delete.
#[must_use]
#[derive(Debug, PartialEq)]
pub(crate) enum Deletion {
    /// None: it was deleted before, and the delete requests no earlier end.
    Pending,
    /// It is changed to this.
    Marked(Value),
    /// It is removed; this is its last version.
    Removed(Value),
}

/// Decides the effect of a delete.
pub(crate) fn deletion(
    old: &Object,
    options: &DeleteOptions,
    now: Timestamp,
) -> Result<Deletion, Error> {
    expect(old, options)?;
    let mut value = old.value.clone();
    let mut grace = match marked_grace(old) {
        Some(before) => match options.grace_seconds.map(|requested| requested.max(0)) {
            Some(requested) if requested < before => Some(requested),
            Some(_) | None if before > 0 => return Ok(Deletion::Pending),
            Some(_) | None => Some(0),
        },
        None => None,
    };
    let was_marked = grace.is_some();
    let seconds = *grace.get_or_insert_with(|| first_grace(old, options));
    if !was_marked && let Some(finalizer) = finalizer(options.propagation) {
        let mut finalizers: Vec<&str> = old.finalizers().collect();
        finalizers.retain(|name| *name != FOREGROUND && *name != ORPHAN);
        finalizers.push(finalizer);
        set_metadata(&mut value, "finalizers", Some(json!(finalizers)));
    }
    let is_held = metadata(&value, "finalizers")
        .and_then(Value::as_array)
        .is_some_and(|finalizers| !finalizers.is_empty());
    if was_marked && is_held && marked_grace(old) == Some(0) {
        return Ok(Deletion::Pending);
    }
    let ends = now.checked_add(SignedDuration::from_secs(seconds)).unwrap_or(Timestamp::MAX);
    set_metadata(&mut value, "deletionTimestamp", Some(time(ends)));
    set_metadata(&mut value, "deletionGracePeriodSeconds", Some(json!(seconds)));
    let count = generation(&value);
    if !was_marked && count > 0 {
        set_metadata(&mut value, "generation", Some(json!(count + 1)));
    }
    Ok(match seconds > 0 || is_held {
        true => Deletion::Marked(value),
        false => Deletion::Removed(value),
    })
}

/// Whether an update allows the removal of a deleted object: no finalizer blocks it any longer, and its grace period is over.
pub(crate) fn is_released(old: &Object, new: &Value) -> bool {
    let held = metadata(new, "finalizers").and_then(Value::as_array);
    let was_held = old.finalizers().next().is_some();
    was_held
        && held.is_none_or(Vec::is_empty)
        && marked_grace(old).is_some_and(|seconds| seconds == 0)
}

fn expect(old: &Object, options: &DeleteOptions) -> Result<(), Error> {
    if let Some(uid) = options.uid.as_deref().filter(|uid| *uid != old.uid()) {
        let why = format!(
            "Precondition failed: UID in precondition: {uid}, UID in object meta: {}",
            old.uid()
        );
        return Err(Error::conflict(&old.key, why));
    }
    if let Some(version) = options.version.filter(|version| *version != old.version) {
        let why = format!(
            "Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {}",
            old.version
        );
        return Err(Error::conflict(&old.key, why));
    }
    Ok(())
}

/// The grace period of an object that was already deleted.
fn marked_grace(old: &Object) -> Option<i64> {
    let seconds = metadata(&old.value, "deletionGracePeriodSeconds").and_then(Value::as_i64);
    old.is_terminating().then(|| seconds.unwrap_or_default())
}

/// The grace period at the first delete: only pods have one, once they are bound to a node and until they have ended.
fn first_grace(old: &Object, options: &DeleteOptions) -> i64 {
    let text = |part: &str, field: &str| {
        let field = old.value.get(part).and_then(|part| part.get(field));
        field.and_then(Value::as_str).unwrap_or_default()
    };
    let has_node = !text("spec", "nodeName").is_empty();
    let has_ended = matches!(text("status", "phase"), "Succeeded" | "Failed");
    if !old.key.kind.is_pod() || !has_node || has_ended {
        return 0;
    }
    let own = old.value.get("spec").and_then(|spec| spec.get("terminationGracePeriodSeconds"));
    let own = own.and_then(Value::as_i64).unwrap_or(GRACE);
    match options.grace_seconds.unwrap_or(own) {
        negative if negative < 0 => 1,
        seconds => seconds,
    }
}

fn finalizer(propagation: Propagation) -> Option<&'static str> {
    match propagation {
        Propagation::Background => None,
        Propagation::Foreground => Some(FOREGROUND),
        Propagation::Orphan => Some(ORPHAN),
    }
}
