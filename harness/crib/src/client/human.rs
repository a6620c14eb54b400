//! ◆ Times, sizes and ids in the formats of docker's and crictl's tables.

use std::time::Duration;

/// The length of a truncated id in a table.
const ID: usize = 13;

/// The beginning of an id, without the prefix of its hash algorithm; the whole id if `whole`.
pub(crate) fn id(id: &str, whole: bool) -> &str {
    let bare = id.strip_prefix("sha256:").unwrap_or(id);
    if whole {
        return id;
    }
    bare.get(..ID).unwrap_or(bare)
}

/// A size in decimal units with three digits: `743kB`, `4.86MB`.
pub(crate) fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 999.5 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = units.get(unit).copied().unwrap_or_default();
    match value {
        _ if unit == "B" => format!("{value}{unit}"),
        value if value < 9.995 => format!("{}{unit}", trim(&format!("{value:.2}"))),
        value if value < 99.95 => format!("{}{unit}", trim(&format!("{value:.1}"))),
        value => format!("{value:.0}{unit}"),
    }
}

/// A size in decimal units with four digits: `743.2kB`, `4.861MB`, as crictl prints measured sizes.
pub(crate) fn usage(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];
    #[expect(clippy::cast_precision_loss, reason = "four digits are shown")]
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit + 1 < units.len() {
        value /= 1000.0;
        unit += 1;
    }
    let unit = units.get(unit).copied().unwrap_or_default();
    let text = match value {
        value if value < 10.0 => format!("{value:.3}"),
        value if value < 100.0 => format!("{value:.2}"),
        value => format!("{value:.1}"),
    };
    format!("{}{unit}", trim(&text))
}

fn trim(number: &str) -> &str {
    number.trim_end_matches('0').trim_end_matches('.')
}

/// A time span: `Less than a second`, `About an hour`, `3 weeks`.
pub(crate) fn span(time: Duration) -> String {
    let seconds = time.as_secs();
    let (minutes, hours) = (seconds / 60, (time.as_secs_f64() / 3600.0).round() as u64);
    match () {
        () if seconds < 1 => "Less than a second".to_owned(),
        () if seconds == 1 => "1 second".to_owned(),
        () if seconds < 60 => format!("{seconds} seconds"),
        () if minutes == 1 => "About a minute".to_owned(),
        () if minutes < 60 => format!("{minutes} minutes"),
        () if hours <= 1 => "About an hour".to_owned(),
        () if hours < 48 => format!("{hours} hours"),
        () if hours < 24 * 14 => format!("{} days", hours / 24),
        () if hours < 24 * 60 => format!("{} weeks", hours / 24 / 7),
        () if hours < 24 * 365 * 2 => format!("{} months", hours / 24 / 30),
        () => format!("{} years", hours / 24 / 365),
    }
}

/// The time since a CRI timestamp (nanoseconds since 1970, 0 for never).
pub(crate) fn ago(then: i64, now: i64) -> String {
    if then <= 0 {
        return "-".to_owned();
    }
    let elapsed = u64::try_from(now.saturating_sub(then)).unwrap_or_default();
    format!("{} ago", span(Duration::from_nanos(elapsed)))
}

/// A CRI timestamp in the format of RFC 3339; empty for never.
pub(crate) fn timestamp(nanos: i64) -> String {
    let time = jiff::Timestamp::from_nanosecond(nanos.into());
    match time {
        Ok(time) if nanos > 0 => format!("{time:.9}"),
        Ok(_) | Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("sha256:0123456789abcdef0", false, "0123456789abc")]
    #[case("0123456789abcdef0", false, "0123456789abc")]
    #[case("short", false, "short")]
    #[case("sha256:0123456789abcdef0", true, "sha256:0123456789abcdef0")]
    fn id_is_truncated_to_13_characters(
        #[case] text: &str,
        #[case] whole: bool,
        #[case] shown: &str,
    ) {
        assert_eq!(id(text, whole), shown);
    }

    #[rstest]
    #[case(0, "0B")]
    #[case(999, "999B")]
    #[case(1000, "1kB")]
    #[case(1234, "1.23kB")]
    #[case(12_345, "12.3kB")]
    #[case(743_000, "743kB")]
    #[case(999_700, "1MB")]
    #[case(4_860_000, "4.86MB")]
    #[case(u64::MAX, "18.4EB")]
    fn size_uses_decimal_units(#[case] bytes: u64, #[case] shown: &str) {
        assert_eq!(size(bytes), shown);
    }

    #[rstest]
    #[case(0, "0B")]
    #[case(999, "999B")]
    #[case(1234, "1.234kB")]
    #[case(14_610_432, "14.61MB")]
    #[case(743_250, "743.2kB")]
    #[case(5_000_000, "5MB")]
    fn usage_has_four_digits(#[case] bytes: u64, #[case] shown: &str) {
        assert_eq!(usage(bytes), shown);
    }

    #[rstest]
    #[case(0, "Less than a second")]
    #[case(1, "1 second")]
    #[case(59, "59 seconds")]
    #[case(60, "About a minute")]
    #[case(120, "2 minutes")]
    #[case(3600, "About an hour")]
    #[case(7200, "2 hours")]
    #[case(3 * 86400, "3 days")]
    #[case(21 * 86400, "3 weeks")]
    #[case(90 * 86400, "3 months")]
    #[case(900 * 86400, "2 years")]
    fn duration_is_rounded_to_its_largest_unit(#[case] seconds: u64, #[case] shown: &str) {
        assert_eq!(span(Duration::from_secs(seconds)), shown);
    }

    #[rstest]
    #[case(0, 5, "-")]
    #[case(5, 0, "Less than a second ago")]
    #[case(1, 3_000_000_001, "3 seconds ago")]
    fn age_is_relative_to_now(#[case] then: i64, #[case] now: i64, #[case] shown: &str) {
        assert_eq!(ago(then, now), shown);
    }

    #[test]
    fn timestamp_has_nanoseconds() {
        assert_eq!(timestamp(1_500_000_000), "1970-01-01T00:00:01.500000000Z");
        assert_eq!(timestamp(0), "");
    }
}
