//! The interface to the node's cluster. The node's package implements it; tests use their own implementation.

use std::collections::BTreeMap;
use std::time::Duration;

use agent::cluster::{IssuedToken, TokenRequest};
use async_trait::async_trait;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::Value;
use tokio::sync::watch;

/// A driver's information about the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDriver {
    /// The driver's name.
    pub name: String,
    /// The node's ID in the driver.
    pub node_id: String,
    /// The maximum number of volumes that it can attach to the node; 0: no limit.
    pub max_volumes: i64,
    /// The node's topology labels in the driver.
    pub topology: BTreeMap<String, String>,
}

/// The periods of the updates of drivers' limits, by driver.
pub type UpdatePeriods = Map<String, Duration>;

/// The cluster of a node. Errors are messages of its API server, or the reason that a request failed.
#[async_trait]
pub trait VolumeCluster: Send + Sync {
    /// Gets a driver's CSIDriver object; `None` if there is none.
    async fn driver(&self, name: &str) -> Result<Option<CSIDriver>, String>;

    /// Gets the VolumeAttachment of this name; `None` if there is none.
    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, String>;

    /// Gets a secret that a volume names.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String>;

    /// Gets a claim, as the server has it.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Value, String>;

    /// Patches the status of a claim from `before` to `after`. Other clients' fields remain. With `is_current` it fails if the
    /// claim has changed since. Returns the claim.
    async fn set_claim_status(
        &self,
        before: &Value,
        after: &Value,
        is_current: bool,
    ) -> Result<Value, String>;

    /// Requests a token of a pod's service account.
    async fn token(&self, request: &TokenRequest) -> Result<IssuedToken, String>;

    /// Publishes a driver in the node's object and in its CSINode.
    async fn install(&self, driver: &NodeDriver) -> Result<(), String>;

    /// Publishes a driver in the node's CSINode alone.
    async fn update(&self, driver: &NodeDriver) -> Result<(), String>;

    /// Watches the CSIDriver objects, and reports the periods of the updates of their limits. Ends only if dropped.
    async fn watch_update_periods(&self, periods: &watch::Sender<UpdatePeriods>);

    /// Removes a driver from the node's object and its CSINode.
    async fn uninstall(&self, name: &str) -> Result<(), String>;

    /// Reports the unique names of the attachable volumes in use, which must not be detached.
    fn set_in_use(&self, volumes: Set<String>);

    /// Waits until the node's status lists a volume as in use. Cancel-safe.
    async fn wait_until_reported_in_use(&self, volume: &str);
}
