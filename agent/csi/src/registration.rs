//! Registers the drivers that the plugin watcher finds, and publishes them in the node's object and CSINode.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_plugin.go RegisterPlugin, DeRegisterPlugin.

use std::sync::Arc;

use async_trait::async_trait;
use plugins::{PluginHandler, PluginInfo};
use tokio::sync::watch;

use crate::cluster::VolumeCluster;
use crate::registry::Registry;
use crate::version::accept;

/// Adds and removes drivers in the registry.
pub(crate) struct DriverHandler {
    pub(crate) registry: Arc<Registry>,
    pub(crate) cluster: Arc<dyn VolumeCluster>,
    /// Whether the mounted volumes are known. No driver is used before that.
    pub(crate) volumes_are_known: watch::Receiver<bool>,
}

impl DriverHandler {
    async fn add(&self, plugin: &PluginInfo) -> Result<(), String> {
        let PluginInfo { name, endpoint, versions, socket, .. } = plugin;
        let version = accept("RegisterPlugin", name, versions, self.registry.version(name))?;
        self.registry.add(name, endpoint, socket, version);
        let node = self.registry.driver_at(name, endpoint.clone()).node().await;
        let node = node.map_err(|error| error.to_string())?;
        if node.node_id.is_empty() {
            let problem = "error adding CSI driver node info: driverNodeID must not be empty";
            return Err(problem.to_owned());
        }
        self.cluster.install(&node).await
    }
}

#[async_trait]
impl PluginHandler for DriverHandler {
    fn kind(&self) -> &'static str {
        "CSIPlugin"
    }

    fn validate(&self, plugin: &PluginInfo) -> Result<(), String> {
        let registered = self.registry.version(&plugin.name);
        accept("ValidatePlugin", &plugin.name, &plugin.versions, registered).map(drop)
    }

    async fn register(&self, plugin: &PluginInfo) -> Result<(), String> {
        // It cannot fail: the drivers own the sender.
        let _ = self.volumes_are_known.clone().wait_for(|are_known| *are_known).await;
        let added = self.add(plugin).await;
        match &added {
            Ok(()) => {
                let (driver, endpoint) = (&plugin.name, plugin.endpoint.display());
                tracing::info!(driver, %endpoint, "registered driver");
                self.registry.announce();
            }
            Err(_) => {
                self.registry.remove(&plugin.socket);
            }
        }
        added
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        let Some(driver) = self.registry.remove(&plugin.socket) else {
            return;
        };
        tracing::info!(driver, socket = %plugin.socket.display(), "deregistered driver");
        if let Err(error) = self.cluster.uninstall(&driver).await {
            tracing::warn!(driver, error, "failed to remove the driver from the node");
        }
    }
}
