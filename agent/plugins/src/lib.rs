//! Registers the plugins of a node whose sockets are in `plugins_registry`, and deregisters those whose sockets are gone.
//!
//! | file | what |
//! |---|---|
//! | `watcher` | which sockets there are, which plugins are registered, and when a failed registration is retried |
//! | `client` | calls of plugins over their sockets |
//! | [`PluginHandler`] | what registers plugins of one type: drivers of volumes, device plugins |
//!
//! # Invariants
//! - No plugin stays registered whose socket is gone or was replaced.
//! - Each attempt to register a plugin is followed by a notification of its result.

mod client;
mod watcher;

use std::path::PathBuf;

use async_trait::async_trait;

pub use client::{CallError, connect, within};
pub use watcher::PluginWatcher;

/// The directory of the plugins' sockets, in the agent's own.
pub const REGISTRY: &str = "plugins_registry";

/// What a plugin says of itself (GetInfo).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PluginInfo {
    /// Its type, which decides on its handler: `CSIPlugin`, `DevicePlugin`.
    pub kind: String,
    /// Its name: a driver's, or the resource of devices.
    pub name: String,
    /// The socket of its service.
    pub endpoint: PathBuf,
    /// The versions of its service that it supports.
    pub versions: Vec<String>,
    /// The socket by which it was found, in [`REGISTRY`].
    pub socket: PathBuf,
}

/// Registers plugins of one type. Errors are in a kubelet's words: plugins are told of them.
///
/// Source: Kubernetes 1.36, pkg/kubelet/pluginmanager/cache/types.go PluginHandler.
#[async_trait]
pub trait PluginHandler: Send + Sync {
    /// The type of the plugins.
    fn kind(&self) -> &'static str;

    /// Why a plugin cannot be registered, if its name or versions do not allow it.
    ///
    /// # Errors
    /// The reason.
    fn validate(&self, plugin: &PluginInfo) -> Result<(), String>;

    /// Registers a plugin that is valid, instead of an earlier one of its name.
    ///
    /// # Errors
    /// It cannot be used. Nothing of it stays registered.
    async fn register(&self, plugin: &PluginInfo) -> Result<(), String>;

    /// Forgets a plugin that was registered, unless another one of its name has taken its place.
    async fn deregister(&self, plugin: &PluginInfo);
}
