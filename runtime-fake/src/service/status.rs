//! The Status call.

use cri::v1;
use keeper::contract::host;

use super::network;
use crate::{isolation::Isolation, runtime::Runtime};

/// The runtime's conditions, and its handlers with their features; if `verbose`, also its configuration.
pub(super) async fn status(runtime: &Runtime, verbose: bool) -> v1::StatusResponse {
    let condition = |kind: &str, status, reason: &str, message: String| v1::RuntimeCondition {
        r#type: kind.to_owned(),
        status,
        reason: reason.to_owned(),
        message,
    };
    let isolation = runtime.config.isolation;
    let namespaces = isolation != Isolation::Process;
    // Inside a user namespace the runtime supports them only for ids mapped there, and the kubelet's ids are not.
    let user_namespaces = isolation == Isolation::Root && host::maps_images();
    let handler = |name: &str| v1::RuntimeHandler {
        name: name.to_owned(),
        features: Some(v1::RuntimeHandlerFeatures {
            recursive_read_only_mounts: namespaces,
            user_namespaces,
        }),
    };
    let mut info = std::collections::HashMap::new();
    if verbose {
        info.extend(network::info(runtime).await);
        info.insert("isolation".to_owned(), isolation.to_string());
        let reason = runtime.config.isolation_reason.clone();
        info.extend(reason.map(|reason| ("isolationReason".to_owned(), reason)));
        info.insert("cgroups".to_owned(), runtime.cgroups.describe());
        info.extend(
            runtime
                .cgroups
                .unapplied_limits()
                .map(|unapplied| ("limitsNotApplied".to_owned(), unapplied.limits())),
        );
        let modules = runtime.modules.describe();
        info.extend(modules.map(|(name, what)| (name.to_owned(), what)));
        info.insert("stateDirectory".to_owned(), runtime.config.state_dir.display().to_string());
    }
    v1::StatusResponse {
        status: Some(v1::RuntimeStatus {
            conditions: vec![
                condition(
                    "RuntimeReady",
                    true,
                    "Isolation",
                    match runtime.cgroups.unapplied_limits() {
                        None => format!("isolation: {isolation}"),
                        Some(unapplied) => format!("isolation: {isolation}; {unapplied}"),
                    },
                ),
                network::condition(runtime).await,
                network::reachable(runtime).await,
            ],
        }),
        info,
        runtime_handlers: runtime.config.handlers.names().map(handler).collect(),
        features: Some(v1::RuntimeFeatures {
            supplemental_groups_policy: true,
            mount_options: namespaces,
            user_namespaces_host_network: user_namespaces,
        }),
    }
}
