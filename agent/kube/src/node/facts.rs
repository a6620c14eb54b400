//! The current facts of the node, from the agent, the runtime and the machine.

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

/// The timeout of the runtime's version, images and status.
const RUNTIME: Duration = Duration::from_secs(5);

/// The settings of the registration.
#[derive(Clone, Debug, Default)]
pub(crate) struct Registration {
    pub(crate) name: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The initial taints. Later, other clients manage them.
    pub(crate) taints: Vec<Taint>,
    /// The cloud provider's ID of the machine.
    pub(crate) provider_id: Option<String>,
    /// Whether a cloud controller sets the addresses and removes the node's initial taint.
    pub(crate) external_cloud: bool,
    /// Whether only the cloud controller knows the addresses.
    pub(crate) awaits_addresses: bool,
    /// Whether the agent creates the object; otherwise another client does.
    pub(crate) registers: bool,
    /// The node addresses given on the command line.
    pub(crate) provided_addresses: Vec<String>,
}

/// The sources of the node's facts.
pub(crate) struct NodeFacts {
    pub(crate) registration: Registration,
    pub(crate) addresses: NodeAddresses,
    pub(crate) server_port: Option<u16>,
    pub(crate) max_images: usize,
    pub(crate) gates: Gates,
    pub(crate) view: AgentView,
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) limits: watch::Receiver<Limits>,
    pub(crate) volumes_in_use: watch::Receiver<Option<InUse>>,
    /// Records the steps of the node's start.
    pub(crate) startup: NodeStartup,
}

impl NodeFacts {
    /// Collects the facts.
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
            awaits_addresses: self.registration.awaits_addresses,
            server_port: self.server_port,
            machine: Machine::read(Path::new("/")),
            runtime,
            capacity: self.view.capacity(),
            allocatable: self.view.allocatable(),
            swap_capacity: self.view.swap_capacity(),
            images: images.ok().and_then(Result::ok),
            max_images: self.max_images,
            declared_features: declared_features(&self.gates, capabilities.as_ref()),
            capabilities,
            pressure: self.view.pressure(),
            problems: self.view.not_ready(),
            limits,
            volumes_in_use: self.volumes_in_use.borrow().clone(),
        }
    }
}
