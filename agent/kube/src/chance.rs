//! Random jitter for delays, so that nodes that started at the same time do not send their requests at the same time; random
//! UUIDs.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::time::Duration;

fn random() -> u64 {
    // Each `RandomState` has different keys.
    RandomState::new().build_hasher().finish()
}

/// A random number in [0, 1).
pub(crate) fn chance() -> f64 {
    // An `f64` has 53 bits of precision.
    (random() >> 11) as f64 / (1_u64 << 53) as f64
}

/// A random UUID (RFC 9562, version 4).
pub(crate) fn uuid() -> String {
    let (high, low) = (random(), random());
    let version = (high & 0xfff) | 0x4000;
    let variant = ((low >> 48) & 0x3fff) | 0x8000;
    let (first, second) = (high >> 32, (high >> 16) & 0xffff);
    format!("{first:08x}-{second:04x}-{version:04x}-{variant:04x}-{:012x}", low & 0xffff_ffff_ffff)
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

    #[test]
    fn uuids_differ_and_have_version_4() {
        let (first, second) = (uuid(), uuid());
        assert_ne!(first, second);
        for uuid in [first, second] {
            let lengths: Vec<usize> = uuid.split('-').map(str::len).collect();
            assert_eq!(lengths, [8, 4, 4, 4, 12], "{uuid}");
            assert!(uuid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit()), "{uuid}");
            assert_eq!(uuid.get(14..15), Some("4"), "{uuid}");
            assert!(["8", "9", "a", "b"].map(Some).contains(&uuid.get(19..20)), "{uuid}");
        }
    }
}
