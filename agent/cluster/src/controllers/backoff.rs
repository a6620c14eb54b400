//! ◆ The delay before a controller replaces failed pods. Pure.

use jiff::{SignedDuration, Timestamp};

/// The end of the delay: `first` after one failure, doubled by each further one, at most `most`; `last` is the time of the last
/// failure. `None` without failures.
/// when there is nothing to wait for.
#[must_use]
pub fn until(
    failures: usize,
    last: Option<Timestamp>,
    first: SignedDuration,
    most: SignedDuration,
    now: Timestamp,
) -> Option<Timestamp> {
    let last = last.filter(|_| failures > 0)?;
    let mut delay = first;
    for _ in 1..failures {
        delay = delay.saturating_add(delay);
        if delay >= most {
            delay = most;
            break;
        }
    }
    let until = last.checked_add(delay).ok()?;
    (until > now).then_some(until)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(0, 0, None)]
    #[case::first(1, 0, Some(10))]
    #[case::first_over(1, 10, None)]
    #[case::second(2, 5, Some(20))]
    #[case::sixth(6, 0, Some(320))]
    #[case::seventh(7, 0, Some(600))]
    #[case::many(1000, 0, Some(600))]
    fn delay_doubles_to_its_limit(
        #[case] failures: usize,
        #[case] now: i64,
        #[case] expected: Option<i64>,
    ) {
        let at = |seconds: i64| Timestamp::UNIX_EPOCH + SignedDuration::from_secs(seconds);
        let (first, most) = (SignedDuration::from_secs(10), SignedDuration::from_secs(600));
        let until = until(failures, Some(at(0)), first, most, at(now));
        assert_eq!(until, expected.map(at));
    }
}
