//! The times of the next listing and of delayed inspections: after a failure, or after events in quick succession.

use std::time::Duration;

use api::pod::PodUid;
use compact::{Map, Set};
use tokio::time::Instant;

/// Timers of pods, at most one for each.
#[derive(Debug, Default)]
pub(super) struct Timers {
    by_time: Set<(Instant, PodUid)>,
    by_pod: Map<PodUid, Instant>,
}

impl Timers {
    /// Sets a pod's time, unless an earlier one is set.
    pub(super) fn set(&mut self, uid: &PodUid, at: Instant) {
        if self.by_pod.get(uid).is_some_and(|set| *set <= at) {
            return;
        }
        self.clear(uid);
        self.by_pod.insert(uid.clone(), at);
        self.by_time.insert((at, uid.clone()));
    }

    /// Removes a pod's time.
    pub(super) fn clear(&mut self, uid: &PodUid) {
        if let Some(at) = self.by_pod.remove(uid) {
            self.by_time.remove(&(at, uid.clone()));
        }
    }

    /// Whether a pod has a time.
    pub(super) fn is_set(&self, uid: &PodUid) -> bool {
        self.by_pod.contains_key(uid)
    }

    /// The earliest time.
    pub(super) fn next(&self) -> Option<Instant> {
        self.by_time.first().map(|(at, _)| *at)
    }

    /// Removes and returns a pod whose time has come.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<PodUid> {
        let (at, uid) = self.by_time.first()?.clone();
        (at <= now).then(|| {
            self.clear(&uid);
            uid
        })
    }
}

/// With events, the period between listings is this many times a listing's duration: listing a thousand pods takes 200 ms.
const SHARE: u32 = 200;
/// With events, the maximum period between two listings. A kubelet 1.36 with events lists every 5 minutes.
const LONGEST: Duration = Duration::from_secs(60);

/// The periods in which the runtime is relisted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelistPeriods {
    /// The period without an event stream.
    pub(crate) alone: Duration,
    /// The minimum period with an event stream; `None`: the agent does not subscribe to the runtime's events.
    pub(crate) with_events: Option<Duration>,
}

impl RelistPeriods {
    /// The delay of the next listing after one that took `took`. `events` is whether there is an event stream.
    pub(super) fn next(&self, events: bool, took: Duration) -> Duration {
        match self.with_events.filter(|_| events) {
            Some(least) => took.saturating_mul(SHARE).clamp(least, LONGEST.max(least)),
            None => self.alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use rstest::rstest;

    use super::*;

    #[test]
    fn pods_are_due_in_order_of_their_earliest_time() {
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

    #[rstest]
    #[case::quick(Some(10_000), true, 1, 10_000)]
    #[case::many_pods(Some(10_000), true, 100, 20_000)]
    #[case::slow_runtime(Some(10_000), true, 5_000, 60_000)]
    #[case::seldom(Some(90_000), true, 5_000, 90_000)]
    #[case::stream_is_gone(Some(10_000), false, 100, 1_000)]
    #[case::no_events(None, false, 100, 1_000)]
    fn listings_with_events_take_a_small_share_of_the_time(
        #[case] with_events: Option<u64>,
        #[case] events: bool,
        #[case] took: u64,
        #[case] expected: u64,
    ) {
        let periods = RelistPeriods {
            alone: Duration::from_secs(1),
            with_events: with_events.map(Duration::from_millis),
        };
        let next = periods.next(events, Duration::from_millis(took));
        assert_eq!(next, Duration::from_millis(expected));
    }
}
