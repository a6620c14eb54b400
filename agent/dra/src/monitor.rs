//! Follows the health of devices that drivers report, with one stream for each registered plugin. The health is also saved in a
//! file, so that a restarted agent does not report devices as unknown before their drivers are registered again.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go add, manager.go HandleWatchResourcesStream.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;
use std::{fs, io};

use compact::Map;
use jiff::Timestamp;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until};
use tonic::Code;

use crate::grpc::Plugin;
use crate::health::{DeviceHealth, FILE, Health, Healths, decode, encode};
use crate::store::replace;

/// The delay between the end of a stream and the next one.
const RETRY: Duration = Duration::from_secs(5);

/// The health of the devices of all drivers.
#[derive(Debug)]
pub(crate) struct HealthMonitor {
    state: Mutex<State>,
    file: PathBuf,
    /// The number of changes.
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    healths: Healths,
    /// The tasks that follow plugins, by driver and endpoint: another driver may register with the same endpoint.
    followers: Map<(String, PathBuf), JoinHandle<()>>,
    /// The plugin that has reported last, by driver. When an older plugin's stream ends, the newer plugin's reports stay.
    reporters: Map<String, PathBuf>,
}

impl HealthMonitor {
    /// Loads the file in this directory. An unreadable file is replaced, because drivers will report again.
    pub(crate) fn open(directory: &Path) -> Arc<Self> {
        let file = directory.join(FILE);
        let healths = match fs::read_to_string(&file) {
            Ok(text) => decode(&text, now()).unwrap_or_else(|error| {
                tracing::warn!(file = %file.display(), error, "ignored the malformed device health checkpoint");
                Healths::default()
            }),
            Err(error) => {
                if error.kind() != io::ErrorKind::NotFound {
                    tracing::warn!(file = %file.display(), %error, "failed to read the device health checkpoint");
                }
                Healths::default()
            }
        };
        let state = Mutex::new(State { healths, ..State::default() });
        Arc::new(Self { state, file, changes: watch::Sender::default() })
    }

    /// The health of a device, and its driver's message.
    pub(crate) fn of(&self, driver: &str, pool: &str, device: &str) -> (Health, Option<String>) {
        self.lock().healths.of(driver, pool, device)
    }

    /// Notifies of later changes of the health of devices.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    /// Starts to follow a plugin's reports.
    pub(crate) fn start(self: &Arc<Self>, driver: &str, plugin: Plugin) {
        let key = (driver.to_owned(), plugin.endpoint.clone());
        let following = follow(Arc::downgrade(self), driver.to_owned(), plugin);
        let before = self.lock().followers.insert(key, tasks::spawn(following));
        // The registry allows one plugin of a driver per endpoint.
        debug_assert!(before.is_none_or(|before| before.is_finished()));
    }

    /// Stops following a plugin, and removes what it has reported.
    pub(crate) async fn stop(&self, driver: &str, endpoint: &Path) {
        let key = (driver.to_owned(), endpoint.to_owned());
        let follower = self.lock().followers.remove(&key);
        if let Some(follower) = follower {
            follower.abort();
            // The task has ended after this, so it reports nothing more.
            let _ = follower.await;
        }
        self.clear(driver, endpoint);
    }

    /// Records a plugin's report.
    fn report(&self, driver: &str, plugin: &Plugin, devices: Vec<DeviceHealth>) {
        let is_changed = {
            let mut state = self.lock();
            state.reporters.insert(driver.to_owned(), plugin.endpoint.clone());
            state.healths.report(driver, devices, now().0)
        };
        self.note(is_changed);
    }

    /// Removes what a plugin has reported.
    fn clear(&self, driver: &str, endpoint: &Path) {
        let is_changed = {
            let mut state = self.lock();
            let is_reporter = state.reporters.get(driver).is_some_and(|it| it == endpoint);
            if is_reporter {
                state.reporters.remove(driver);
            }
            is_reporter && state.healths.clear(driver)
        };
        self.note(is_changed);
    }

