//! Flags of `crib agent` about the cluster that it is a node of.

use std::error::Error;
use std::path::PathBuf;
use std::sync::Arc;

use agent::Config;
use agent::objects::{ObjectMap, ObjectStore};
use clap::Args;
use kube_node::client::{ApiClient, Connection};
use kube_node::{ClusterNode, NodeSettings};

#[derive(Debug, Args)]
#[command(next_help_heading = "Cluster")]
pub(super) struct ClusterArgs {
    /// Kubeconfig of an API server: the agent registers a node there, runs the pods that are bound to it, and writes their
    /// statuses back [default: none, the agent stands alone]
    #[arg(long, value_name = "FILE", conflicts_with = "objects")]
    kubeconfig: Option<PathBuf>,
}

impl ClusterArgs {
    /// Whether the agent is a node of a cluster.
    pub(super) fn joins(&self) -> bool {
        self.kubeconfig.is_some()
    }

    /// A client of the cluster's API server, if there is one.
    pub(super) fn client(&self) -> Result<Option<ApiClient>, String> {
        let Some(path) = &self.kubeconfig else {
            return Ok(None);
        };
        let in_words = |error: &dyn Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            format!("--kubeconfig: {error}{}", cause.unwrap_or_default())
        };
        let connection = Connection::load(path).map_err(|error| in_words(&error))?;
        ApiClient::new(connection).map(Some).map_err(|error| in_words(&error))
    }
}

/// The node that an agent with this configuration and a server on this port is, whose pods find objects of the cluster in `store`, beside `others`.
pub(super) fn node(
    client: ApiClient,
    config: &Config,
    server_port: Option<u16>,
    store: &Arc<ObjectStore>,
    others: &ObjectMap,
) -> ClusterNode {
    let settings = NodeSettings {
        name: config.node_name.clone(),
        labels: config.admission.node_labels.clone().unwrap_or_default(),
        taints: config.admission.taints.clone(),
        addresses: config.node_ips.clone(),
        server_port,
    };
    ClusterNode::new(client, settings, Arc::clone(store), others.clone())
}
