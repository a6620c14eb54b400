//! The interface to the node's cluster. The node's package implements it; tests use their own implementation.

use async_trait::async_trait;
use k8s_openapi::api::resource::v1::ResourceClaim;

/// A cluster with ResourceClaims.
#[async_trait]
pub trait ClaimCluster: Send + Sync {
    /// Gets a ResourceClaim.
    ///
    /// # Errors
    /// The server's error, for example if there is no such claim.
    async fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, String>;

    /// Deletes the node's ResourceSlices: one driver's, or all.
    ///
    /// # Errors
    /// The error as text. Some slices may remain.
    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), String>;
}
