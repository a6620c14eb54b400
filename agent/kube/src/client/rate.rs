//! Limits the rate of requests with a token bucket, as client-go's flowcontrol.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// A request rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Requests per second; 0: no limit.
    pub per_second: u32,
    /// The burst size.
    pub burst: u32,
}

impl Rate {
    /// No limit.
    pub const UNLIMITED: Self = Self { per_second: 0, burst: 0 };
}

/// Limits requests to a rate. Clones share the bucket.
#[derive(Clone, Debug)]
pub(crate) struct Limiter {
    rate: Rate,
    bucket: Arc<Mutex<Bucket>>,
}

/// The number of tokens at a time; negative while requests wait.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: f64,
    at: Instant,
}

impl Bucket {
    /// Takes a token. Returns the time until it is available.
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

    /// Waits until the next request may be sent. Waiting requests proceed in order of arrival.
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
        // The resolution of the paused clock is a millisecond.
        let took = began.elapsed();
        assert!((300..=303).contains(&took.as_millis()), "{took:?}");
        // After a pause the bucket is full again, and not fuller.
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
