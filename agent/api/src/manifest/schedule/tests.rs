//! Cron expressions as parsed by robfig/cron, and their times.
#![allow(clippy::unwrap_used, reason = "tests")]

use proptest::prelude::*;
use rstest::rstest;

use super::*;

#[rstest]
#[case("* * * * *")]
#[case("*/15 0-6/2 1,15 JAN-mar,12 mon-FRI")]
#[case("? ? ? ? ?")]
#[case("5/15 +3 1 * *")]
#[case("0 0 31 2 *")]
#[case("@hourly")]
#[case("@every 90s")]
#[case(" 0\t0  * * 0 ")]
#[case("1,,2 * * * *")]
fn schedule_parses(#[case] text: &str) {
    parse(text).unwrap();
}

#[rstest]
#[case("", "empty spec string")]
#[case("* * * *", "expected exactly 5 fields, found 4: [* * * *]")]
#[case("* * * * * *", "expected exactly 5 fields, found 6: [* * * * * *]")]
#[case("60 * * * *", "end of range (60) above maximum (59): 60")]
#[case("* 24 * * *", "end of range (24) above maximum (23): 24")]
#[case("* * 0 * *", "beginning of range (0) below minimum (1): 0")]
#[case("* * * 13 *", "end of range (13) above maximum (12): 13")]
#[case("* * * * 7", "end of range (7) above maximum (6): 7")]
#[case("5-2 * * * *", "beginning of range (5) beyond end of range (2): 5-2")]
#[case("*/0 * * * *", "step of range should be a positive number: */0")]
#[case("1-2-3 * * * *", "too many hyphens: 1-2-3")]
#[case("1/2/3 * * * *", "too many slashes: 1/2/3")]
#[case("x * * * *", "failed to parse int from x: expected a number or a name")]
#[case("-1 * * * *", "failed to parse int from : expected a number or a name")]
#[case("* * * mon *", "failed to parse int from mon: expected a number or a name")]
#[case("@Hourly", "unrecognized descriptor: @Hourly")]
#[case("@reboot", "unrecognized descriptor: @reboot")]
#[case(
    "@every soon",
    "failed to parse duration @every soon: expected a number with a unit, such as 1h30m"
)]
fn malformed_schedule_is_refused(#[case] text: &str, #[case] message: &str) {
    assert_eq!(parse(text).unwrap_err().to_string(), message);
}

#[rstest]
#[case::every_minute("* * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z")]
#[case::fraction_is_dropped("* * * * *", "2026-01-01T00:00:59.9Z", "2026-01-01T00:01:00Z")]
#[case::step("*/15 * * * *", "2026-01-01T00:45:00Z", "2026-01-01T01:00:00Z")]
#[case::from_to_end("50/5 * * * *", "2026-01-01T00:00:00Z", "2026-01-01T00:50:00Z")]
#[case::day_end("30 23 * * *", "2026-01-31T23:30:00Z", "2026-02-01T23:30:00Z")]
#[case::month("0 0 1 3 *", "2026-03-01T00:00:00Z", "2027-03-01T00:00:00Z")]
#[case::weekday("0 12 * * fri", "2026-01-01T00:00:00Z", "2026-01-02T12:00:00Z")]
#[case::either_day("0 0 13 * fri", "2026-01-09T00:00:00Z", "2026-01-13T00:00:00Z")]
#[case::both_days_with_a_star("0 0 */2 * fri", "2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z")]
#[case::leap_day("0 0 29 2 *", "2026-01-01T00:00:00Z", "2028-02-29T00:00:00Z")]
#[case::weekly("@weekly", "2026-01-01T00:00:00Z", "2026-01-04T00:00:00Z")]
#[case::yearly("@yearly", "2026-01-01T00:00:00Z", "2027-01-01T00:00:00Z")]
#[case::every("@every 1h30m", "2026-01-01T00:00:07.5Z", "2026-01-01T01:30:07Z")]
#[case::every_has_seconds("@every 1ms", "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z")]
fn schedule_is_due_next(#[case] text: &str, #[case] after: &str, #[case] next: &str) {
    let schedule = parse(text).unwrap();
    let found = schedule.next(after.parse().unwrap(), &TimeZone::UTC);
    assert_eq!(found, Some(next.parse().unwrap()));
}

#[rstest]
#[case::winter("0 9 * * *", "2026-01-01T00:00:00Z", "2026-01-01T08:00:00Z")]
#[case::summer("0 9 * * *", "2026-07-01T00:00:00Z", "2026-07-01T07:00:00Z")]
// The clock goes from 02:00 to 03:00.
#[case::skipped_hour("30 2 * * *", "2026-03-28T12:00:00Z", "2026-03-30T00:30:00Z")]
// The clock goes from 03:00 back to 02:00.
#[case::hour_twice("30 2 * * *", "2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z")]
fn schedule_follows_its_time_zone(#[case] text: &str, #[case] after: &str, #[case] next: &str) {
    let zone = zone(Some("Europe/Berlin")).unwrap();
    let found = parse(text).unwrap().next(after.parse().unwrap(), &zone);
    assert_eq!(found, Some(next.parse().unwrap()));
}

#[test]
fn day_without_midnight_begins_later() {
    // In Beirut, 2026-03-29 begins at 01:00.
    let zone = zone(Some("Asia/Beirut")).unwrap();
    let after = "2026-03-28T12:00:00Z".parse().unwrap();
    let next = parse("*/30 * 29 * *").unwrap().next(after, &zone);
    assert_eq!(next, Some("2026-03-28T22:00:00Z".parse().unwrap()));
}

#[test]
fn impossible_day_is_never_due() {
    let schedule = parse("59 23 31 2 *").unwrap();
    assert_eq!(schedule.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC), None);
}

#[rstest]
#[case("", ZoneError::Empty)]
#[case("Local", ZoneError::Local)]
#[case("local", ZoneError::Local)]
#[case("Europe/Nowhere", ZoneError::Unknown("Europe/Nowhere".to_owned()))]
#[case("europe/berlin", ZoneError::Unknown("europe/berlin".to_owned()))]
fn unknown_zone_is_refused(#[case] name: &str, #[case] error: ZoneError) {
    assert_eq!(zone(Some(name)).unwrap_err(), error);
}

#[rstest]
#[case(None)]
#[case(Some("UTC"))]
#[case(Some("Etc/UTC"))]
fn utc_is_known(#[case] name: Option<&str>) {
    let found = zone(name).unwrap();
    let offset = found.to_offset(Timestamp::UNIX_EPOCH);
    assert_eq!(offset.seconds(), 0);
}

proptest! {
    #[test]
    fn next_time_is_later_and_on_a_minute(minute in 0..60, hour in 0..24, at in 0_i64..4_000_000_000) {
        let schedule = parse(&format!("{minute} {hour} * * *")).unwrap();
        let after = Timestamp::from_second(at).unwrap();
        let next = schedule.next(after, &TimeZone::UTC).unwrap();
        prop_assert!(next > after && next.as_second() - at <= 86_400);
        prop_assert_eq!(next.as_second() % 60, 0);
    }

    #[test]
    fn any_text_parses_or_is_refused(text in "[-*/?,@a-z0-9 ]{0,30}") {
        if let Ok(schedule) = parse(&text) {
            let _ = schedule.next(Timestamp::UNIX_EPOCH, &TimeZone::UTC);
        }
    }
}
