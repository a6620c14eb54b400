//! ◆ The health of devices as drivers report it, and its checkpoint in the format of the kubelet's `dra_health_state`. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/healthinfo.go, state/state.go, manager.go buildDeviceHealth.

use std::time::{Duration, Instant};

use compact::Map;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

/// The file name.
pub(crate) const FILE: &str = "dra_health_state";

/// The default time after a report until the health of a device is unknown.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The maximum length of a message in bytes.
const MESSAGE: usize = 1024;

/// The maximum lengths of the names of a pool and of a device in a ResourceSlice.
const POOL_NAME: usize = 253;
const DEVICE_NAME: usize = 63;

/// The maximum number of devices of a driver whose health is known. A kubelet has no limit.
const DEVICES: usize = 4096;

/// The health of a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Health {
    Healthy,
    Unhealthy,
    #[default]
    Unknown,
}

impl Health {
    /// Its name in container statuses.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
            Self::Unknown => "Unknown",
        }
    }
}

/// A driver's report about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeviceHealth {
    pub(crate) pool: String,
    pub(crate) device: String,
    pub(crate) health: Health,
    pub(crate) timeout: Duration,
    pub(crate) message: String,
}

/// Truncates a message to the length that a status allows.
pub(crate) fn truncated(message: String) -> String {
    if message.len() <= MESSAGE {
        return message;
    }
    const END: &str = "...";
    let whole = message.floor_char_boundary(MESSAGE - END.len());
    format!("{}{END}", message.get(..whole).unwrap_or_default())
}

/// A report, and the time at which it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Received {
    report: DeviceHealth,
    at: Instant,
}

impl Received {
    /// The time at which the health becomes unknown without another report.
    fn ends(&self) -> Instant {
        // A longer timeout could overflow `Instant`.
        const LONG: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
        self.at + self.report.timeout.min(LONG)
    }
}

/// The health of all devices, by driver, then by pool and device name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Healths(Map<String, Map<(String, String), Received>>);

impl Healths {
    /// Records a driver's report. Devices that it does not mention keep their health until it times out. Devices that no
    /// ResourceSlice can contain, and too many ones, are ignored. Returns whether the health of any device has changed.
    pub(crate) fn report(
        &mut self,
        driver: &str,
        devices: Vec<DeviceHealth>,
        now: Instant,
    ) -> bool {
        let known = self.0.entry(driver.to_owned()).or_default();
        let mut is_changed = false;
        for report in devices {
            let key = (report.pool.clone(), report.device.clone());
            let is_valid = key.0.len() <= POOL_NAME && key.1.len() <= DEVICE_NAME;
            if !is_valid || (known.len() >= DEVICES && !known.contains_key(&key)) {
                continue;
            }
            let before = known.insert(key, Received { report: report.clone(), at: now });
            is_changed |= before.is_none_or(|before| before.report != report);
        }
        is_changed | self.expire(now)
    }

    /// Removes the health of devices that has timed out. Returns whether there was any.
    pub(crate) fn expire(&mut self, now: Instant) -> bool {
        let mut is_changed = false;
        for devices in self.0.values_mut() {
            let before = devices.len();
            devices.retain(|_, received| now < received.ends());
            is_changed |= devices.len() < before;
        }
        is_changed
    }

    /// The next time at which the health of a device becomes unknown.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().flat_map(Map::values).map(Received::ends).min()
    }

    /// Removes all devices of a driver. Returns whether there were any.
    pub(crate) fn clear(&mut self, driver: &str) -> bool {
        self.0.remove(driver).is_some_and(|devices| !devices.is_empty())
    }

    /// The health of a device, and its driver's message.
    pub(crate) fn of(&self, driver: &str, pool: &str, device: &str) -> (Health, Option<String>) {
        let devices = self.0.get(driver);
        let key = (pool.to_owned(), device.to_owned());
        let Some(received) = devices.and_then(|devices| devices.get(&key)) else {
            return (Health::Unknown, None);
        };
        let message = Some(received.report.message.clone()).filter(|it| !it.is_empty());
        (received.report.health, message)
    }
}

