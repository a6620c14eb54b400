//! ◆ The pods of a controller as it sees them, and what it decides about them. Pure.

use api::pod::{Pod, PodUid};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::PodStatus;

/// A pod that a controller created.
#[derive(Clone, Debug)]
pub struct OwnedPod {
    /// The pod.
    pub pod: Pod,
    /// Its ordinal or completion index, where the controller counts them.
    pub index: Option<u32>,
    /// Its latest status.
    pub status: PodStatus,
    /// Since when it is ready.
    pub ready_since: Option<Timestamp>,
    /// When it ended: nothing of it runs or will run.
    pub ended: Option<Timestamp>,
    /// The controller has deleted it.
    pub is_deleted: bool,
    /// Its Job failed while it ran, and counts it as failed, however it ends.
    pub failed_with_job: bool,
    /// The hash of the template that it was made from.
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

    /// When it has been, or will have been, ready for that many seconds.
    pub(super) fn available_at(&self, min_ready_seconds: Option<i32>) -> Option<Timestamp> {
        let settle = SignedDuration::from_secs(i64::from(min_ready_seconds.unwrap_or_default()));
        self.ready_since?.checked_add(settle).ok()
    }

    /// Its end, and why.
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

    /// Whether it ended in another way.
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

/// How far an object is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It has more to do.
    Open,
    /// It has done what it was for.
    Complete(Reason),
    /// It can do no more.
    Failed(Reason),
}

/// Why an object is over, as in the condition of its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reason {
    /// One word.
    pub reason: &'static str,
    /// A sentence.
    pub message: String,
}

impl Reason {
    /// A reason in a word and a sentence.
    pub fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// What is to be done for an object now.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The changes.
    pub actions: Vec<Action>,
    /// When time alone changes the plan.
    pub again: Option<Timestamp>,
    /// How far the object is.
    pub outcome: Outcome,
    /// How many missing pods do not fit on the node.
    pub unplaced: usize,
}

impl Plan {
    /// A plan for an object that has more to do.
    pub fn open(actions: Vec<Action>, again: Option<Timestamp>) -> Self {
        Self { actions, again, outcome: Outcome::Open, unplaced: 0 }
    }

    /// Ends what still runs.
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
