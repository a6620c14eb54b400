//! ◆ How often the runtime is listed. Pure.

use std::time::Duration;

/// With events, listings take one of so many parts of the time: that of a thousand pods is two hundred milliseconds' work.
const SHARE: u32 = 200;
/// With events, no longer than this passes between two listings. A kubelet 1.36 with events lists every 5 minutes.
const LONGEST: Duration = Duration::from_secs(60);

/// How often the runtime is relisted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelistPeriods {
    /// Without an event stream.
    pub(crate) alone: Duration,
    /// With an event stream, at least; `None`: the runtime's events are not asked for.
    pub(crate) with_events: Option<Duration>,
}

impl RelistPeriods {
    /// How long after a listing that took so long the next one begins; `events`: there is an event stream.
    pub(super) fn next(&self, events: bool, took: Duration) -> Duration {
        match self.with_events.filter(|_| events) {
            Some(least) => took.saturating_mul(SHARE).clamp(least, LONGEST.max(least)),
            None => self.alone,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

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
