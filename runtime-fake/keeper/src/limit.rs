//! How long a set-up may take before it is given up.

use std::time::{Duration, Instant};

/// How long a process that was killed may take to be gone; one that hangs in the kernel is left behind.
const LAST: Duration = Duration::from_secs(2);

/// The time by which a process is to be done with its set-up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limit {
    until: Instant,
    killed: bool,
}

/// What is to be done with a set-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It has time.
    Wait,
    /// It has had its time: it is to be killed.
    Kill,
    /// It does not end: the caller gets an answer without it.
    GiveUp,
}

impl Limit {
    pub(crate) fn new(time: Duration) -> Self {
        Self {
            until: Instant::now() + time,
            killed: false,
        }
    }

    /// How long until there is something to be done.
    pub(crate) fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Says what is to be done now; each of the last two once.
    pub(crate) fn check(&mut self) -> Verdict {
        match (self.left().is_zero(), self.killed) {
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
