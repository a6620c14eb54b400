//! The registered plugins of drivers that the plugin watcher has found, and whether they are reachable. While a driver is
//! replaced, it has two plugins.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go RegisterPlugin, DeRegisterPlugin, ValidatePlugin, get.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use compact::{Map, Set};
use plugins::{PluginHandler, PluginInfo};
use tokio::sync::watch;

use crate::grpc::Plugin;
use crate::monitor::HealthMonitor;
use crate::services::{Service, choose};

/// A registered plugin.
#[derive(Clone, Debug)]
struct Registered {
    plugin: Plugin,
    /// The last connection attempt succeeded.
    is_reachable: bool,
}

/// All registered plugins, by driver. A driver without plugins was deregistered.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    drivers: Mutex<Map<String, Vec<Registered>>>,
    /// The number of changes.
    changes: watch::Sender<u64>,
}

impl Registry {
    /// The plugin of a driver: the last registered of the reachable ones, or else the last registered one.
    ///
    /// # Errors
    /// The kubelet's error if there is none.
    pub(crate) fn plugin(&self, driver: &str) -> Result<Plugin, String> {
        if driver.is_empty() {
            return Err("DRA driver name is empty".to_owned());
        }
        let drivers = self.lock();
        let plugins = drivers.get(driver).map(Vec::as_slice).unwrap_or_default();
        let registered = plugins.iter().rev().find(|it| it.is_reachable).or(plugins.last());
        let found = registered.map(|it| it.plugin.clone());
        found.ok_or_else(|| format!("DRA driver {driver} is not registered"))
    }

    /// Registers a plugin.
    ///
    /// # Errors
    /// If another plugin has the same endpoint.
    pub(crate) fn add(&self, driver: &str, plugin: Plugin) -> Result<(), String> {
        let mut drivers = self.lock();
        let plugins = drivers.entry(driver.to_owned()).or_default();
        if plugins.iter().any(|other| other.plugin.endpoint == plugin.endpoint) {
            let endpoint = plugin.endpoint.display();
            return Err(format!(
                "endpoint {endpoint} already registered for DRA driver plugin {driver}"
            ));
        }
        plugins.push(Registered { plugin, is_reachable: true });
        drop(drivers);
        self.changed();
        Ok(())
    }

    /// Removes a plugin.
    pub(crate) fn remove(&self, driver: &str, endpoint: &Path) {
        if let Some(plugins) = self.lock().get_mut(driver) {
            plugins.retain(|it| it.plugin.endpoint != endpoint);
        }
        self.changed();
    }

    /// All plugins.
    pub(crate) fn plugins(&self) -> Vec<Plugin> {
        let drivers = self.lock();
        drivers.values().flatten().map(|it| it.plugin.clone()).collect()
    }

    /// Records whether the plugin at an endpoint is reachable.
    pub(crate) fn set_reachable(&self, endpoint: &Path, is_reachable: bool) {
        for registered in self.lock().values_mut().flatten() {
            if registered.plugin.endpoint == endpoint && registered.is_reachable != is_reachable {
                tracing::info!(endpoint = %endpoint.display(), is_reachable, "plugin reachability changed");
                registered.is_reachable = is_reachable;
            }
        }
    }

    /// The drivers without a reachable plugin that were registered at some time.
    pub(crate) fn missing(&self) -> Set<String> {
        let drivers = self.lock();
        let missing =
            drivers.iter().filter(|(_, plugins)| !plugins.iter().any(|it| it.is_reachable));
        missing.map(|(driver, _)| driver.clone()).collect()
    }

    /// Notifies of later registrations and deregistrations.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    fn lock(&self) -> MutexGuard<'_, Map<String, Vec<Registered>>> {
        self.drivers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Adds and removes plugins in the registry, and follows the health that they report.
pub(crate) struct DriverHandler {
    pub(crate) registry: Arc<Registry>,
    pub(crate) health: Arc<HealthMonitor>,
}

fn service(plugin: &PluginInfo) -> Result<Service, String> {
    choose(&plugin.name, &plugin.endpoint.display().to_string(), &plugin.versions)
}

#[async_trait]
impl PluginHandler for DriverHandler {
    fn kind(&self) -> &'static str {
        "DRAPlugin"
    }

    fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        service(plugin).map(drop)
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        let (driver, endpoint) = (&plugin.name, plugin.endpoint.clone());
        let service = service(plugin)?;
        let called = Plugin::new(endpoint, service);
        self.registry.add(driver, called.clone())?;
        self.health.start(driver, called);
        tracing::info!(driver, endpoint = %plugin.endpoint.display(), ?service, "registered driver");
        Ok(())
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.registry.remove(&plugin.name, &plugin.endpoint);
        self.health.stop(&plugin.name, &plugin.endpoint).await;
        tracing::info!(driver = plugin.name, socket = %plugin.socket.display(), "deregistered driver");
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::path::PathBuf;

    use super::*;

    fn plugin(endpoint: &str) -> Plugin {
        Plugin::new(endpoint.into(), Service::V1)
    }

    #[test]
    fn plugin_is_the_last_reachable_one() {
        let registry = Registry::default();
        let endpoint = |driver: &str| registry.plugin(driver).map(|plugin| plugin.endpoint);
        let of = |endpoint: &str| Ok::<_, String>(PathBuf::from(endpoint));
        assert_eq!(endpoint("d"), Err("DRA driver d is not registered".to_owned()));
        assert_eq!(endpoint(""), Err("DRA driver name is empty".to_owned()));
        registry.add("d", plugin("/1.sock")).unwrap();
        registry.add("d", plugin("/2.sock")).unwrap();
        let again = registry.add("d", plugin("/1.sock"));
        let expected = "endpoint /1.sock already registered for DRA driver plugin d";
        assert_eq!(again, Err(expected.to_owned()));
        assert_eq!(endpoint("d"), of("/2.sock"));
        registry.set_reachable(Path::new("/2.sock"), false);
        assert_eq!(endpoint("d"), of("/1.sock"));
        registry.set_reachable(Path::new("/1.sock"), false);
        assert_eq!(endpoint("d"), of("/2.sock"));
        assert!(registry.missing().contains("d"));
        registry.set_reachable(Path::new("/1.sock"), true);
        assert!(!registry.missing().contains("d"));
        registry.remove("d", Path::new("/1.sock"));
        registry.remove("d", Path::new("/2.sock"));
        assert!(registry.missing().contains("d"));
        endpoint("d").unwrap_err();
    }
}
