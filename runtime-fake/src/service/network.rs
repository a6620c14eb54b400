//! The network condition in Status, and UpdateRuntimeConfig.

use std::collections::HashMap;

use cri::v1;
use network::PodCidrs;
use tonic::Status;

use crate::{
    launch::Invalid,
    runtime::{
        EgressMode, Error, Network, ReconfigureResult, Runtime, blocking, network::pod_range,
        network_options,
    },
};

/// Whether pods can be attached, and if not, why.
pub(super) async fn condition(runtime: &Runtime) -> v1::RuntimeCondition {
    let network = runtime.network.clone();
    let (not_ready, egress_mode) = blocking(move || {
        let not_ready = if network.is_open() { None } else { network.not_ready() };
        (not_ready, network.egress_mode(false))
    })
    .await;
    let reason = match (&not_ready, &*runtime.network) {
        (None, _) => "",
        (Some(_), Network::Cni { .. }) => "NetworkPluginNotReady",
        (Some(_), _) => "NetworkNotReady",
    };
    v1::RuntimeCondition {
        r#type: "NetworkReady".to_owned(),
        status: not_ready.is_none(),
        reason: reason.to_owned(),
        message: not_ready
            .or(egress_mode.map(|egress_mode| egress_mode.to_string()))
            .unwrap_or_default(),
    }
}

/// How pods on the bridge reach other hosts, and the address at which they reach the host. Servers on the host's loopback
/// interface are reachable only through an egress program, not as root.
pub(super) async fn info(runtime: &Runtime) -> HashMap<String, String> {
    let network = runtime.network.clone();
    let mut info = HashMap::new();
    let found = move || Some((network.egress_mode(false)?, network.host_address()));
    if let Some((egress_mode, address)) = blocking(found).await {
        let host = egress_mode.host().or(address).map(|host| host.to_string());
        info.extend(host.map(|host| ("hostAddress".to_owned(), host)));
        if let EgressMode::None(reason) = &egress_mode {
            info.insert("egressMissing".to_owned(), reason.clone());
        }
        info.insert("egress".to_owned(), egress_mode.name().to_owned());
    }
    info
}

/// Whether other machines, and pods of other nodes, reach pods by their addresses, and if not, why.
pub(super) async fn reachable(runtime: &Runtime) -> v1::RuntimeCondition {
    let network = runtime.network.clone();
    let not = blocking(move || network.not_reachable()).await;
    let (reason, message) = not.clone().unwrap_or_default();
    v1::RuntimeCondition {
        r#type: "PodAddressesReachable".to_owned(),
        status: not.is_none(),
        reason: reason.to_owned(),
        message,
    }
}

/// Sets the pod subnets that a client requests, if there are no pods yet, and stores them for the next daemon. Existing pods with
/// addresses in other subnets are an error, so that a kubelet retries.
pub(super) async fn update(
    runtime: &Runtime,
    request: v1::UpdateRuntimeConfigRequest,
) -> Result<(), Status> {
    let network = request.runtime_config.and_then(|c| c.network_config);
    let text = network.unwrap_or_default().pod_cidr;
    if text.is_empty() {
        return Ok(());
    }
    let cidrs: PodCidrs =
        text.parse().map_err(|error| Error::from(Invalid(format!("pod_cidr: {error}"))))?;
    let network = runtime.network.clone();
    let mut result = blocking(move || network.would_reconfigure(&cidrs)).await;
    if result == ReconfigureResult::Yes {
        // Services have addresses in the subnet too. Their client is ended, and requests new addresses afterwards.
        let exclusion = runtime.services.exclude_clients().await;
        let _exclusion = exclusion.ok_or_else(|| {
            Status::failed_precondition(
                "Services have addresses of the pod subnet: end their client",
            )
        })?;
        let options = crate::runtime::NetworkOptions { cidrs, ..network_options(&runtime.config) };
        let network = runtime.network.clone();
        result = blocking(move || network.reconfigure(&options)).await?;
    }
    match result {
        ReconfigureResult::Yes => tracing::info!(pod_cidr = text, "changed pod subnet"),
        ReconfigureResult::AsBefore => {}
        ReconfigureResult::PodsAreThere(before) => {
            tracing::warn!(pod_cidr = text, before, "kept pod subnet: existing pods use it");
            return Err(Status::failed_precondition(format!(
                "pods use addresses of {before}: {text} takes effect after they are removed; retry then"
            )));
        }
        ReconfigureResult::NotOurs => {
            tracing::info!(pod_cidr = text, "kept pod subnet: it is not configurable here");
            return Ok(());
        }
    }
    let config = runtime.config.clone();
    let kept =
        blocking(move || pod_range::save(&config.state_dir, &config.pod_cidrs, &cidrs)).await;
    kept.map_err(|error| Status::internal(format!("failed to keep the pod subnet: {error}")))
}
