//! The cluster for DRA drivers: gets ResourceClaims, and deletes the ResourceSlices of drivers that the node cannot use.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/manager.go, plugin/dra_plugin_manager.go wipeResourceSlices.

use async_trait::async_trait;
use dra::ClaimCluster;
use k8s_openapi::api::resource::v1::ResourceClaim;

use crate::client::ApiClient;
use crate::volumes::error_chain;

const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";

/// The cluster for DRA drivers.
pub(crate) struct ClusterClaims {
    client: ApiClient,
    node: String,
}

impl ClusterClaims {
    pub(crate) fn new(client: ApiClient, node: &str) -> Self {
        Self { client, node: node.to_owned() }
    }
}

/// ◆ The field selector of the node's ResourceSlices: one driver's, or all.
fn selector(node: &str, driver: Option<&str>) -> String {
    match driver {
        Some(driver) => format!("spec.driver={driver},spec.nodeName={node}"),
        None => format!("spec.nodeName={node}"),
    }
}

#[async_trait]
impl ClaimCluster for ClusterClaims {
    async fn claim(&self, namespace: &str, name: &str) -> Result<ResourceClaim, String> {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let found = self.client.get(&path, &[]).await.map_err(|error| error_chain(&error))?;
        serde_json::from_value(found).map_err(|error| error.to_string())
    }

    async fn delete_slices(&self, driver: Option<&str>) -> Result<(), String> {
        let selector = selector(&self.node, driver);
        match self.client.delete_all(SLICES, &[("fieldSelector", &selector)]).await {
            Ok(()) => Ok(()),
            // The cluster does not have the API.
            Err(error) if error.is_not_found() => Ok(()),
            Err(error) => Err(error_chain(&error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slices_are_selected_by_node_and_driver() {
        assert_eq!(selector("n", None), "spec.nodeName=n");
        assert_eq!(selector("n", Some("d")), "spec.driver=d,spec.nodeName=n");
    }
}
