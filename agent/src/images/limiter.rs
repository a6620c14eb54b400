//! ◆ Limits the rate of pulls: a token bucket.

use jiff::Timestamp;

use crate::clock::until;

/// A bucket with one token per pull; full at first.
#[derive(Clone, Debug)]
pub(crate) struct TokenBucket {
    per_second: f64,
    burst: f64,
    tokens: f64,
    at: Timestamp,
}

impl TokenBucket {
    /// A bucket of `burst` tokens, refilled with `qps` tokens per second; a `qps` of 0 means no limit.
    pub(crate) fn new(qps: u32, burst: u32, now: Timestamp) -> Self {
        Self {
            per_second: f64::from(qps),
            burst: f64::from(burst),
            tokens: f64::from(burst),
            at: now,
        }
    }

    /// Takes a token. Returns false if there is none.
    pub(crate) fn take(&mut self, now: Timestamp) -> bool {
        if self.per_second == 0.0 {
            return true;
        }
        let refill = until(self.at, now).as_secs_f64() * self.per_second;
        self.tokens = (self.tokens + refill).min(self.burst);
        self.at = now;
        let taken = self.tokens >= 1.0;
        if taken {
            self.tokens -= 1.0;
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::clock::after;

    fn at(millis: u64) -> Timestamp {
        after(Timestamp::UNIX_EPOCH, Duration::from_millis(millis))
    }

    #[test]
    fn burst_is_followed_by_rate() {
        let mut bucket = TokenBucket::new(5, 10, at(0));
        let taken = |bucket: &mut TokenBucket, now| (0..20).filter(|_| bucket.take(now)).count();
        assert_eq!(taken(&mut bucket, at(0)), 10);
        assert_eq!(taken(&mut bucket, at(199)), 0);
        assert_eq!(taken(&mut bucket, at(400)), 2);
        assert_eq!(taken(&mut bucket, at(60_000)), 10);
    }

    #[test]
    fn zero_rate_is_no_limit() {
        let mut bucket = TokenBucket::new(0, 0, at(0));
        assert!((0..100).all(|_| bucket.take(at(0))));
    }
}
