//! ◆ Plans a ReplicaSet, and a Deployment, which has one: a number of pods that run forever. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/replicaset/replica_set.go.

use jiff::{SignedDuration, Timestamp};

use super::backoff;
use super::owned::{Action, OwnedPod, Plan};

/// The delay after the second consecutive failed pod; the first one is replaced immediately.
const FIRST_DELAY: SignedDuration = SignedDuration::from_secs(1);
/// The maximum delay, as for a kubelet's container restarts.
const LONGEST_DELAY: SignedDuration = SignedDuration::from_mins(5);

/// Consecutive failures of pods that are replaced endlessly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Failures {
    count: usize,
    last: Option<Timestamp>,
}

impl Failures {
    /// Counts another failure; failures before a long time without any are reset.
    #[must_use]
    pub fn and(self, at: Timestamp) -> Self {
        let is_old = |last: Timestamp| at.duration_since(last) > LONGEST_DELAY + LONGEST_DELAY;
        let count = if self.last.is_some_and(is_old) { 0 } else { self.count };
        Self { count: count.saturating_add(1), last: Some(at) }
    }

    /// The earliest time of the next replacement.
    #[must_use]
    pub fn until(self, now: Timestamp) -> Option<Timestamp> {
        let repeated = self.count.saturating_sub(1);
        backoff::until(repeated, self.last, FIRST_DELAY, LONGEST_DELAY, now)
    }
}

/// Plans `wanted` pods, at most `capacity` new ones now. Ended pods are deleted and replaced.
pub fn plan(
    wanted: usize,
    pods: &[OwnedPod],
    failures: Failures,
    capacity: usize,
    now: Timestamp,
) -> Plan {
    let ended = pods.iter().filter(|pod| pod.ended.is_some() && !pod.is_deleted);
    let mut actions: Vec<Action> = ended.map(|pod| pod.delete("replaced")).collect();
    let active: Vec<&OwnedPod> = pods.iter().filter(|pod| pod.is_active()).collect();
    // Pods that are not ready, and the youngest ones, are deleted first.
    let mut surplus: Vec<&&OwnedPod> = active.iter().rev().collect();
    surplus.sort_by_key(|pod| pod.ready_since.is_some());
    let count = active.len().saturating_sub(wanted);
    let surplus = surplus.into_iter().take(count);
    actions.extend(surplus.map(|pod| pod.delete("scaled down")));
    let missing = wanted.saturating_sub(active.len());
    create(actions, missing, failures, capacity, now)
}

/// A plan with these actions and `missing` new pods: at most `capacity`, and none during the back-off.
pub(super) fn create(
    mut actions: Vec<Action>,
    missing: usize,
    failures: Failures,
    capacity: usize,
    now: Timestamp,
) -> Plan {
    let until = failures.until(now).filter(|_| missing > 0);
    if until.is_some() {
        return Plan::open(actions, until);
    }
    let created = missing.min(capacity);
    actions.extend((0..created).map(|_| Action::Create(None)));
    Plan { unplaced: missing - created, ..Plan::open(actions, None) }
}
