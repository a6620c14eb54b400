//! ◆ Durations as Go writes and reads them, in messages and in configuration files.

use std::time::Duration;

/// The duration to the millisecond, as in `1m2.5s`.
pub(crate) fn go_duration(duration: Duration) -> String {
    let (seconds, millis) = (duration.as_secs(), duration.subsec_millis());
    if seconds == 0 && millis > 0 {
        return format!("{millis}ms");
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let fraction = format!(".{millis:03}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let seconds = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        (_, _) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// Parses `1h30m`, `1.5h`, `300ms`, `0` or a negative one, in nanoseconds.
pub(crate) fn parse_go_duration(text: &str) -> Option<i64> {
    let (sign, unsigned) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if unsigned == "0" {
        return Some(0);
    }
    let mut rest = unsigned;
    let mut total = 0_f64;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit = match unit {
            "ns" => 1.0,
            "us" | "µs" | "μs" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            "m" => 60e9,
            "h" => 3600e9,
            _ => return None,
        };
        total += number.parse::<f64>().ok()? * unit;
        rest = tail;
    }
    // 2^63 ns is 292 years.
    let fits = !unsigned.is_empty() && total < 9.2e18;
    #[expect(clippy::cast_possible_truncation, reason = "it fits, see above")]
    fits.then_some(sign * total.round() as i64)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(0, "0s")]
    #[case(15, "15ms")]
    #[case(1000, "1s")]
    #[case(1500, "1.5s")]
    #[case(62_050, "1m2.05s")]
    #[case(3_600_000, "1h0m0s")]
    fn durations_are_written_as_in_go(#[case] millis: u64, #[case] expected: &str) {
        assert_eq!(go_duration(Duration::from_millis(millis)), expected);
    }

    #[rstest]
    #[case("0", Some(0))]
    #[case("0s", Some(0))]
    #[case("12h", Some(43_200_000_000_000))]
    #[case("1h30m", Some(5_400_000_000_000))]
    #[case("1.5s", Some(1_500_000_000))]
    #[case("-1ms", Some(-1_000_000))]
    #[case("", None)]
    #[case("-", None)]
    #[case("5", None)]
    #[case("5 m", None)]
    #[case("h", None)]
    #[case("1.2.3s", None)]
    #[case("999999999h", None)]
    fn durations_are_read_as_in_go(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(parse_go_duration(text), expected);
    }
}