    /// Marks the health of devices as unknown after its timeout, until the future is dropped.
    pub(crate) async fn expire(&self) {
        let mut changes = self.changes();
        loop {
            let next = self.lock().healths.next().map(Instant::from_std);
            tokio::select! {
                // It cannot fail: `self` owns the sender.
                _ = changes.changed() => {}
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let is_changed = self.lock().healths.expire(now().0);
                    self.note(is_changed);
                }
            }
        }
    }

    fn note(&self, is_changed: bool) {
        if !is_changed {
            return;
        }
        // Write while the lock is held, so that an older state never overwrites a newer one.
        {
            let state = self.lock();
            let text = encode(&state.healths, now());
            let written =
                text.and_then(|text| replace(&self.file, &text).map_err(|error| error.to_string()));
            if let Err(error) = written {
                tracing::warn!(file = %self.file.display(), error, "failed to write the device health checkpoint");
            }
        }
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for HealthMonitor {
    fn drop(&mut self) {
        self.lock().followers.values().for_each(JoinHandle::abort);
    }
}

/// Follows a plugin's reports until the plugin turns out to have no health service, or [`HealthMonitor`] is dropped.
pub(crate) async fn follow(monitor: Weak<HealthMonitor>, driver: String, plugin: Plugin) {
    loop {
        let ended = stream(&monitor, &driver, &plugin).await;
        let Some(noting) = monitor.upgrade() else { return };
        noting.clear(&driver, &plugin.endpoint);
        drop(noting);
        match ended {
            // The kubelet retries without end.
            Err(Code::Unimplemented) => return,
            ended => {
                tracing::debug!(driver, ?ended, "device health stream ended; will retry");
            }
        }
        sleep(RETRY).await;
    }
}

async fn stream(monitor: &Weak<HealthMonitor>, driver: &str, plugin: &Plugin) -> Result<(), Code> {
    let mut reports = plugin.watch_health().await.map_err(|status| status.code())?;
    while let Some(devices) = reports.next().await.map_err(|status| status.code())? {
        let Some(monitor) = monitor.upgrade() else { break };
        monitor.report(driver, plugin, devices);
    }
    Ok(())
}

fn now() -> (std::time::Instant, Timestamp) {
    (Instant::now().into_std(), Timestamp::now())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::services::Service;

    #[tokio::test]
    async fn replaced_plugin_does_not_clear_health_of_its_successor() {
        let root = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let monitor = HealthMonitor::open(root.path());
        let plugin = |name: &str| Plugin::new(PathBuf::from(name), Service::V1);
        let (old, new) = (plugin("/old.sock"), plugin("/new.sock"));
        for plugin in [&old, &new] {
            let healthy = DeviceHealth {
                pool: "node".to_owned(),
                device: "gpu-0".to_owned(),
                health: Health::Healthy,
                timeout: Duration::from_secs(30),
                message: String::new(),
            };
            monitor.report("d", plugin, vec![healthy]);
        }
        monitor.stop("d", &old.endpoint).await;
        assert_eq!(monitor.of("d", "node", "gpu-0").0, Health::Healthy);
        monitor.stop("d", &new.endpoint).await;
        assert_eq!(monitor.of("d", "node", "gpu-0").0, Health::Unknown);
    }

    #[tokio::test]
    async fn driver_that_claims_the_endpoint_of_another_one_does_not_replace_it() {
        let root = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let monitor = HealthMonitor::open(root.path());
        let plugin = Plugin::new(root.path().join("absent.sock"), Service::V1);
        for driver in ["first", "second"] {
            monitor.start(driver, plugin.clone());
        }
        monitor.stop("second", &plugin.endpoint).await;
        let followed: Vec<String> =
            monitor.lock().followers.keys().map(|(driver, _)| driver.clone()).collect();
        assert_eq!(followed, ["first"]);
    }
}
