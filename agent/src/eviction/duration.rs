//! ◆ Durations as Go writes them: `1h30m`, `1.5s`, `-5s`.

use std::time::Duration;

/// A duration that may be negative.
pub(super) enum Parsed {
    /// Zero or more.
    Positive(Duration),
    /// Less than zero.
    Negative,
}

/// Parses a duration of Go; `None` for other text.
pub(super) fn parse(text: &str) -> Option<Parsed> {
    let (negative, mut rest) = match text.strip_prefix(['+', '-']) {
        Some(rest) => (text.starts_with('-'), rest),
        None => (false, text),
    };
    if rest == "0" {
        return Some(Parsed::Positive(Duration::ZERO));
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let length = rest.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
        let (number, after) = rest.split_at(length);
        let end = after
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        nanos = nanos.checked_add(scaled(number, nanos_of(unit)?)?)?;
        rest = next;
    }
    let nanos = u64::try_from(nanos).ok();
    let nanos = nanos.filter(|nanos| i64::try_from(*nanos).is_ok())?;
    Some(if negative && nanos > 0 {
        Parsed::Negative
    } else {
        Parsed::Positive(Duration::from_nanos(nanos))
    })
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
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.is_empty() && fraction.is_empty() || fraction.contains('.') {
        return None;
    }
    let digits = |text: &str| match text {
        "" => Some(0),
        text => text.parse::<u128>().ok(),
    };
    let mut sum = digits(whole)?.checked_mul(unit)?;
    // More digits than these are less than a nanosecond of an hour.
    let fraction = fraction.get(..fraction.len().min(15))?;
    let power = u32::try_from(fraction.len()).ok()?;
    sum = sum.checked_add(digits(fraction)?.checked_mul(unit)? / 10_u128.pow(power))?;
    Some(sum)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{Parsed, parse};

    #[rstest]
    #[case("0", Some(0))]
    #[case("1m30s", Some(90_000))]
    #[case("1.5s", Some(1500))]
    #[case(".5s", Some(500))]
    #[case("+1h", Some(3_600_000))]
    #[case("300ms", Some(300))]
    #[case("-0s", Some(0))]
    #[case("5", None)]
    #[case("", None)]
    #[case("-", None)]
    #[case("abc", None)]
    #[case("s", None)]
    #[case(".s", None)]
    #[case("1d", None)]
    #[case("1 s", None)]
    #[case("9999999999h", None)]
    fn durations_are_those_of_go(#[case] text: &str, #[case] millis: Option<u128>) {
        let parsed = match parse(text) {
            Some(Parsed::Positive(duration)) => Some(duration.as_millis()),
            Some(Parsed::Negative) | None => None,
        };
        assert_eq!(parsed, millis);
        assert!(matches!(parse("-5s"), Some(Parsed::Negative)));
    }
}
