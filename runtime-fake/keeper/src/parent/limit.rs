//! The time limit of a set-up.

use std::time::{Duration, Instant};

/// How long a killed process may take to exit; the keeper stops waiting for one that hangs in the kernel.
const LAST: Duration = Duration::from_secs(2);

/// The deadline of a process's set-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    until: Instant,
    killed: bool,
}

/// What to do with a set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has time left.
    Wait,
    /// It has exceeded the limit: kill it.
    Kill,
    /// It does not exit: answer the caller without waiting for it.
    GiveUp,
}

impl Limit {
    pub(crate) fn new(time: Duration) -> Self {
        Self { until: Instant::now() + time, killed: false }
    }

    /// The time until the next check.
    pub(crate) fn time_left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns what to do now: `Kill` and `GiveUp` once each.
    pub(crate) fn check(&mut self) -> Verdict {
        match (self.time_left().is_zero(), self.killed) {
            (false, _) => Verdict::Wait,
            (true, false) => {
                *self = Self::new(LAST);
                self.killed = true;
                Verdict::Kill
            }
            (true, true) => Verdict::GiveUp,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limit_kills_once_then_gives_up() {
        let mut limit = Limit::new(Duration::from_secs(3600));
        assert_eq!(limit.check(), Verdict::Wait);
        limit.until -= Duration::from_secs(3600);
        assert_eq!(limit.check(), Verdict::Kill);
        assert_eq!(limit.check(), Verdict::Wait);
        limit.until -= LAST;
        assert_eq!(limit.check(), Verdict::GiveUp);
    }
}
