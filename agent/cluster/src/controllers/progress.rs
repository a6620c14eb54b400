//! ◆ The progress of a Deployment's rollout, and when it has taken too long. Pure.
//!
//! Source: Kubernetes 1.36, syncRolloutStatus of pkg/controller/deployment/progress.go, and DeploymentComplete,
//! DeploymentProgressing and DeploymentTimedOut of util/deployment_util.go.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::apps::v1::DeploymentSpec;
use serde_json::{Value, json};

use super::status::{Counts, time};

/// An API server's default of `progressDeadlineSeconds`.
const DEFAULT_DEADLINE: i32 = 600;
/// The value for no deadline.
const NO_DEADLINE: i32 = i32::MAX;

/// The progress of the rollout of one template.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Progress {
    /// The hash of the template.
    revision: String,
    counts: Counts,
    /// When pods last were added, removed, or became ready or available as desired.
    last: Timestamp,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Going,
    /// All pods were available; a pod that fails later does not restart the rollout.
    Complete,
    TimedOut,
}

impl Progress {
    /// The start of a rollout.
    pub(super) fn new(revision: &str, counts: Counts, now: Timestamp) -> Self {
        Self { revision: revision.to_owned(), counts, last: now, state: State::Going }
    }

    /// Records the current pods.
    pub(super) fn observe(
        &mut self,
        spec: &DeploymentSpec,
        revision: &str,
        counts: Counts,
        now: Timestamp,
    ) {
        if self.revision != revision {
            *self = Self::new(revision, counts, now);
        }
        let old = std::mem::replace(&mut self.counts, counts);
        if self.state == State::Complete && counts.replicas == counts.updated {
            return;
        }
        let wanted = usize::try_from(spec.replicas.unwrap_or(1)).unwrap_or_default();
        let earlier = |counts: Counts| counts.replicas - counts.updated;
        let has_progressed = counts.updated > old.updated
            || earlier(counts) < earlier(old)
            || counts.ready > old.ready
            || counts.available > old.available;
        self.state = match self.state {
            _ if [counts.replicas, counts.updated, counts.available] == [wanted; 3] => {
                self.last = now;
                State::Complete
            }
            _ if has_progressed => {
                self.last = now;
                State::Going
            }
            State::TimedOut => State::TimedOut,
            _ if self.deadline(spec).is_some_and(|deadline| deadline <= now) => State::TimedOut,
            State::Going | State::Complete => State::Going,
        };
    }

    /// When the rollout will have taken too long without further progress.
    pub(super) fn due(&self, spec: &DeploymentSpec) -> Option<Timestamp> {
        self.deadline(spec).filter(|_| self.state == State::Going)
    }

    fn deadline(&self, spec: &DeploymentSpec) -> Option<Timestamp> {
        let seconds = spec.progress_deadline_seconds.unwrap_or(DEFAULT_DEADLINE);
        let limit = SignedDuration::from_secs(i64::from(seconds));
        (seconds != NO_DEADLINE).then(|| self.last.checked_add(limit).ok())?
    }

    /// The condition `Progressing` of the Deployment with this name, without its times.
    pub(super) fn condition(&self, name: &str) -> Value {
        let (status, reason, what) = match self.state {
            State::Going => ("True", "ReplicaSetUpdated", "is progressing"),
            State::Complete => ("True", "NewReplicaSetAvailable", "has successfully progressed"),
            State::TimedOut => ("False", "ProgressDeadlineExceeded", "has timed out progressing"),
        };
        let set = format!("{name}-{}", self.revision);
        json!({
            "type": "Progressing", "status": status, "reason": reason,
            "message": format!("ReplicaSet {set:?} {what}."), "lastUpdateTime": time(self.last),
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use rstest::rstest;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    /// `replicas updated ready available`.
    fn counts(text: &str) -> Counts {
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap());
        let mut next = || numbers.next().unwrap();
        Counts { replicas: next(), updated: next(), ready: next(), available: next() }
    }

    /// The events of two pods within a deadline of 10 s: `second: counts`, `second template: counts`.
    #[rstest]
    #[case::begins(&["0: 2 2 0 0"], "ReplicaSetUpdated 0")]
    #[case::before_deadline(&["0: 2 2 0 0", "9: 2 2 0 0"], "ReplicaSetUpdated 0")]
    #[case::too_long(&["0: 2 2 0 0", "10: 2 2 0 0"], "ProgressDeadlineExceeded 0")]
    #[case::each_pod_counts(&["0: 2 2 0 0", "9: 2 2 1 0", "18: 2 2 1 0"], "ReplicaSetUpdated 9")]
    #[case::failing_is_no_progress(&["0: 2 2 1 1", "9: 2 2 0 0", "18: 2 2 0 0"], "ProgressDeadlineExceeded 0")]
    #[case::stays_timed_out(&["0: 2 2 0 0", "10: 2 2 0 0", "11: 2 2 0 0"], "ProgressDeadlineExceeded 0")]
    #[case::goes_on_later(&["0: 2 2 0 0", "10: 2 2 0 0", "30: 2 2 1 0"], "ReplicaSetUpdated 30")]
    #[case::complete(&["0: 2 2 0 0", "3: 2 2 2 2"], "NewReplicaSetAvailable 3")]
    #[case::complete_after_deadline(&["0: 2 2 0 0", "10: 2 2 0 0", "12: 2 2 2 2"], "NewReplicaSetAvailable 12")]
    #[case::pod_fails_later(&["0: 2 2 2 2", "60: 2 2 1 1", "90: 2 2 1 1"], "NewReplicaSetAvailable 0")]
    #[case::other_template(&["0: 2 2 2 2", "60 b: 3 1 2 2", "69 b: 3 1 2 2"], "ReplicaSetUpdated 60")]
    #[case::old_pod_goes(&["0: 2 2 2 2", "60 b: 3 1 2 2", "65 b: 2 1 2 2", "74 b: 2 1 1 1"], "ReplicaSetUpdated 65")]
    fn rollouts_progress_as_in_kubernetes(#[case] events: &[&str], #[case] expected: &str) {
        let spec = DeploymentSpec {
            replicas: Some(2),
            progress_deadline_seconds: Some(10),
            ..DeploymentSpec::default()
        };
        let mut progress: Option<Progress> = None;
        for event in events {
            let (when, pods) = event.split_once(": ").unwrap();
            let (second, revision) = when.split_once(' ').unwrap_or((when, "a"));
            let (now, counts) = (at(second.parse().unwrap()), counts(pods));
            progress
                .get_or_insert_with(|| Progress::new(revision, counts, now))
                .observe(&spec, revision, counts, now);
        }
        let condition = progress.unwrap().condition("web");
        let text = |field: &str| condition[field].as_str().unwrap().to_owned();
        let updated: Timestamp = text("lastUpdateTime").parse().unwrap();
        assert_eq!(format!("{} {}", text("reason"), updated.as_second()), expected);
        assert_eq!(text("status") == "False", expected.starts_with("ProgressDeadline"));
    }

    #[rstest]
    #[case::default(None, Some(600))]
    #[case::own(Some(30), Some(30))]
    #[case::none(Some(i32::MAX), None)]
    fn deadline_is_due(#[case] seconds: Option<i32>, #[case] expected: Option<i64>) {
        let spec =
            DeploymentSpec { progress_deadline_seconds: seconds, ..DeploymentSpec::default() };
        let progress = Progress::new("a", counts("1 1 0 0"), at(0));
        assert_eq!(progress.due(&spec), expected.map(at));
    }
}
