//! ◆ Exponential back-off with jitter, reset after a period without failures. Pure.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/tools/cache/reflector.go: 800 ms, doubled up to 30 s, each extended at
//! random to at most twice its length, and reset after two minutes without a failure.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_millis(800);
const LONGEST: Duration = Duration::from_secs(30);
const FORGOTTEN_AFTER: Duration = Duration::from_secs(120);

/// The number of consecutive failures, and the time of the last one.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    last: Option<Instant>,
}

impl Backoff {
    /// The time of the next attempt after a failure at `now`. `chance` is a number from 0 to 1.
    pub(crate) fn failed(&mut self, now: Instant, chance: f64) -> Instant {
        if self.last.is_some_and(|last| now.duration_since(last) > FORGOTTEN_AFTER) {
            self.failures = 0;
        }
        let wait = FIRST.saturating_mul(2_u32.saturating_pow(self.failures)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.last = Some(now);
        now + wait.mul_f64(1.0 + chance.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_and_reset() {
        let start = Instant::now();
        let mut backoff = Backoff::default();
        let waits: Vec<Duration> =
            (0..8).map(|_| backoff.failed(start, 0.0).duration_since(start)).collect();
        let seconds: Vec<f64> = waits.iter().map(Duration::as_secs_f64).collect();
        assert_eq!(seconds, [0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0]);
        let later = start + FORGOTTEN_AFTER + Duration::from_secs(1);
        assert_eq!(backoff.failed(later, 1.0).duration_since(later), FIRST * 2);
    }
}
