//! What is known of the node now: from the agent, from the runtime and from the machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use agent::AgentView;
use agent::cri::Cri;
use agent::local_node::kubelet_config::Gates;
use k8s_openapi::api::core::v1::Taint;
use tokio::sync::watch;
use tokio::time::timeout;

use super::addresses::NodeAddresses;
use super::declared::declared_features;
use super::limits::{Limits, with_runtime};
use super::machine::Machine;
use super::startup::NodeStartup;
use super::status::Facts;
use super::volumes_in_use::InUse;

/// How long the runtime may take to tell its version and its images.
const RUNTIME: Duration = Duration::from_secs(5);

/// What a node is registered with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registration {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// Those of the object when it is created. Later they belong to others.
    pub(crate) taints: Vec<Taint>,
    /// What the cloud calls the machine.
    pub(crate) provider_id: Option<String>,
    /// Whether a cloud's controller sets the addresses, and takes the node's first taint.
    pub(crate) external_cloud: bool,
    /// Whether the object is created; otherwise someone else does.
    pub(crate) registers: bool,
    /// The addresses that the node was told to have.
    pub(crate) provided_addresses: Vec<String>,
}

/// Where the facts of the node come from.
pub(crate) struct NodeFacts {
    pub(crate) registration: Registration,
    pub(crate) addresses: NodeAddresses,
    pub(crate) server_port: Option<u16>,
    pub(crate) most_images: usize,
    pub(crate) gates: Gates,
    pub(crate) view: AgentView,
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) limits: watch::Receiver<Limits>,
    pub(crate) volumes_in_use: watch::Receiver<Option<InUse>>,
    /// Where the parts of the node's start are noted.
    pub(crate) startup: NodeStartup,
}

impl NodeFacts {
    /// Asks them.
    pub(crate) async fn now(&self) -> Facts {
        let version = timeout(RUNTIME, self.cri.version()).await;
        let runtime = match version {
            Ok(Ok(version)) => format!("{}://{}", version.runtime_name, version.runtime_version),
            Ok(Err(_)) | Err(_) => "Unknown://Unknown".to_owned(),
        };
        let images = timeout(RUNTIME, self.cri.list_images()).await;
        let mut limits = self.limits.borrow().clone();
        if let Ok(Ok(status)) = timeout(RUNTIME, self.cri.status()).await {
            limits = with_runtime(limits, &status);
        }
        let capabilities = self.view.capabilities();
        let addresses = self.addresses.now().await;
        Facts {
            name: self.registration.name.clone(),
            addresses,
            external_cloud: self.registration.external_cloud,
            server_port: self.server_port,
            machine: Machine::read(Path::new("/")),
            runtime,
            capacity: self.view.capacity(),
            allocatable: self.view.allocatable(),
            swap_capacity: self.view.swap_capacity(),
            images: images.ok().and_then(Result::ok),
            most_images: self.most_images,
            declared_features: declared_features(&self.gates, capabilities.as_ref()),
            capabilities,
            pressure: self.view.pressure(),
            problems: self.view.not_ready(),
            limits,
            volumes_in_use: self.volumes_in_use.borrow().clone(),
        }
    }
}
