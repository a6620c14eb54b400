//! ◆ The ticks of a probe: one per period from its start, as with Go's tickers. Pure.
//!
//! A tick that falls into a running check waits for its end; further ticks are dropped.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};

use crate::clock::after;

/// Ticks of all probes within this time are served together, at its end: a wake-up costs as much as a check.
const TOGETHER: Duration = Duration::from_millis(50);

/// The ticks of one probe.
#[derive(Clone, Debug)]
pub(super) struct Ticker {
    period: Duration,
    next: Timestamp,
}

impl Ticker {
    /// Ticks at `first` and then every period.
    pub(super) fn new(first: Timestamp, period: Duration) -> Self {
        Self { period: period.max(Duration::from_secs(1)), next: first }
    }

    /// When the next tick is served: its time rounded up to a multiple of [`TOGETHER`].
    pub(super) fn served(&self) -> Timestamp {
        let together = i128::try_from(TOGETHER.as_nanos()).unwrap_or(1);
        let wait = (-self.next.as_nanosecond()).rem_euclid(together);
        after(self.next, Duration::from_nanos(u64::try_from(wait).unwrap_or_default()))
    }

    /// Consumes the next tick. The following one is the first after `now`.
    pub(super) fn take(&mut self, now: Timestamp) {
        let late = now.duration_since(self.next).max(SignedDuration::ZERO);
        let missed = late.as_nanos() / i128::try_from(self.period.as_nanos()).unwrap_or(1);
        let periods = u32::try_from(missed).unwrap_or(u32::MAX).saturating_add(1);
        self.next = after(self.next, self.period.saturating_mul(periods));
    }

    /// Ticks every period from `now` on.
    pub(super) fn reset(&mut self, now: Timestamp) {
        self.next = after(now, self.period);
    }
}

/// The delay before a probe begins: within the first period after the start of the agent, a share of the period, so that probes do
/// not all begin at the same time.
pub(super) fn delay(
    period: Duration,
    agent_started_at: Timestamp,
    now: Timestamp,
    share: f64,
) -> Duration {
    let runs = Duration::try_from(now.duration_since(agent_started_at)).unwrap_or(Duration::ZERO);
    if period > runs { period.mul_f64(share.clamp(0.0, 1.0)) } else { Duration::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds)
    }

    #[test]
    fn ticks_during_a_probe_are_coalesced() {
        let mut ticker = Ticker::new(at(0), Duration::from_secs(10));
        ticker.take(at(0));
        assert_eq!(ticker.next, at(10));
        ticker.take(at(10));
        assert_eq!(ticker.next, at(20));
        ticker.take(at(47));
        assert_eq!(ticker.next, at(50));
        ticker.reset(at(48));
        assert_eq!(ticker.next, at(58));
    }

    #[test]
    fn ticks_close_to_each_other_are_served_at_the_same_time() {
        let served = |milliseconds| {
            let first = Timestamp::UNIX_EPOCH + SignedDuration::from_millis(milliseconds);
            Ticker::new(first, Duration::from_secs(1)).served().as_millisecond()
        };
        let ticks = [-1, 0, 1, 49, 50, 51, 1049].map(served);
        assert_eq!(ticks, [0, 0, 50, 50, 50, 100, 1050]);
    }

    #[test]
    fn probes_begin_at_once_unless_the_agent_was_just_started() {
        let period = Duration::from_secs(10);
        assert_eq!(delay(period, at(0), at(10), 0.5), Duration::ZERO);
        assert_eq!(delay(period, at(0), at(9), 0.5), Duration::from_secs(5));
    }
}
