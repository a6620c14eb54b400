//! The agent's only source of time: code that needs the time takes a [`Clock`].

use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;

/// Returns the time and waits for it.
#[async_trait]
pub trait Clock: Send + Sync {
    /// The wall clock.
    fn now(&self) -> Timestamp;
    /// Returns once [`Clock::now`] has reached `deadline`.
    async fn sleep_until(&self, deadline: Timestamp);
}

/// The system clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

#[async_trait]
impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    async fn sleep_until(&self, deadline: Timestamp) {
        tokio::time::sleep(until(self.now(), deadline)).await;
    }
}

/// A clock that starts at a given time and advances with tokio's clock, so that tests can pause it.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    epoch: Timestamp,
    started: tokio::time::Instant,
}

impl TokioClock {
    /// A clock that shows `epoch` now. Call it inside a tokio runtime.
    #[must_use]
    pub fn starting_at(epoch: Timestamp) -> Self {
        Self { epoch, started: tokio::time::Instant::now() }
    }
}

#[async_trait]
impl Clock for TokioClock {
    fn now(&self) -> Timestamp {
        after(self.epoch, self.started.elapsed())
    }

    async fn sleep_until(&self, deadline: Timestamp) {
        tokio::time::sleep(until(self.now(), deadline)).await;
    }
}

/// `at` plus `wait`, saturating.
#[must_use]
pub fn after(at: Timestamp, wait: Duration) -> Timestamp {
    at.checked_add(wait).unwrap_or(Timestamp::MAX)
}

/// The time from `now` until `deadline`; zero if it has passed.
#[must_use]
pub fn until(now: Timestamp, deadline: Timestamp) -> Duration {
    Duration::try_from(deadline.duration_since(now)).unwrap_or(Duration::ZERO)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn tokio_clock_follows_paused_time() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        let clock = TokioClock::starting_at(epoch);
        clock.sleep_until(after(epoch, Duration::from_secs(3600))).await;
        assert_eq!(clock.now(), "2026-01-01T01:00:00Z".parse().unwrap());
    }

    #[test]
    fn past_deadline_needs_no_wait() {
        let epoch: Timestamp = "2026-01-01T00:00:00Z".parse().unwrap();
        assert_eq!(until(after(epoch, Duration::from_secs(5)), epoch), Duration::ZERO);
        assert_eq!(until(epoch, after(epoch, Duration::from_millis(5))), Duration::from_millis(5));
    }
}