/// The checkpoint: devices by driver.
type File = Map<String, DriverHealth>;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DriverHealth {
    /// By pool and device name, separated by a slash.
    devices: Map<String, Saved>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Saved {
    pool_name: String,
    device_name: String,
    health: Health,
    last_updated: Timestamp,
    /// Nanoseconds; 0: the default.
    health_check_timeout: u64,
    message: String,
}

/// Encodes the checkpoint. `now` is the current time of both clocks.
///
/// # Errors
/// The error as text.
pub(crate) fn encode(healths: &Healths, now: (Instant, Timestamp)) -> Result<String, String> {
    let saved = |received: &Received| Saved {
        pool_name: received.report.pool.clone(),
        device_name: received.report.device.clone(),
        health: received.report.health,
        last_updated: before(now.1, now.0.saturating_duration_since(received.at)),
        health_check_timeout: received.report.timeout.as_nanos().try_into().unwrap_or(u64::MAX),
        message: received.report.message.clone(),
    };
    let of_driver = |devices: &Map<(String, String), Received>| DriverHealth {
        devices: devices
            .iter()
            .map(|((pool, device), received)| (format!("{pool}/{device}"), saved(received)))
            .collect(),
    };
    let file: File =
        healths.0.iter().map(|(driver, devices)| (driver.clone(), of_driver(devices))).collect();
    serde_json::to_string(&file).map_err(|error| error.to_string())
}

/// Decodes a checkpoint, without reports that have timed out.
///
/// # Errors
/// The error as text if it is malformed.
pub(crate) fn decode(text: &str, now: (Instant, Timestamp)) -> Result<Healths, String> {
    let file: File = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let mut healths = Healths::default();
    for (driver, of_driver) in file {
        let known = healths.0.entry(driver).or_default();
        for saved in of_driver.devices.into_values() {
            let timeout = match saved.health_check_timeout {
                0 => TIMEOUT,
                nanoseconds => Duration::from_nanos(nanoseconds),
            };
            // The clock may have been set back: count such a report as received now.
            let age = now.1.duration_since(saved.last_updated).max(SignedDuration::ZERO);
            let Some(at) = now.0.checked_sub(age.unsigned_abs()) else { continue };
            let key = (saved.pool_name.clone(), saved.device_name.clone());
            let report = DeviceHealth {
                pool: saved.pool_name,
                device: saved.device_name,
                health: saved.health,
                timeout,
                message: saved.message,
            };
            known.insert(key, Received { report, at });
        }
    }
    healths.expire(now.0);
    Ok(healths)
}

fn before(at: Timestamp, age: Duration) -> Timestamp {
    let age = SignedDuration::try_from(age).unwrap_or(SignedDuration::MAX);
    at.checked_sub(age).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    fn device(name: &str, health: Health, seconds: u64) -> DeviceHealth {
        DeviceHealth {
            pool: "node".to_owned(),
            device: name.to_owned(),
            health,
            timeout: Duration::from_secs(seconds),
            message: String::new(),
        }
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn health_of_last_report_lasts_until_timeout() {
        let (mut healths, start) = (Healths::default(), Instant::now());
        let of = |healths: &Healths, name: &str| healths.of("d", "node", name).0;
        let both = || vec![device("a", Health::Healthy, 30), device("b", Health::Healthy, 5)];
        assert!(healths.report("d", both(), start));
        assert!(!healths.report("d", both(), start + seconds(1)), "the same again");
        assert_eq!(healths.next(), Some(start + seconds(6)));
        // A report that does not mention a device leaves its health unchanged.
        let one = vec![device("a", Health::Unhealthy, 30)];
        assert!(healths.report("d", one.clone(), start + seconds(2)));
        assert_eq!((of(&healths, "a"), of(&healths, "b")), (Health::Unhealthy, Health::Healthy));
        assert!(healths.report("d", one, start + seconds(6)), "b has passed");
        assert_eq!((of(&healths, "a"), of(&healths, "b")), (Health::Unhealthy, Health::Unknown));
        assert!(!healths.expire(start + seconds(35)));
        assert!(healths.expire(start + seconds(36)));
        assert_eq!((of(&healths, "a"), healths.next()), (Health::Unknown, None));
    }

    #[rstest]
    #[case::message(|it: &mut DeviceHealth| it.message = "hot".to_owned())]
    #[case::timeout(|it: &mut DeviceHealth| it.timeout = Duration::MAX)]
    fn changed_field_of_a_report_is_a_change(#[case] change: fn(&mut DeviceHealth)) {
        let (mut healths, now) = (Healths::default(), Instant::now());
        let mut report = device("a", Health::Healthy, 30);
        assert!(healths.report("d", vec![report.clone()], now));
        change(&mut report);
        assert!(healths.report("d", vec![report.clone()], now));
        let message = Some(report.message).filter(|it| !it.is_empty());
        assert_eq!(healths.of("d", "node", "a"), (Health::Healthy, message));
    }

    #[test]
    fn driver_fills_no_memory_with_health_of_devices() {
        let (mut healths, now) = (Healths::default(), Instant::now());
        let of = |healths: &Healths, name: &str| healths.of("d", "node", name).0;
        let long = "x".repeat(DEVICE_NAME + 1);
        assert!(!healths.report("d", vec![device(&long, Health::Healthy, 30)], now));
        let names = |count: usize| (0..count).map(|number| format!("d{number}"));
        let all = names(DEVICES + 1).map(|name| device(&name, Health::Healthy, 30));
        assert!(healths.report("d", all.collect(), now));
        let last: Vec<Health> =
            names(DEVICES + 1).skip(DEVICES - 1).map(|name| of(&healths, &name)).collect();
        assert_eq!(last, [Health::Healthy, Health::Unknown]);
        assert!(healths.report("d", vec![device("d0", Health::Unhealthy, 30)], now));
        assert_eq!(of(&healths, "d0"), Health::Unhealthy);
    }

    #[test]
    fn clear_keeps_health_of_other_drivers() {
        let (mut healths, now) = (Healths::default(), Instant::now());
        for driver in ["d", "e"] {
            healths.report(driver, vec![device("a", Health::Healthy, 30)], now);
        }
        assert!(healths.clear("d"));
        assert!(!healths.clear("d"));
        assert_eq!(healths.of("d", "node", "a").0, Health::Unknown);
        assert_eq!(healths.of("e", "node", "a").0, Health::Healthy);
    }

    #[rstest]
    #[case(1024, 1024)]
    #[case(1025, 1024)]
    fn long_messages_are_truncated(#[case] length: usize, #[case] expected: usize) {
        let short = truncated("x".repeat(length));
        assert_eq!((short.len(), short.ends_with("...")), (expected, length > expected));
        // It does not split a character.
        assert_eq!(truncated("ü".repeat(600)).len(), 1023);
    }

    /// Encoded with the types of kubelet 1.36.2.
    const OF_KUBELET: &str = r#"{"d":{"Devices":{"node/a":{"PoolName":"node","DeviceName":"a","Health":"Unhealthy","LastUpdated":"2026-01-02T03:04:05.678901234Z","HealthCheckTimeout":10000000000,"Message":"hot"}}}}"#;

    #[test]
    fn checkpoint_has_the_kubelets_format() {
        let wrote: Timestamp = "2026-01-02T03:04:05.678901234Z".parse().unwrap();
        let now = Instant::now() + seconds(100);
        let read = decode(OF_KUBELET, (now, wrote)).unwrap();
        assert_eq!(encode(&read, (now, wrote)).unwrap(), OF_KUBELET);
        assert_eq!(read.of("d", "node", "a"), (Health::Unhealthy, Some("hot".to_owned())));
        let later = |seconds: i64| wrote + SignedDuration::from_secs(seconds);
        let of = |healths: Healths| healths.of("d", "node", "a").0;
        assert_eq!(of(decode(OF_KUBELET, (now, later(9))).unwrap()), Health::Unhealthy);
        assert_eq!(of(decode(OF_KUBELET, (now, later(10))).unwrap()), Health::Unknown);
        // The clock was set back.
        assert_eq!(of(decode(OF_KUBELET, (now, later(-60))).unwrap()), Health::Unhealthy);
        assert!(decode("{", (now, wrote)).is_err());
    }
}
