//! What this package needs of the node's cluster. The package of the node implements it; a test's own stands in for it.

use std::collections::BTreeMap;

use agent::cluster::{IssuedToken, TokenRequest};
use async_trait::async_trait;
use compact::Set;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::api::storage::v1::{CSIDriver, VolumeAttachment};
use serde_json::Value;

/// A driver on the node, as it says of itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDriver {
    /// Its name.
    pub name: String,
    /// The driver's id of the node.
    pub node_id: String,
    /// How many volumes it can attach to the node; 0: any number.
    pub max_volumes: i64,
    /// The labels of the node by which it chooses where volumes are.
    pub topology: BTreeMap<String, String>,
}

/// The cluster of a node. Errors are words of its API server, or why that cannot be asked.
#[async_trait]
pub trait VolumeCluster: Send + Sync {
    /// The object of a driver; `None`: it has none.
    async fn driver(&self, name: &str) -> Result<Option<CSIDriver>, String>;

    /// The attachment of this name; `None`: there is none.
    async fn attachment(&self, name: &str) -> Result<Option<VolumeAttachment>, String>;

    /// A secret that a volume names.
    async fn secret(&self, namespace: &str, name: &str) -> Result<Secret, String>;

    /// A claim, as the server has it.
    async fn claim(&self, namespace: &str, name: &str) -> Result<Value, String>;

    /// Changes the status of a claim from what it was `before` to what it is `after`, and leaves what others wrote. With `is_current`
    /// only if nobody has changed the claim meanwhile. Returns the claim.
    async fn set_claim_status(
        &self,
        before: &Value,
        after: &Value,
        is_current: bool,
    ) -> Result<Value, String>;

    /// A token of the service account of a pod.
    async fn token(&self, wanted: &TokenRequest) -> Result<IssuedToken, String>;

    /// Shows that the node has a driver: on the node's own object, and in its CSINode.
    async fn install(&self, driver: &NodeDriver) -> Result<(), String>;

    /// Shows that the node does not have a driver any more.
    async fn uninstall(&self, name: &str) -> Result<(), String>;

    /// Shows which attachable volumes are in use, by their unique names: they are not detached.
    fn set_in_use(&self, volumes: Set<String>);

    /// Waits until the node's status has shown that a volume is in use. Cancel-safe.
    async fn in_use_is_shown(&self, volume: &str);
}
