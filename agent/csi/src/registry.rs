//! The registered drivers and their sockets.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use agent::storage::drivers::DriverCalls;
use compact::Map;
use tokio::sync::watch;

use crate::grpc::{CallDurations, Driver};
use crate::version::Version;

/// A registered driver.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Registered {
    /// The socket of its node service.
    endpoint: PathBuf,
    /// The registration socket.
    socket: PathBuf,
    version: Version,
}

/// All registered drivers.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    drivers: Mutex<Map<String, Registered>>,
    /// The number of registrations.
    registrations: watch::Sender<u64>,
    durations: CallDurations,
}

impl Registry {
    /// A driver's node service, or the kubelet's error if the driver is not registered.
    pub(crate) fn driver(&self, name: &str) -> Result<Driver, String> {
        Ok(self.driver_at(name, self.endpoint(name)?))
    }

    /// The node service of a driver at this socket.
    pub(crate) fn driver_at(&self, name: &str, endpoint: PathBuf) -> Driver {
        Driver::new(name, endpoint, self.durations.clone())
    }

    /// The durations of the calls of all drivers.
    pub(crate) fn call_durations(&self) -> DriverCalls {
        self.durations.all()
    }

    fn endpoint(&self, driver: &str) -> Result<PathBuf, String> {
        let found = self.lock().get(driver).map(|driver| driver.endpoint.clone());
        found.ok_or_else(|| {
            format!("driver name {driver} not found in the list of registered CSI drivers")
        })
    }

    /// The names of all drivers.
    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// The highest version of the registered driver of this name.
    pub(crate) fn version(&self, driver: &str) -> Option<Version> {
        self.lock().get(driver).map(|driver| driver.version)
    }

    /// Registers a driver. It replaces one of the same name.
    pub(crate) fn add(&self, driver: &str, endpoint: &Path, socket: &Path, version: Version) {
        let registered =
            Registered { endpoint: endpoint.to_owned(), socket: socket.to_owned(), version };
        self.lock().insert(driver.to_owned(), registered);
    }

    /// Announces that an added driver can be used.
    pub(crate) fn announce(&self) {
        self.registrations.send_modify(|count| *count += 1);
    }

    /// Removes the driver with this registration socket. Returns its name, unless another driver has replaced it.
    pub(crate) fn remove(&self, socket: &Path) -> Option<String> {
        let mut drivers = self.lock();
        let found = drivers.iter().find(|(_, driver)| driver.socket == socket);
        let name = found.map(|(name, _)| name.clone())?;
        drivers.remove(&name);
        Some(name)
    }

    /// Notifies of later registrations.
    pub(crate) fn registrations(&self) -> watch::Receiver<u64> {
        self.registrations.subscribe()
    }

    fn lock(&self) -> MutexGuard<'_, Map<String, Registered>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn driver_is_found_until_its_socket_is_removed() {
        let registry = Registry::default();
        let missing = "driver name d not found in the list of registered CSI drivers";
        assert_eq!(registry.endpoint("d"), Err(missing.to_owned()));
        let version = Version::highest(&["1.0.0".to_owned()]).ok();
        let version = version.unwrap_or_default();
        registry.add("d", Path::new("/csi.sock"), Path::new("/one.sock"), version);
        assert_eq!(registry.endpoint("d"), Ok(PathBuf::from("/csi.sock")));
        registry.add("d", Path::new("/new.sock"), Path::new("/two.sock"), version);
        assert_eq!(registry.remove(Path::new("/one.sock")), None);
        assert_eq!(registry.endpoint("d"), Ok(PathBuf::from("/new.sock")));
        assert_eq!(registry.remove(Path::new("/two.sock")), Some("d".to_owned()));
        assert_eq!(registry.endpoint("d"), Err(missing.to_owned()));
    }
}
