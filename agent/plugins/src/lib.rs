//! Registers the node's plugins whose sockets are in `plugins_registry`, and deregisters them when their sockets disappear.
//!
//! | file | what |
//! |---|---|
//! | `watcher` | the sockets, the registered plugins, and the retries of failed registrations |
//! | `client` | calls plugins over their sockets |
//! | `connection` | a connection that several calls share |
//! | [`PluginHandler`] | registers plugins of one type: CSI drivers, DRA drivers, device plugins |
//!
//! # Invariants
//! - A plugin is deregistered when its socket disappears or is replaced.
//! - Each attempt to register a plugin is followed by a notification of the plugin.

mod client;
mod connection;
mod watcher;

use std::path::PathBuf;

use async_trait::async_trait;

pub use client::{CallError, connect, with_timeout};
pub use connection::Connection;
pub use watcher::{PluginSockets, PluginWatcher};

/// The directory of the plugins' sockets, below the agent's.
pub const REGISTRY: &str = "plugins_registry";

/// The information of a plugin (GetInfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// The type, which determines the handler: `CSIPlugin`, `DevicePlugin`.
    pub kind: String,
    /// The name: a driver's, or the resource of devices.
    pub name: String,
    /// The socket of its service.
    pub endpoint: PathBuf,
    /// The versions of its service that it supports.
    pub versions: Vec<String>,
    /// The registration socket in [`REGISTRY`].
    pub socket: PathBuf,
}

/// Registers plugins of one type. Errors are in the kubelet's words, because plugins receive them.
///
/// Source: Kubernetes 1.36, pkg/kubelet/pluginmanager/cache/types.go PluginHandler.
#[async_trait]
pub trait PluginHandler: Send + Sync {
    /// The type of the plugins.
    fn kind(&self) -> &'static str;

    /// Checks a plugin's name and versions.
    ///
    /// # Errors
    /// If the plugin cannot be registered.
    fn validate(&self, plugin: &PluginInfo) -> Result<(), String>;

    /// Registers a valid plugin. It replaces an earlier one of the same name.
    ///
    /// # Errors
    /// If the plugin cannot be used. It is not registered then.
    async fn register(&self, plugin: &PluginInfo) -> Result<(), String>;

    /// Deregisters a plugin, unless another one of the same name has replaced it.
    async fn deregister(&self, plugin: &PluginInfo);
}
