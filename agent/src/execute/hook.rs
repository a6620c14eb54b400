//! Runs lifecycle hooks: exec, httpGet and sleep.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/lifecycle/handlers.go.

use std::time::Duration;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, LifecycleHandler};

use crate::observed::ContainerId;
use crate::reporting::events::Happening;
use crate::shared::Shared;

mod http;
mod texts;

use http::Answered;

/// Runs a hook to its end. It has no limit of its own.
///
/// # Errors
///
/// The kubelet's message, if the hook failed.
pub(super) async fn run(
    shared: &Shared,
    pod: &Pod,
    container: &Container,
    handler: &LifecycleHandler,
    id: &ContainerId,
    host: Option<&str>,
) -> Result<(), String> {
    if let Some(exec) = &handler.exec {
        let command = exec.command.clone().unwrap_or_default();
        let result = shared.cri.exec_sync(id, &command, None).await;
        return texts::exec_result(pod, container, &command, result);
    }
    if let Some(action) = &handler.http_get {
        let dialer = shared.dialer.as_ref();
        return match http::request(dialer, container, action, host).await {
            Ok(Answered::AsRequested) => Ok(()),
            Ok(Answered::InPlainHttp(host)) => {
                let happening = Happening::HookFellBackToHttp(host);
                shared.events.record(pod, None, &happening);
                Ok(())
            }
            Err(error) => Err(texts::http_failure(pod, container, action, &error)),
        };
    }
    if let Some(sleep) = &handler.sleep {
        tokio::time::sleep(Duration::from_secs(u64::try_from(sleep.seconds).unwrap_or_default()))
            .await;
        return Ok(());
    }
    Err(texts::invalid_handler(handler))
}
