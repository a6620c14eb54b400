//! How many requests a client may send: a bucket of tokens, as of client-go's flowcontrol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A rate of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// How many requests a second; 0: as many as there are.
    pub per_second: u32,
    /// How many at once after a rest.
    pub burst: u32,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self { per_second: 0, burst: 0 };
}

/// Lets requests pass at a rate. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    rate: Rate,
    bucket: Arc<Mutex<Bucket>>,
}

/// The tokens that were there at a time; fewer than none: requests wait.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Takes a token. Returns how long it is until there is one.
    fn take(&mut self, rate: Rate, now: Instant) -> Duration {
        let per_second = f64::from(rate.per_second);
        let refill = now.saturating_duration_since(self.at).as_secs_f64() * per_second;
        self.tokens = (self.tokens + refill).min(f64::from(rate.burst.max(1))) - 1.0;
        self.at = now;
        Duration::from_secs_f64((-self.tokens).max(0.0) / per_second)
    }
}

impl Limiter {
    pub(crate) fn new(rate: Rate) -> Self {
        let full = Bucket { tokens: f64::from(rate.burst.max(1)), at: Instant::now() };
        Self { rate, bucket: Arc::new(Mutex::new(full)) }
    }

    /// Waits until another request may be sent. Those that wait are let pass in the order in which they came.
    pub(crate) async fn pass(&self) {
        if self.rate.per_second == 0 {
            return;
        }
        let wait = {
            let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
            bucket.take(self.rate, Instant::now())
        };
        if !wait.is_zero() {
            sleep(wait).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn burst_is_followed_by_the_rate() {
        let limiter = Limiter::new(Rate { per_second: 10, burst: 5 });
        let began = Instant::now();
        for _ in 0..5 {
            limiter.pass().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        for _ in 0..3 {
            limiter.pass().await;
        }
        // The paused clock has a resolution of a millisecond.
        let took = began.elapsed();
        assert!((300..=303).contains(&took.as_millis()), "{took:?}");
        // After a rest the bucket is as full as at first, and not fuller.
        sleep(Duration::from_secs(60)).await;
        let began = Instant::now();
        for _ in 0..5 {
            limiter.pass().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
        limiter.pass().await;
        assert!(began.elapsed() >= Duration::from_millis(100));
    }

    #[tokio::test(start_paused = true)]
    async fn clones_share_the_rate() {
        let limiter = Limiter::new(Rate { per_second: 1, burst: 1 });
        limiter.clone().pass().await;
        let began = Instant::now();
        limiter.pass().await;
        assert!(began.elapsed() >= Duration::from_secs(1));
    }

    #[tokio::test(start_paused = true)]
    async fn unlimited_client_never_waits() {
        let limiter = Limiter::new(Rate::UNLIMITED);
        let began = Instant::now();
        for _ in 0..1000 {
            limiter.pass().await;
        }
        assert_eq!(began.elapsed(), Duration::ZERO);
    }
}
