//! Crash back-off: how long a container that keeps ending has to wait before it is started again.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

/// The numbers of a back-off. Kubernetes 1.36 kubelet: 10 s doubling to 300 s, forgotten after 600 s of good running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The first waiting time.
    pub first: SignedDuration,
    /// The greatest waiting time.
    pub max: SignedDuration,
    /// A run this much longer than the last start ends the series.
    pub reset_after: SignedDuration,
}

impl Default for Limits {
    fn default() -> Self {
        Self::with_max(SignedDuration::from_secs(300))
    }
}

impl Limits {
    /// The kubelet's limits with another greatest waiting time (`crashLoopBackOff.maxContainerRestartPeriod`).
    pub fn with_max(max: SignedDuration) -> Self {
        Self {
            first: SignedDuration::from_secs(10).min(max),
            max,
            reset_after: SignedDuration::from_secs(600),
        }
    }
}

/// One series of restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    delay: SignedDuration,
    updated_at: Timestamp,
}

/// May it start?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Now.
    Now,
    /// Not before `until`.
    Wait {
        /// The first moment at which it may start.
        until: Timestamp,
        /// The waiting time on record.
        delay: SignedDuration,
    },
}

/// The waiting times on record, one a key. The owner asks [`Backoff::verdict`] and, when it starts, calls [`Backoff::started`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backoff {
    limits: Limits,
    entries: BTreeMap<String, Entry>,
}

impl Backoff {
    /// Nothing on record.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            entries: BTreeMap::new(),
        }
    }

    /// May what ended at `ended_at` be started at `now`?
    pub fn verdict(&self, key: &str, ended_at: Timestamp, now: Timestamp) -> Verdict {
        match self.entries.get(key) {
            Some(entry)
                if !self.expired(entry, ended_at) && now.duration_since(ended_at) < entry.delay =>
            {
                Verdict::Wait {
                    until: ended_at
                        .saturating_add(entry.delay)
                        .unwrap_or(Timestamp::MAX),
                    delay: entry.delay,
                }
            }
            Some(_) | None => Verdict::Now,
        }
    }

    /// Records a start at `now` of what had ended at `ended_at`: the next waiting time is the first one, or the double.
    pub fn started(&mut self, key: &str, ended_at: Timestamp, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(entry) if !self.expired(entry, ended_at) => (entry.delay * 2).min(self.limits.max),
            Some(_) | None => self.limits.first,
        };
        self.entries.insert(
            key.to_owned(),
            Entry {
                delay,
                updated_at: now,
            },
        );
    }

    /// The waiting time on record; zero for none.
    pub fn delay(&self, key: &str) -> SignedDuration {
        self.entries
            .get(key)
            .map_or(SignedDuration::ZERO, |entry| entry.delay)
    }

    /// Forgets series whose last start is long past.
    pub fn forget_old(&mut self, now: Timestamp) {
        let limits = self.limits;
        self.entries
            .retain(|_, entry| now.duration_since(entry.updated_at) <= limits.reset_after);
    }

    fn expired(&self, entry: &Entry, ended_at: Timestamp) -> bool {
        ended_at.duration_since(entry.updated_at) > self.limits.reset_after
    }
}
