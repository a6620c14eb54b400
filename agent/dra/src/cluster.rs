//! What this package needs of the node's cluster. The package of the node implements it; a test's own stands in for it.

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::ResourceClaim;

/// A cluster with ResourceClaims.
#[async_trait]
pub trait ClaimCluster: Send + Sync {
    /// A ResourceClaim.
    ///
    /// # Errors
    /// There is none, or it cannot be asked for, in the server's words.
    async fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, String>;

    /// Deletes the ResourceSlices of the node: those of a driver, or all.
    ///
    /// # Errors
    /// Why some may be left, in words.
    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), String>;
}
