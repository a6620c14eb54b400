//! ◆ Resizes pods in place: CPU and memory of a pod change while its containers run.
//!
//! | state | owner | file below the pod's directory |
//! |---|---|---|
//! | desired: the spec of the source | source | |
//! | allocated: the resources granted by the node | sync loop | `allocated-resources.json` |
//! | actuated: the resources passed to the runtime | worker | `actuated-resources.json` |
//!
//! The sync loop grants a resize (`decision`, in the order of `queue`), and the pod's worker carries it out: the plan selects the
//! containers, `steps` determines the calls. The worker's pod always has the allocated resources.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/allocation.

pub mod actuated;
pub(crate) mod allocation;
pub(crate) mod decision;
pub(crate) mod files;
pub(crate) mod queue;
pub mod requests;
pub(crate) mod steps;

use api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The state of resizes that the sync loop sends to a pod's worker, with the pod and its allocated resources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResizeState {
    /// The condition of a resize that is not granted.
    pub(crate) pending: Option<ResizeCondition>,
    /// The number of granted resizes. A new one is in progress until it is carried out.
    pub(crate) granted: u64,
}

// The conditions of resizes.
//
// Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go.

/// The condition of a pod whose resize is not granted.
pub(crate) const PENDING: &str = "PodResizePending";
/// The condition of a pod whose resize is granted and not complete.
pub(crate) const IN_PROGRESS: &str = "PodResizeInProgress";

/// The reason of a resize that this node can never grant.
pub(crate) const INFEASIBLE: &str = "Infeasible";
/// The reason of a resize that may be granted later.
pub(crate) const DEFERRED: &str = "Deferred";
/// The reason of a resize that failed and is retried.
const ERROR: &str = "Error";

/// Why the node can never grant a resize.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Infeasible {
    /// The message of the condition.
    pub message: String,
    /// A one-word form of the message, for metrics.
    pub detail: &'static str,
}

/// One of the two conditions, while it is true.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResizeCondition {
    /// The reason; may be empty.
    pub(crate) reason: String,
    /// The message; may be empty.
    pub(crate) message: String,
    /// The generation of the pod that is resized; 0 if the pod has none.
    pub(crate) generation: i64,
    /// The time since which it has its reason.
    pub(crate) since: Timestamp,
    /// When it was last set.
    pub(crate) set_at: Timestamp,
}

impl ResizeCondition {
    /// The condition of this type that an earlier agent wrote to the pod's status. Its time is now, as after a restart of a kubelet
    /// (BackfillPodResizeConditions).
    pub(crate) fn restored(pod: &Pod, kind: &str, now: Timestamp) -> Option<Self> {
        let conditions = pod.api().status.as_ref()?.conditions.as_ref()?;
        let written = conditions.iter().find(|condition| condition.type_ == kind)?;
        Some(Self {
            reason: written.reason.clone().unwrap_or_default(),
            message: written.message.clone().unwrap_or_default(),
            generation: written.observed_generation.unwrap_or_default(),
            since: now,
            set_at: now,
        })
    }

    fn of(
        before: Option<&Self>,
        reason: &str,
        message: &str,
        generation: i64,
        now: Timestamp,
    ) -> Self {
        let since = before.filter(|before| before.reason == reason);
        Self {
            reason: reason.to_owned(),
            message: message.to_owned(),
            generation,
            since: since.map_or(now, |before| before.since),
            set_at: now,
        }
    }
}

/// Records that a resize is not granted. Returns whether the reason or the generation changed.
pub(crate) fn set_pending(
    pending: &mut Option<ResizeCondition>,
    reason: &str,
    message: &str,
    generation: i64,
    now: Timestamp,
) -> bool {
    let before = pending.take();
    let changed = before
        .as_ref()
        .is_none_or(|before| before.reason != reason || before.generation != generation);
    *pending = match before {
        Some(before) if !changed && before.message == message => Some(before),
        before => Some(ResizeCondition::of(before.as_ref(), reason, message, generation, now)),
    };
    changed
}

