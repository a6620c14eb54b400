//! ◆ Durations in Go's format, in messages and in configuration files.

use std::time::Duration;

/// Formats a duration, as in `15ms` and `1m2.5s`; below a second it is rounded to milliseconds.
pub fn go_duration(duration: Duration) -> String {
    let (seconds, nanos) = (duration.as_secs(), duration.subsec_nanos());
    if seconds == 0 && nanos >= 1_000_000 {
        return format!("{}ms", nanos / 1_000_000);
    }
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let fraction = format!(".{nanos:09}");
    let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
    let seconds = format!("{}{fraction}s", seconds % 60);
    match (hours, minutes) {
        (0, 0) => seconds,
        (0, _) => format!("{minutes}m{seconds}"),
        (_, _) => format!("{hours}h{minutes}m{seconds}"),
    }
}

/// Parses `1h30m`, `1.5h`, `300ms`, `0` or a negative one, in nanoseconds.
pub fn parse_go_duration(text: &str) -> Option<i64> {
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i64 = 0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, tail) = rest.split_at(end);
        let end = tail.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        nanos = nanos.checked_add(scaled(number, nanos_of(unit)?)?)?;
        rest = tail;
    }
    Some(sign * nanos)
}

fn nanos_of(unit: &str) -> Option<u128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        "m" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        _ => return None,
    })
}

/// `number`, which may have a fraction, times `unit`.
fn scaled(number: &str, unit: u128) -> Option<i64> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| if text.is_empty() { Some(0) } else { text.parse::<u128>().ok() };
    // Further digits are less than a nanosecond of an hour.
    let fraction = &fraction[..fraction.len().min(15)];
    let power = 10_u128.pow(u32::try_from(fraction.len()).ok()?);
    let whole = digits(whole)?.checked_mul(unit)?;
    i64::try_from(whole.checked_add(digits(fraction)? * unit / power)?).ok()
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
    #[case(160_000, "2m40s")]
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
    #[case("1m30s", Some(90_000_000_000))]
    #[case(".5s", Some(500_000_000))]
    #[case("+1h", Some(3_600_000_000_000))]
    #[case("300ms", Some(300_000_000))]
    #[case("-0s", Some(0))]
    #[case("-5s", Some(-5_000_000_000))]
    #[case("-1ms", Some(-1_000_000))]
    #[case("", None)]
    #[case("-", None)]
    #[case("5", None)]
    #[case("5 m", None)]
    #[case("abc", None)]
    #[case(".s", None)]
    #[case("1d", None)]
    #[case("h", None)]
    #[case("1.2.3s", None)]
    #[case("999999999h", None)]
    fn durations_are_read_as_in_go(#[case] text: &str, #[case] expected: Option<i64>) {
        assert_eq!(parse_go_duration(text), expected);
    }
}
