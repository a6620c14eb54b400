//! ◆ A pod that the hub knows: as it is in the store, and as it is shown when it is not there any more. Pure.

use std::sync::Arc;

use cluster::{Deleted, Object};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use serde_json::Value;

use crate::shown::{PodEnd, ShownPod};

/// A pod that is in the store, or was.
pub(super) struct KnownPod {
    /// As it is in the store, or would be if another pod had not taken its place.
    pub(super) object: Arc<Object>,
    /// Its status there.
    pub(super) status: Option<Arc<PodStatus>>,
    pub(super) is_in_store: bool,
    /// What becomes of it, if it was deleted.
    pub(super) deletion: Option<Deletion>,
    /// It was told to end before it had ended by itself.
    pub(super) was_stopped: bool,
    /// It was told to end, and nothing of it runs any more.
    is_over: bool,
    /// How it is shown.
    pub(super) shown: Arc<ShownPod>,
}

/// What is left of a deleted pod when the agent has removed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deletion {
    /// A number: a changed manifest or a controller has no use for it.
    Forgotten,
    /// Its last state: the run ends.
    Stopped,
    /// Its last state: it can never run.
    Refused,
}

impl KnownPod {
    /// A new pod in the store.
    pub(super) fn new(object: Arc<Object>) -> Self {
        let shown = Arc::new(ShownPod::of(&object.value));
        Self {
            object,
            status: None,
            is_in_store: true,
            deletion: None,
            was_stopped: false,
            is_over: false,
            shown,
        }
    }

    /// Takes what the store has now.
    pub(super) fn set(&mut self, object: Arc<Object>) {
        let mut shown = match self.is_over {
            true => ShownPod::of(&without_deletion(&object.value)),
            false => ShownPod::of(&object.value),
        };
        let has_ended = shown.has_ended() || self.is_over;
        if self.was_stopped && has_ended && shown.phase != "Succeeded" {
            shown.end = PodEnd::Stopped;
        }
        self.shown = Arc::new(shown);
        self.object = object;
    }

    /// Takes what a delete made of it.
    pub(super) fn delete(&mut self, deletion: Deletion, deleted: Deleted) {
        self.was_stopped = !self.shown.has_ended() && deletion != Deletion::Refused;
        self.deletion = Some(deletion);
        self.is_in_store = !deleted.removed;
        self.set(deleted.object);
    }

    /// Takes a status that the store does not have.
    pub(super) fn set_status(&mut self, status: Value) {
        let mut object = (*self.object).clone();
        object.value["status"] = status;
        self.set(Arc::new(object));
    }

    /// Whether it was told to end, and has not.
    pub(super) fn ends_at(&self) -> Option<Timestamp> {
        match self.shown.end {
            PodEnd::Ending(until) => Some(until),
            PodEnd::None | PodEnd::Stopped => None,
        }
    }

    /// Nothing of it runs any more.
    pub(super) fn set_over(&mut self) {
        if !self.is_over {
            self.is_over = true;
            self.set(self.object.clone());
        }
    }

    /// Nothing is left of it: it is as if it had never been told to end, but for how it is shown.
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
