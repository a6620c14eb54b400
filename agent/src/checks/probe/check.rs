//! Makes the check of a probe: exec, httpGet, tcpSocket, grpc.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/prober/prober.go and pkg/probe.

mod grpc;

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use api::duration::go_duration;
use compact::Map;
use k8s_openapi::api::core::v1::{Container, ExecAction, HTTPGetAction, Probe, TCPSocketAction};

use super::Outcome;
use super::machine::{ATTEMPTS, Target};
use crate::checks::dialer::{self, Dialer};
use crate::checks::http_action::{self, Purpose, join_host_port, resolve_port};
use crate::checks::http_client;
use crate::cri::{Code, Cri};
use crate::observed::ContainerId;
use crate::pod_spec::env::expand_words;

/// The maximum number of bytes that are kept of a command's output.
const MAX_OUTPUT: usize = 10 * 1024;

/// Makes checks.
#[derive(Clone)]
pub(crate) struct Checker {
    pub(crate) cri: Arc<dyn Cri>,
    pub(crate) dialer: Arc<dyn Dialer>,
}

impl Checker {
    /// Checks a container, and repeats the check if it could not be made. `pod_ip` may be empty.
    pub(super) async fn check(&self, target: &Target, id: &ContainerId, pod_ip: &str) -> Outcome {
        let mut outcome = self.attempt(target, id, pod_ip).await;
        for _ in 1..ATTEMPTS {
            if outcome.succeeded().is_some() {
                break;
            }
            outcome = self.attempt(target, id, pod_ip).await;
        }
        outcome
    }

    async fn attempt(&self, target: &Target, id: &ContainerId, pod_ip: &str) -> Outcome {
        let container = target.container.as_ref();
        let Some(probe) = target.probe() else {
            return Outcome::Success;
        };
        let timeout = timeout(probe);
        if let Some(action) = &probe.exec {
            self.exec(action, container, id, timeout).await
        } else if let Some(action) = &probe.http_get {
            self.http_get(action, container, pod_ip, timeout).await
        } else if let Some(action) = &probe.tcp_socket {
            self.tcp_socket(action, container, pod_ip, timeout).await
        } else if let Some(action) = &probe.grpc {
            let service = action.service.as_deref().unwrap_or_default();
            let port = u16::try_from(action.port).unwrap_or_default();
            grpc::check(&self.dialer, pod_ip, port, service, timeout).await
        } else {
            unknown(format!(
                "missing probe handler for {}:{}",
                target.pod.long_name(),
                container.name
            ))
        }
    }

    async fn exec(
        &self,
        action: &ExecAction,
        container: &Container,
        id: &ContainerId,
        timeout: Duration,
    ) -> Outcome {
        let env: Map<&str, &str> = container
            .env
            .iter()
            .flatten()
            .map(|var| (var.name.as_str(), var.value.as_deref().unwrap_or_default()))
            .collect();
        let words = action.command.as_deref().unwrap_or_default();
        let command = match expand_words(words, |name| env.get(name).copied()) {
            Ok(command) => command,
            Err(error) => return unknown(error.to_string()),
        };
        match self.cri.exec_sync(id, &command, Some(timeout)).await {
            Ok(output) if output.exit_code == 0 => Outcome::Success,
            Ok(output) => {
                let mut bytes = [output.stdout, output.stderr].concat();
                bytes.truncate(MAX_OUTPUT);
                Outcome::Failure(String::from_utf8_lossy(&bytes).into_owned())
            }
            Err(error) if error.code == Code::DeadlineExceeded => Outcome::Failure(format!(
                "command timed out: {:?} timed out after {}",
                command.join(" "),
                go_duration(timeout)
            )),
            Err(error) => unknown(rpc_error(error.code, &error.message)),
        }
    }

    async fn http_get(
        &self,
        action: &HTTPGetAction,
        container: &Container,
        pod_ip: &str,
        timeout: Duration,
    ) -> Outcome {
        let ports = container.ports.as_deref().unwrap_or_default();
        let request = match http_action::http_request(action, ports, pod_ip, Purpose::Probe) {
            Ok(request) => request,
            Err(error) => return unknown(error.to_string()),
        };
        match http_client::send(self.dialer.as_ref(), &request, Some(timeout)).await {
            Ok(answer) => match answer.status {
                200..300 => Outcome::Success,
                300..400 => Outcome::Warning(format!(
                    "Probe terminated redirects, Response body: {}",
                    String::from_utf8_lossy(&answer.body)
                )),
                status => Outcome::Failure(format!("HTTP probe failed with statuscode: {status}")),
            },
            Err(error @ http_client::HttpError::Get { .. }) => Outcome::Failure(error.to_string()),
            Err(error @ http_client::HttpError::Body(_)) => {
                Outcome::Error { state: "failure", message: error.to_string() }
            }
        }
    }

    async fn tcp_socket(
        &self,
        action: &TCPSocketAction,
        container: &Container,
        pod_ip: &str,
        timeout: Duration,
    ) -> Outcome {
        let ports = container.ports.as_deref().unwrap_or_default();
        let port = match resolve_port(&action.port, ports) {
            Ok(port) => port,
            Err(error) => return unknown(error.to_string()),
        };
        let host = action.host.as_deref().filter(|host| !host.is_empty());
        let host = host.unwrap_or(pod_ip);
        let dial = dialer::dial(self.dialer.as_ref(), host, port);
        match tokio::time::timeout(timeout, dial).await {
            Ok(Ok(_)) => Outcome::Success,
            Ok(Err(error)) => Outcome::Failure(error.to_string()),
            Err(_) => {
                Outcome::Failure(format!("dial tcp {}: i/o timeout", join_host_port(host, port)))
            }
        }
    }
}

/// The outcome of a check that could not be made.
fn unknown(message: String) -> Outcome {
    Outcome::Error { state: "unknown", message }
}

/// `timeoutSeconds`; at least one second.
fn timeout(probe: &Probe) -> Duration {
    let seconds = probe.timeout_seconds.unwrap_or(1).max(1);
    Duration::from_secs(u64::from(seconds.unsigned_abs()))
}

/// An error of a gRPC call.
fn rpc_error(code: impl Debug, message: &str) -> String {
    let code = format!("{code:?}").replace("Cancelled", "Canceled");
    format!("rpc error: code = {code} desc = {message}")
}

#[cfg(test)]
mod tests;
