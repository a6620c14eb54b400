//! ◆ Crash back-off: the delay before a crashing container is restarted.

use compact::Map;
use jiff::{SignedDuration, Timestamp};

/// The limits of a back-off. Kubernetes 1.36 kubelet: 10 s doubling to 300 s, reset after a run of 600 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first delay.
    pub first: SignedDuration,
    /// The maximum delay.
    pub max: SignedDuration,
    /// A container that exits this long after its last start resets the back-off.
    pub reset_after: SignedDuration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::with_max(SignedDuration::from_secs(300))
    }
}

impl Limits {
    /// The kubelet's limits with another maximum delay (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub fn with_max(max: SignedDuration) -> Self {
        Self {
            first: SignedDuration::from_secs(10).min(max),
            max,
            reset_after: SignedDuration::from_secs(600),
        }
    }
}

/// The back-off of one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    delay: SignedDuration,
    updated_at: Timestamp,
}

/// Whether a container may start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now.
    Now,
    /// Not before `until`.
    Wait {
        /// The earliest start.
        until: Timestamp,
        /// The current delay.
        delay: SignedDuration,
    },
}

/// The delays, by key. The owner checks [`Backoff::verdict`], and calls [`Backoff::started`] for each start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    limits: Limits,
    entries: Map<String, Entry>,
}

impl Backoff {
    /// An empty back-off.
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: Map::new() }
    }

    /// Whether a container that exited at `ended_at` may start at `now`.
    pub fn verdict(&self, key: &str, ended_at: Timestamp, now: Timestamp) -> Verdict {
        match self.entries.get(key) {
            Some(entry)
                if !self.expired(entry, ended_at) && now.duration_since(ended_at) < entry.delay =>
            {
                Verdict::Wait {
                    until: ended_at.saturating_add(entry.delay).unwrap_or(Timestamp::MAX),
                    delay: entry.delay,
                }
            }
            Some(_) | None => Verdict::Now,
        }
    }

    /// Records a start at `now` of a container that exited at `ended_at`: doubles the delay, or begins with the first one.
    pub fn started(&mut self, key: &str, ended_at: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.expired(entry, ended_at) => (entry.delay * 2).min(self.limits.max),
            Some(_) | None => self.limits.first,
        };
        self.entries.insert(key.to_owned(), Entry { delay, updated_at: now });
    }

    /// The current delay; zero for unknown keys.
    pub fn delay(&self, key: &str) -> SignedDuration {
        self.entries.get(key).map_or(SignedDuration::ZERO, |entry| entry.delay)
    }

    /// Removes entries whose last start is older than `reset_after`.
    pub fn forget_old(&mut self, now: Timestamp) {
        let limits = self.limits;
        self.entries.retain(|_, entry| now.duration_since(entry.updated_at) <= limits.reset_after);
    }

    fn expired(&self, entry: &Entry, ended_at: Timestamp) -> bool {
        ended_at.duration_since(entry.updated_at) > self.limits.reset_after
    }
}

#[cfg(test)]
mod tests {
    use jiff::{SignedDuration, Timestamp};
    use proptest::prelude::*;

    use super::{Backoff, Limits, Verdict};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
    }

    /// Restarts a container that exits immediately, each time as early as possible; returns the delays.
    fn crash_at_once(backoff: &mut Backoff, times: usize) -> Vec<i64> {
        let mut now = at(1_000);
        let mut waits = Vec::new();
        for _ in 0..times {
            let ended = now;
            if let Verdict::Wait { until, .. } = backoff.verdict("c", ended, now) {
                now = until;
            }
            waits.push(now.duration_since(ended).as_secs());
            backoff.started("c", ended, now);
        }
        waits
    }

    #[test]
    fn first_restart_is_immediate_then_delay_doubles_up_to_maximum() {
        let mut backoff = Backoff::new(Limits::default());
        assert_eq!(crash_at_once(&mut backoff, 8), [0, 10, 20, 40, 80, 160, 300, 300]);
    }

    #[test]
    fn long_run_resets_backoff() {
        let mut backoff = Backoff::new(Limits::default());
        crash_at_once(&mut backoff, 8);
        let ended = at(100_000);
        assert_eq!(backoff.verdict("c", ended, ended), Verdict::Now);
        backoff.started("c", ended, ended);
        assert_eq!(backoff.delay("c"), SignedDuration::from_secs(10));
    }

    #[test]
    fn old_entries_are_forgotten() {
        let mut backoff = Backoff::new(Limits::default());
        backoff.started("c", at(0), at(0));
        backoff.forget_old(at(600));
        assert_eq!(backoff.delay("c"), SignedDuration::from_secs(10));
        backoff.forget_old(at(601));
        assert_eq!(backoff.delay("c"), SignedDuration::ZERO);
    }

    proptest! {
        /// Delays stay within the limits, and a wait ends at the announced time.
        #[test]
        fn delays_are_bounded_and_end(max in 1..400_i64, runs in prop::collection::vec((0..2_000_i64, 0..400_i64), 1..40)) {
            let limits = Limits::with_max(SignedDuration::from_secs(max));
            let mut backoff = Backoff::new(limits);
            let mut now = 0;
            for (ran, lingers) in runs {
                let ended = at(now + ran);
                now += ran + lingers;
                match backoff.verdict("c", ended, at(now)) {
                    Verdict::Now => {
                        backoff.started("c", ended, at(now));
                        prop_assert!((limits.first..=limits.max).contains(&backoff.delay("c")));
                    }
                    Verdict::Wait { until, delay } => {
                        prop_assert!(until > at(now) && until.duration_since(ended) == delay && delay <= limits.max);
                        prop_assert_eq!(backoff.verdict("c", ended, until), Verdict::Now);
                        let just_before = until - SignedDuration::from_nanos(1);
                        prop_assert_eq!(backoff.verdict("c", ended, just_before), Verdict::Wait { until, delay });
                        now = until.as_second();
                        backoff.started("c", ended, until);
                    }
                }
            }
        }

        /// Crashes of one container do not delay another.
        #[test]
        fn containers_have_separate_backoffs(times in 1..10_usize) {
            let mut backoff = Backoff::new(Limits::default());
            crash_at_once(&mut backoff, times);
            prop_assert_eq!(backoff.verdict("d", at(5), at(5)), Verdict::Now);
            prop_assert_eq!(backoff.delay("d"), SignedDuration::ZERO);
        }
    }
}
