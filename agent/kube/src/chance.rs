//! Random jitter for delays, so that nodes that started at the same time do not send their requests at the same time.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

/// A random number in [0, 1).
pub(crate) fn chance() -> f64 {
    // Each `RandomState` has different keys.
    let random = RandomState::new().build_hasher().finish();
    // An `f64` has 53 bits of precision.
    (random >> 11) as f64 / (1_u64 << 53) as f64
}

/// The duration, extended at random by up to `share` of it.
pub(crate) fn jittered(duration: Duration, share: f64) -> Duration {
    duration.mul_f64(share.mul_add(chance(), 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ_and_stay_within_their_bounds() {
        let numbers: Vec<f64> = (0..1000).map(|_| chance()).collect();
        assert!(numbers.iter().all(|number| (0.0..1.0).contains(number)), "{numbers:?}");
        assert!(numbers.iter().any(|number| *number < 0.4));
        assert!(numbers.iter().any(|number| *number > 0.6));
        let second = Duration::from_secs(1);
        let jittered: Vec<Duration> = (0..100).map(|_| jittered(second, 0.04)).collect();
        assert!(jittered.iter().all(|wait| *wait >= second && *wait < second.mul_f64(1.04)));
    }
}
