//! Runs lifecycle hooks: exec, httpGet and sleep.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/lifecycle/handlers.go.

use std::time::Duration;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction, LifecycleHandler};

use crate::checks::dialer::Dialer;
use crate::checks::http_action::{self, HttpRequest, Purpose};
use crate::checks::http_client;
use crate::observed::ContainerId;
use crate::reporting::events::EventReason;
use crate::reporting::measures::{Counted, Measures};
use crate::shared::Shared;

mod texts;

/// Runs a hook until it ends. The hook has no time limit of its own.
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
        return match request(dialer, container, action, host).await {
            Ok(Answered::AsRequested) => Ok(()),
            Ok(Answered::InPlainHttp(host)) => {
                let reason = EventReason::HookFellBackToHttp(host);
                shared.events.record(pod, None, &reason);
                shared.measures.count(Counted::HookFellBackToHttp);
                Ok(())
            }
            Err(error) => Err(texts::http_failure(pod, container, action, &error)),
        };
    }
    if let Some(sleep) = &handler.sleep {
        let seconds = u64::try_from(sleep.seconds).unwrap_or_default();
        let sleeping = Sleeping(Some(&shared.measures));
        tokio::time::sleep(Duration::from_secs(seconds)).await;
        sleeping.end();
        return Ok(());
    }
    Err(texts::invalid_handler(handler))
}

/// A sleep, which is counted if it is dropped before its end.
struct Sleeping<'a>(Option<&'a Measures>);

impl Sleeping<'_> {
    fn end(mut self) {
        self.0 = None;
    }
}

impl Drop for Sleeping<'_> {
    fn drop(&mut self) {
        if let Some(measures) = self.0 {
            measures.count(Counted::SleepCutShort);
        }
    }
}

/// How a request succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Answered {
    /// As requested.
    AsRequested,
    /// In HTTP instead of HTTPS, by this host.
    InPlainHttp(String),
}

/// Sends the request of a hook to the pod, or to the host that the action names.
///
/// # Errors
///
/// The message, if there is no response.
async fn request(
    dialer: &dyn Dialer,
    container: &Container,
    action: &HTTPGetAction,
    pod_ip: Option<&str>,
) -> Result<Answered, String> {
    let names_host = action.host.as_ref().is_some_and(|host| !host.is_empty());
    let host = match pod_ip {
        Some(ip) => ip,
        None if names_host => "",
        None => return Err("failed to find networking container".to_owned()),
    };
    let first = build(container, action, host)?;
    match http_client::send_hook(dialer, &first).await {
        Ok(()) => Ok(Answered::AsRequested),
        Err(error) if error.is_plain_http() => {
            let second = build(container, &in_plain_http(action), host)?;
            match http_client::send_hook(dialer, &second).await {
                Ok(()) => Ok(Answered::InPlainHttp(first.url.authority())),
                Err(_) => Err(error.to_string()),
            }
        }
        Err(error) => Err(error.to_string()),
    }
}

fn build(container: &Container, action: &HTTPGetAction, host: &str) -> Result<HttpRequest, String> {
    let ports = container.ports.as_deref().unwrap_or_default();
    http_action::http_request(action, ports, host, Purpose::Lifecycle)
        .map_err(|error| error.to_string())
}

/// The action without TLS, and without the credentials that TLS would protect.
fn in_plain_http(action: &HTTPGetAction) -> HTTPGetAction {
    let mut plain = action.clone();
    plain.scheme = Some("HTTP".to_owned());
    if let Some(headers) = &mut plain.http_headers {
        headers.retain(|header| !header.name.eq_ignore_ascii_case("Authorization"));
    }
    plain
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::{Arc, Mutex};

    use k8s_openapi::api::core::v1::HTTPHeader;
    use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;
    use crate::checks::dialer::SystemDialer;

    /// A server of plain HTTP that answers every request with 500. Returns its port and the requests.
    async fn server() -> (u16, Arc<Mutex<Vec<String>>>, tokio::task::JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = tokio::task::JoinSet::new();
        let requests = Arc::clone(&seen);
        tasks.spawn(tasks::boxed(async move {
            while let Ok((mut stream, _)) = listener.accept().await {
                let mut buffer = vec![0; 4096];
                let length = stream.read(&mut buffer).await.unwrap_or_default();
                let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
                requests.lock().unwrap().push(text);
                let answer = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
                let _ = stream.write_all(answer.as_bytes()).await;
            }
        }));
        (port, seen, tasks)
    }

    fn action(port: u16, scheme: &str) -> HTTPGetAction {
        let header = |name: &str| HTTPHeader { name: name.to_owned(), value: "x".to_owned() };
        HTTPGetAction {
            host: None,
            http_headers: Some(vec![header("Authorization"), header("X-Other")]),
            path: Some("/x".to_owned()),
            port: IntOrString::Int(i32::from(port)),
            scheme: Some(scheme.to_owned()),
        }
    }

    async fn ask(action: &HTTPGetAction, ip: Option<&str>) -> Result<Answered, String> {
        request(&SystemDialer, &Container::default(), action, ip).await
    }

    #[tokio::test]
    async fn any_status_code_is_a_success() {
        let (port, seen, _tasks) = server().await;
        let answered = ask(&action(port, "HTTP"), Some("127.0.0.1")).await;
        assert_eq!(answered, Ok(Answered::AsRequested));
        let request = seen.lock().unwrap()[0].clone();
        assert!(request.starts_with("GET /x HTTP/1.1\r\n"), "{request}");
        assert!(request.contains("kube-lifecycle/1.36"), "{request}");
    }

    #[tokio::test]
    async fn https_falls_back_to_http_without_credentials() {
        let (port, seen, _tasks) = server().await;
        let answered = ask(&action(port, "HTTPS"), Some("127.0.0.1")).await;
        let host = format!("127.0.0.1:{port}");
        assert_eq!(answered, Ok(Answered::InPlainHttp(host)));
        let request = seen.lock().unwrap().last().unwrap().clone();
        assert!(!request.contains("Authorization"), "{request}");
        assert!(request.contains("X-Other"), "{request}");
    }

    #[tokio::test]
    async fn request_without_answer_fails() {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let failed = ask(&action(port, "HTTP"), Some("127.0.0.1")).await;
        assert_eq!(
            failed.unwrap_err(),
            format!(
                "Get \"http://127.0.0.1:{port}/x\": dial tcp 127.0.0.1:{port}: connect: connection refused"
            )
        );
        let failed = ask(&action(port, "HTTP"), None).await;
        assert_eq!(failed.unwrap_err(), "failed to find networking container");
    }
}
