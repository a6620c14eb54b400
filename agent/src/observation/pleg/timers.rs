//! When pods are to be inspected later: after a failure, or after events that follow each other quickly.

use std::collections::{BTreeMap, BTreeSet};

use api::pod::PodUid;
use tokio::time::Instant;

/// At most one time for each pod.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: BTreeSet<(Instant, PodUid)>,
    by_pod: BTreeMap<PodUid, Instant>,
}

impl Timers {
    /// Sets a pod's time; an earlier one stays.
    pub(super) fn set(&mut self, uid: &PodUid, at: Instant) {
        if self.by_pod.get(uid).is_some_and(|set| *set <= at) {
            return;
        }
        self.clear(uid);
        self.by_pod.insert(uid.clone(), at);
        self.by_time.insert((at, uid.clone()));
    }

    /// Forgets a pod's time.
    pub(super) fn clear(&mut self, uid: &PodUid) {
        if let Some(at) = self.by_pod.remove(uid) {
            self.by_time.remove(&(at, uid.clone()));
        }
    }

    /// Whether a pod has a time.
    pub(super) fn is_set(&self, uid: &PodUid) -> bool {
        self.by_pod.contains_key(uid)
    }

    /// The first time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Takes a pod whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<PodUid> {
        let (at, uid) = self.by_time.first()?.clone();
        (at <= now).then(|| {
            self.clear(&uid);
            uid
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn pods_come_in_order_of_their_earliest_time() {
        let now = Instant::now();
        let after = |seconds| now + Duration::from_secs(seconds);
        let (a, b) = (PodUid::new("a"), PodUid::new("b"));
        let mut timers = Timers::default();
        timers.set(&a, after(5));
        timers.set(&b, after(3));
        timers.set(&a, after(2));
        timers.set(&a, after(9));
        assert_eq!(timers.next(), Some(after(2)));
        assert_eq!(timers.take_due(now), None);
        assert_eq!(timers.take_due(after(4)), Some(a.clone()));
        assert!(!timers.is_set(&a) && timers.is_set(&b));
        timers.clear(&b);
        assert_eq!(timers.take_due(after(4)), None);
        assert_eq!(timers.next(), None);
    }
}
