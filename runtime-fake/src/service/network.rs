//! The network condition in Status, and UpdateRuntimeConfig.

use cri::v1;
use network::PodCidrs;
use tonic::Status;

use crate::{
    launch::Invalid,
    runtime::{Error, Network, ReconfigureResult, Runtime, blocking, opening},
};

/// Whether pods can be attached, and if not, why.
pub(super) async fn condition(runtime: &Runtime) -> v1::RuntimeCondition {
    let network = runtime.network.clone();
    let not_ready = if network.is_open() {
        None
    } else {
        blocking(move || network.not_ready()).await
    };
    let reason = match (&not_ready, &*runtime.network) {
        (None, _) => "",
        (Some(_), Network::Cni { .. }) => "NetworkPluginNotReady",
        (Some(_), _) => "NetworkNotReady",
    };
    v1::RuntimeCondition {
        r#type: "NetworkReady".to_owned(),
        status: not_ready.is_none(),
        reason: reason.to_owned(),
        message: not_ready.unwrap_or_default(),
    }
}

/// Sets the pod subnets that a client requests, if there are no pods yet. Existing pods are not an error, because
/// the client cannot do anything about them: the subnets stay, and a warning is logged.
pub(super) async fn update(
    runtime: &Runtime,
    request: v1::UpdateRuntimeConfigRequest,
) -> Result<(), Status> {
    let network = request.runtime_config.and_then(|c| c.network_config);
    let text = network.unwrap_or_default().pod_cidr;
    if text.is_empty() {
        return Ok(());
    }
    let cidrs: PodCidrs = text
        .parse()
        .map_err(|error| Error::from(Invalid(format!("pod_cidr: {error}"))))?;
    let opening = crate::runtime::Opening {
        cidrs,
        ..opening(&runtime.config)
    };
    let network = runtime.network.clone();
    match blocking(move || network.reconfigure(&opening)).await? {
        ReconfigureResult::Yes => tracing::info!(pod_cidr = text, "changed pod subnet"),
        ReconfigureResult::PodsAreThere => {
            tracing::warn!(pod_cidr = text, "kept pod subnet: existing pods use it")
        }
        ReconfigureResult::NotOurs => tracing::info!(
            pod_cidr = text,
            "kept pod subnet: it is not configurable here"
        ),
    }
    Ok(())
}
