//! Registers plugins of drivers that the watcher of plugins finds.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go RegisterPlugin, DeRegisterPlugin, ValidatePlugin.

use std::sync::Arc;

use async_trait::async_trait;
use plugins::{PluginHandler, PluginInfo};

use crate::grpc::Plugin;
use crate::registry::Registry;
use crate::services::{Service, choose};

/// Keeps the registry of plugins.
pub(crate) struct DriverHandler {
    pub(crate) registry: Arc<Registry>,
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
        self.registry.add(driver, Plugin { endpoint, service })?;
        tracing::info!(driver, endpoint = %plugin.endpoint.display(), ?service, "registered driver");
        Ok(())
    }

    async fn deregister(&self, plugin: &PluginInfo) {
        self.registry.remove(&plugin.name, &plugin.endpoint);
        tracing::info!(driver = plugin.name, socket = %plugin.socket.display(), "driver is gone");
    }
}
