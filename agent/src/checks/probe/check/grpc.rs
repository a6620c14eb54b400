//! The check of a `grpc` probe: the health service, version 1.
//!
//! Source: Kubernetes 1.36, pkg/probe/grpc/grpc.go.

use std::sync::Arc;
use std::time::Duration;

use api::duration::go_duration;
use hyper_util::rt::TokioIo;
use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use tower::service_fn;

use super::rpc_error;
use crate::checks::dialer::{self, Dialer};
use crate::checks::http_action::{KUBERNETES_VERSION, join_host_port};
use crate::checks::probe::Outcome;

/// The first delay before another attempt to connect, as in gRPC's Go client; it grows by 1.6.
const RETRY: Duration = Duration::from_secs(1);

/// Checks whether a service is serving; `""` stands for the server itself.
pub(super) async fn check(
    dialer: &Arc<dyn Dialer>,
    host: &str,
    port: u16,
    service: &str,
    timeout: Duration,
) -> Outcome {
    let failure = |message: String| Outcome::Failure(message);
    let address = join_host_port(host, port);
    let deadline = tokio::time::Instant::now() + timeout;
    let connecting = connect(dialer, host, port);
    let channel = match tokio::time::timeout_at(deadline, connecting).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            return failure(format!("error: failed to connect service at {address:?}: {error}"));
        }
        Err(_) => {
            return failure(format!(
                "timeout: failed to connect service {address:?} within {}: context deadline exceeded",
                go_duration(timeout)
            ));
        }
    };
    let mut client = HealthClient::new(channel);
    let request = HealthCheckRequest { service: service.to_owned() };
    let late = || format!("timeout: health rpc did not complete within {}", go_duration(timeout));
    match tokio::time::timeout_at(deadline, client.check(request)).await {
        Ok(Ok(answer)) => {
            let status = answer.into_inner().status();
            if status == ServingStatus::Serving {
                return Outcome::Success;
            }
            let word = status.as_str_name();
            failure(format!("service unhealthy (responded with {word:?})"))
        }
        Ok(Err(status)) if status.code() == Code::Unimplemented => failure(format!(
            "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): {}",
            status.message()
        )),
        Ok(Err(status)) if status.code() == Code::DeadlineExceeded => failure(late()),
        Ok(Err(status)) => failure(format!(
            "error: health rpc probe failed: {}",
            rpc_error(status.code(), status.message())
        )),
        Err(_) => failure(late()),
    }
}

/// Connects, and retries until it succeeds. An error means that the address is invalid.
async fn connect(
    dialer: &Arc<dyn Dialer>,
    host: &str,
    port: u16,
) -> Result<Channel, tonic::transport::Error> {
    let agent = format!("kube-probe/{KUBERNETES_VERSION}");
    let endpoint =
        Endpoint::from_shared(format!("http://{}", authority(host, port)))?.user_agent(agent)?;
    let mut wait = RETRY;
    loop {
        let (dialer, host) = (Arc::clone(dialer), host.to_owned());
        let connector = service_fn(move |_| {
            let (dialer, host) = (Arc::clone(&dialer), host.clone());
            async move { dialer::dial(dialer.as_ref(), &host, port).await.map(TokioIo::new) }
        });
        if let Ok(channel) = endpoint.connect_with_connector(connector).await {
            return Ok(channel);
        }
        tokio::time::sleep(wait).await;
        wait = wait.mul_f64(1.6);
    }
}

/// Host and port for a URL, without the zone of an IPv6 address.
fn authority(host: &str, port: u16) -> String {
    let host = host.split('%').next().unwrap_or_default();
    join_host_port(if host.is_empty() { "localhost" } else { host }, port)
}
