//! ◆ The pods of a controller in its view, and its decisions about them. Pure.

use api::pod::{Pod, PodUid};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;

/// A pod that a controller created.
#[derive(Clone, Debug)]
pub struct OwnedPod {
    /// The pod.
    pub pod: Pod,
    /// Its ordinal or completion index, if the controller numbers its pods.
    pub index: Option<u32>,
    /// Its latest status.
    pub status: PodStatus,
    /// The time since which it is ready.
    pub ready_since: Option<Timestamp>,
    /// When it ended: nothing of it runs or will run.
    pub ended: Option<Timestamp>,
    /// Whether the controller has deleted it.
    pub is_deleted: bool,
    /// Whether its Job failed while it ran: then it counts as failed, however it ends.
    pub failed_with_job: bool,
    /// The hash of its template.
    pub revision: String,
}

impl OwnedPod {
    /// A pod that the agent has not seen yet.
    #[must_use]
    pub fn new(pod: Pod, index: Option<u32>, revision: &str) -> Self {
        Self {
            pod,
            index,
            status: PodStatus::default(),
            ready_since: None,
            ended: None,
            is_deleted: false,
            failed_with_job: false,
            revision: revision.to_owned(),
        }
    }

    /// Whether it runs or will run.
    #[must_use]
    pub fn is_active(&self) -> bool {
        self.ended.is_none() && !self.is_deleted
    }

    /// When it has been, or will have been, ready for this many seconds.
    pub(super) fn available_at(&self, min_ready_seconds: Option<i32>) -> Option<Timestamp> {
        let settle = SignedDuration::from_secs(i64::from(min_ready_seconds.unwrap_or_default()));
        self.ready_since?.checked_add(settle).ok()
    }

    /// Its deletion for this reason.
    #[must_use]
    pub fn delete(&self, why: &'static str) -> Action {
        Action::Delete(self.pod.uid().clone(), why)
    }

    /// Whether all its containers succeeded, before its Job failed.
    #[must_use]
    pub fn has_succeeded(&self) -> bool {
        self.ended.is_some()
            && !self.failed_with_job
            && self.status.phase.as_deref() == Some("Succeeded")
    }

    /// Whether it ended without success.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.ended.is_some() && !self.is_deleted && !self.has_succeeded()
    }
}

/// A controller's next action for its object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Create a pod, with this ordinal or completion index.
    Create(Option<u32>),
    /// Delete a pod, for this reason.
    Delete(PodUid, &'static str),
}

/// The progress of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has more to do.
    Open,
    /// It is complete.
    Complete(Reason),
    /// It has failed.
    Failed(Reason),
}

/// Why an object has ended, as in the condition of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// The reason, as one word.
    pub reason: &'static str,
    /// The message, as a sentence.
    pub message: String,
}

impl Reason {
    /// A reason with a message.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// The next actions for an object.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The actions.
    pub actions: Vec<Action>,
    /// When the plan changes by time alone.
    pub again: Option<Timestamp>,
    /// The progress of the object.
    pub outcome: Outcome,
    /// The number of missing pods that do not fit on the node.
    pub unplaced: usize,
}

impl Plan {
    /// A plan for an object that has more to do.
    pub fn open(actions: Vec<Action>, again: Option<Timestamp>) -> Self {
        Self { actions, again, outcome: Outcome::Open, unplaced: 0 }
    }

    /// A plan that deletes all running pods.
    pub fn over(pods: &[OwnedPod], why: &'static str, outcome: Outcome) -> Self {
        let active = pods.iter().filter(|pod| pod.is_active());
        let actions = active.map(|pod| pod.delete(why)).collect();
        Self { outcome, ..Self::open(actions, None) }
    }
}

/// The earlier of two times.
#[must_use]
pub fn earlier(one: Option<Timestamp>, other: Option<Timestamp>) -> Option<Timestamp> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
