//! ◆ Decides whether a failed request is retried, and when.

use std::time::Duration;

use crate::error::Retryability;

/// Limit on attempts in a row without [progress](is_progress).
const TRIES: u32 = 6;
/// The bytes that an attempt has to bring to count as progress. With less for each attempt, a registry could keep a pull for ever.
const PROGRESS: u64 = 16 << 10;
/// The bytes per second that a download has to bring, measured over the timeout without progress.
const SLOWEST: u64 = 1 << 10;
/// The first delay; each later one is twice as long.
const FIRST: Duration = Duration::from_millis(200);
/// The longest delay of the runtime's own back-off.
const LONGEST: Duration = Duration::from_secs(10);
/// The longest delay that a registry may request. The client has a back-off of its own.
const OBEYED: Duration = Duration::from_secs(60);

/// The delay before the next attempt, after `failures` in a row; `None` to give up. `jitter` is from 0 to 1, so
/// that many nodes that saw the same registry fail do not retry at the same instant.
pub(crate) fn pause(failures: u32, retryability: Retryability, jitter: f64) -> Option<Duration> {
    if failures >= TRIES {
        return None;
    }
    let doubled = FIRST.saturating_mul(1 << (failures.saturating_sub(1)).min(16));
    let own = doubled.min(LONGEST).mul_f64(0.5 + jitter.clamp(0.0, 1.0) / 2.0);
    match retryability {
        Retryability::Permanent => None,
        Retryability::Transient | Retryability::Throttled(None) => Some(own),
        Retryability::Throttled(Some(asked)) if asked > OBEYED => None,
        Retryability::Throttled(Some(asked)) => Some(asked.max(own)),
    }
}

/// Whether an attempt that brought these bytes of a blob begins the count of failures anew.
pub(crate) fn is_progress(bytes: u64) -> bool {
    bytes >= PROGRESS
}

/// Whether a download that brought these bytes during `window` is so slow that it is given up.
pub(crate) fn is_too_slow(bytes: u64, window: Duration) -> bool {
    bytes < window.as_secs().saturating_mul(SLOWEST)
}

/// Parses a `Retry-After` header: seconds, or a date (RFC 9110, section 10.2.3).
pub(crate) fn retry_after(value: &str, now: jiff::Timestamp) -> Option<Duration> {
    let value = value.trim();
    if let Ok(seconds) = value.parse::<u64>() {
        return Some(Duration::from_secs(seconds));
    }
    let then = jiff::fmt::rfc2822::parse(value).ok()?.timestamp();
    Some(then.duration_since(now).try_into().unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[rstest]
    #[case::refused(1, Retryability::Permanent, 1.0, None)]
    #[case::first(1, Retryability::Transient, 1.0, Some(ms(200)))]
    #[case::with_jitter(1, Retryability::Transient, 0.0, Some(ms(100)))]
    #[case::third(3, Retryability::Throttled(None), 1.0, Some(ms(800)))]
    #[case::last(5, Retryability::Transient, 1.0, Some(ms(3200)))]
    #[case::enough(6, Retryability::Transient, 1.0, None)]
    #[case::asked(1, Retryability::Throttled(Some(ms(7000))), 1.0, Some(ms(7000)))]
    #[case::asked_for_nothing(2, Retryability::Throttled(Some(ms(0))), 1.0, Some(ms(400)))]
    #[case::asked_for_too_much(1, Retryability::Throttled(Some(ms(61_000))), 1.0, None)]
    fn retry_pause_grows_until_limit(
        #[case] failures: u32,
        #[case] retryability: Retryability,
        #[case] jitter: f64,
        #[case] want: Option<Duration>,
    ) {
        assert_eq!(pause(failures, retryability, jitter), want);
    }

    #[rstest]
    #[case::nothing(0, false)]
    #[case::byte(1, false)]
    #[case::chunk(16 << 10, true)]
    fn attempts_with_few_bytes_are_no_progress(#[case] bytes: u64, #[case] want: bool) {
        assert_eq!(is_progress(bytes), want);
    }

    #[rstest]
    #[case::dripping(60, 300, true)]
    #[case::slow(1023, 1, true)]
    #[case::bearable(300 << 10, 300, false)]
    #[case::fast(1 << 30, 300, false)]
    fn dripping_downloads_are_too_slow(
        #[case] bytes: u64,
        #[case] seconds: u64,
        #[case] want: bool,
    ) {
        assert_eq!(is_too_slow(bytes, Duration::from_secs(seconds)), want);
    }

    #[rstest]
    #[case("7", Some(ms(7000)))]
    #[case(" 0 ", Some(ms(0)))]
    #[case("Thu, 01 Jan 1970 00:01:40 GMT", Some(ms(40_000)))]
    #[case("Thu, 01 Jan 1970 00:00:00 GMT", Some(ms(0)))]
    #[case("soon", None)]
    #[case("-1", None)]
    fn retry_after_header_is_parsed(#[case] value: &str, #[case] want: Option<Duration>) {
        let now = jiff::Timestamp::from_second(60).unwrap();
        assert_eq!(retry_after(value, now), want);
    }
}