/// The true conditions of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResizeConditions {
    /// A resize waits to be granted.
    pub(crate) pending: Option<ResizeCondition>,
    /// A resize was granted and is not complete.
    pub(crate) in_progress: Option<ResizeCondition>,
}

impl ResizeConditions {
    /// Records that a resize was granted.
    pub(crate) fn granted(&mut self, generation: i64, now: Timestamp) {
        self.in_progress = Some(ResizeCondition::of(None, "", "", generation, now));
    }

    /// Records that a granted resize is not complete, unless that is already recorded.
    pub(crate) fn in_progress(&mut self, generation: i64, now: Timestamp) {
        self.in_progress.get_or_insert_with(|| ResizeCondition::of(None, "", "", generation, now));
    }

    /// Records that a step failed. Returns the generation that is resized, if the failure is new.
    pub(crate) fn failed(&mut self, message: &str, generation: i64, now: Timestamp) -> Option<i64> {
        let before = self.in_progress.take();
        let generation = before.as_ref().map_or(generation, |before| before.generation);
        let is_changed = before
            .as_ref()
            .is_none_or(|before| before.reason != ERROR || before.message != message);
        self.in_progress =
            Some(ResizeCondition::of(before.as_ref(), ERROR, message, generation, now));
        is_changed.then_some(generation)
    }

    /// Records that the granted resize is complete. Returns its generation.
    pub(crate) fn complete(&mut self) -> Option<i64> {
        Some(self.in_progress.take()?.generation)
    }

    /// The conditions for a status. `generation` is the pod's, if it has one.
    pub(crate) fn for_status(&self, generation: Option<i64>) -> Vec<PodCondition> {
        let condition = |kind: &str, from: &ResizeCondition| PodCondition {
            type_: kind.to_owned(),
            status: "True".to_owned(),
            reason: (!from.reason.is_empty()).then(|| from.reason.clone()),
            message: (!from.message.is_empty()).then(|| from.message.clone()),
            observed_generation: generation.and(Some(from.generation)).filter(|seen| *seen != 0),
            last_probe_time: Some(Time(from.set_at)),
            last_transition_time: Some(Time(from.since)),
        };
        let pending = self.pending.iter().map(|from| condition(PENDING, from));
        let in_progress = self.in_progress.iter().map(|from| condition(IN_PROGRESS, from));
        pending.chain(in_progress).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn pending_resize_is_reported_again_for_new_reason_or_generation() {
        let mut pending = None;
        assert!(set_pending(&mut pending, DEFERRED, "a", 1, at(1)));
        assert!(!set_pending(&mut pending, DEFERRED, "b", 1, at(2)));
        let seen = pending.clone().unwrap();
        assert_eq!((seen.message.as_str(), seen.since), ("b", at(1)));
        assert!(set_pending(&mut pending, DEFERRED, "b", 2, at(3)));
        assert_eq!(pending.clone().unwrap().since, at(1));
        assert!(set_pending(&mut pending, INFEASIBLE, "b", 2, at(4)));
        assert_eq!(pending.unwrap().since, at(4));
    }

    #[test]
    fn failure_keeps_the_generation_until_the_resize_is_complete() {
        let mut conditions = ResizeConditions::default();
        assert_eq!(conditions.complete(), None);
        conditions.granted(3, at(1));
        assert_eq!(conditions.failed("no", 4, at(2)), Some(3));
        assert_eq!(conditions.failed("no", 4, at(3)), None);
        conditions.in_progress(4, at(4));
        let shown = conditions.for_status(Some(4));
        assert_eq!(shown[0].type_, "PodResizeInProgress");
        assert_eq!(shown[0].reason.as_deref(), Some("Error"));
        assert_eq!(shown[0].observed_generation, Some(3));
        assert_eq!(conditions.complete(), Some(3));
        assert_eq!(conditions.for_status(Some(4)), []);
    }
}
