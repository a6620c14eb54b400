//! ◆ A pod of the hub: its state in the store, and its last state after it left the store. Pure.

use std::sync::Arc;

use cluster::{Deleted, Object};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use crate::snapshot::{PodEnd, PodSnapshot};

/// A pod that is or was in the store.
pub(super) struct KnownPod {
    /// The object in the store; or its last state, if the pod was removed or replaced by another pod.
    pub(super) object: Arc<Object>,
    /// The last reported status, if the pod was no longer in the store.
    pub(super) status: Option<Arc<PodStatus>>,
    pub(super) is_in_store: bool,
    /// Why it was deleted, if it was.
    pub(super) deletion: Option<Deletion>,
    /// It was deleted before it had ended.
    pub(super) was_stopped: bool,
    /// It was deleted, and none of its containers runs.
    is_over: bool,
    /// How it is shown.
    pub(super) snapshot: Arc<PodSnapshot>,
}

/// Why a pod was deleted, which determines how it is shown after its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// A changed manifest or a controller removed it; it is only counted.
    Forgotten,
    /// The run ended it; its last state is shown.
    Stopped,
    /// It can never run; its last state is shown.
    Refused,
}

impl KnownPod {
    /// A new pod in the store.
    pub(super) fn new(object: Arc<Object>) -> Self {
        let snapshot = Arc::new(PodSnapshot::of(&object.value));
        Self {
            object,
            status: None,
            is_in_store: true,
            deletion: None,
            was_stopped: false,
            is_over: false,
            snapshot,
        }
    }

    /// Sets the object to the store's latest version.
    pub(super) fn set(&mut self, object: Arc<Object>) {
        let mut snapshot = match self.is_over {
            true => PodSnapshot::of(&without_deletion(&object.value)),
            false => PodSnapshot::of(&object.value),
        };
        let has_ended = snapshot.has_ended() || self.is_over;
        if self.was_stopped && has_ended && snapshot.phase != "Succeeded" {
            snapshot.end = PodEnd::Stopped;
        }
        self.snapshot = Arc::new(snapshot);
        self.object = object;
    }

    /// Records the deletion.
    pub(super) fn delete(&mut self, deletion: Deletion, deleted: Deleted) {
        self.was_stopped = !self.snapshot.has_ended() && deletion != Deletion::Refused;
        self.deletion = Some(deletion);
        self.is_in_store = !deleted.removed;
        self.set(deleted.object);
    }

    /// Sets a status that is not in the store.
    pub(super) fn set_status(&mut self, status: Value) {
        let mut object = (*self.object).clone();
        object.value["status"] = status;
        self.set(Arc::new(object));
    }

    /// The end of its grace period, if it is terminating.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        match self.snapshot.end {
            PodEnd::Ending(until) => Some(until),
            PodEnd::None | PodEnd::Stopped => None,
        }
    }

    /// Records that none of its containers runs.
    pub(super) fn set_over(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.set(self.object.clone());
        }
    }

    /// Records its removal: from now on it is shown without its deletion timestamp.
    pub(super) fn end(&mut self) {
        let mut object = (*self.object).clone();
        object.value = without_deletion(&object.value);
        (self.is_over, self.is_in_store) = (true, false);
        self.set(Arc::new(object));
    }
}

fn without_deletion(value: &Value) -> Value {
    let mut value = value.clone();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.retain(|field, _| !field.starts_with("deletion"));
    }
    value
}
