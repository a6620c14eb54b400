//! ◆ Durations in the format of kubectl's tables. Pure.

use jiff::Timestamp;

const MINUTE: i64 = 60;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;
const YEAR: i64 = 365 * DAY;

/// The time since `then` in kubectl's format: `45s`, `3m10s`, `5h`, `2d`.
///
/// Source: Kubernetes 1.36, apimachinery/pkg/util/duration/duration.go, HumanDuration.
#[must_use]
pub fn age(then: Timestamp, now: Timestamp) -> String {
    let seconds = now.as_second().saturating_sub(then.as_second()).max(0);
    let two = |large: i64, name: char, rest: i64, small: char| match rest {
        0 => format!("{large}{name}"),
        rest => format!("{large}{name}{rest}{small}"),
    };
    match seconds {
        seconds if seconds < 2 * MINUTE => format!("{seconds}s"),
        seconds if seconds < 10 * MINUTE => two(seconds / MINUTE, 'm', seconds % MINUTE, 's'),
        seconds if seconds < 3 * HOUR => format!("{}m", seconds / MINUTE),
        seconds if seconds < 8 * HOUR => two(seconds / HOUR, 'h', seconds % HOUR / MINUTE, 'm'),
        seconds if seconds < 2 * DAY => format!("{}h", seconds / HOUR),
        seconds if seconds < 8 * DAY => two(seconds / DAY, 'd', seconds % DAY / HOUR, 'h'),
        seconds if seconds < 2 * YEAR => format!("{}d", seconds / DAY),
        seconds if seconds < 8 * YEAR => two(seconds / YEAR, 'y', seconds % YEAR / DAY, 'd'),
        seconds => format!("{}y", seconds / YEAR),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(-5, "0s")]
    #[case(0, "0s")]
    #[case(119, "119s")]
    #[case(120, "2m")]
    #[case(190, "3m10s")]
    #[case(10 * MINUTE, "10m")]
    #[case(179 * MINUTE, "179m")]
    #[case(3 * HOUR, "3h")]
    #[case(3 * HOUR + 5 * MINUTE, "3h5m")]
    #[case(8 * HOUR, "8h")]
    #[case(47 * HOUR, "47h")]
    #[case(2 * DAY + HOUR, "2d1h")]
    #[case(8 * DAY, "8d")]
    #[case(2 * YEAR + 3 * DAY, "2y3d")]
    #[case(9 * YEAR, "9y")]
    fn age_has_two_units_at_most(#[case] seconds: i64, #[case] expected: &str) {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let then = Timestamp::from_second(now.as_second() - seconds).unwrap();
        assert_eq!(age(then, now), expected);
    }
}
