//! Checks against servers on the loopback interface, and commands in the scripted runtime.
#![allow(clippy::unwrap_used)]

use std::net::TcpListener;

use jiff::Timestamp;
use serde_json::{Value, json};
use tonic::transport::Server;

use super::*;
use crate::checks::dialer::SystemDialer;
use crate::checks::probe::machine::ProbeKind;
use crate::clock::TokioClock;
use crate::cri::fake::FakeCri;
use crate::fixtures;
use crate::pod_spec::env::{MOST_BYTES, TooLong};

fn target(probe: Value) -> Target {
    let container = json!({
        "name": "app",
        "env": [{"name": "A", "value": "1"}],
        "ports": [{"name": "none", "containerPort": 0}],
        "livenessProbe": probe,
    });
    let pod = fixtures::pod(
        json!({"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [container]}}),
    );
    Target {
        container: Arc::new(pod.containers()[0].clone()),
        pod,
        kind: ProbeKind::Liveness,
        agent_started_at: Timestamp::UNIX_EPOCH,
    }
}

fn runtime() -> FakeCri {
    FakeCri::new(Arc::new(TokioClock::starting_at(Timestamp::UNIX_EPOCH)))
}

async fn checked_by(cri: &FakeCri, probe: Value) -> Outcome {
    let checker = Checker { cri: Arc::new(cri.clone()), dialer: Arc::new(SystemDialer) };
    let id = ContainerId::new("c1");
    checker.check(&target(probe), &id, "127.0.0.1").await
}

async fn checked(probe: Value) -> Outcome {
    checked_by(&runtime(), probe).await
}

fn failure(message: impl Into<String>) -> Outcome {
    Outcome::Failure(message.into())
}

/// A port without a listener.
fn closed_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn tcp_socket_succeeds_with_a_connection() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let probe = |port: u16| json!({"tcpSocket": {"port": port}});
    assert_eq!(checked(probe(port)).await, Outcome::Success);
    let port = closed_port();
    let expected = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(checked(probe(port)).await, failure(expected));
    let probe = json!({"tcpSocket": {"port": "none"}});
    let error = Outcome::Error { state: "unknown", message: "invalid port number: 0".to_owned() };
    assert_eq!(checked(probe).await, error);
}

#[tokio::test]
async fn http_get_is_judged_by_status_code() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async move {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        for answer in ["204 x", "304 Not Modified", "404 x", "500 x"] {
            let (mut stream, _) = listener.accept().await.unwrap();
            let _ = stream.read(&mut [0; 1024]).await.unwrap();
            let answer = format!("HTTP/1.1 {answer}\r\nContent-Length: 0\r\n\r\n");
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
    };
    tokio::spawn(serve);
    let probe = json!({"httpGet": {"port": port, "path": "/"}});
    assert_eq!(checked(probe.clone()).await, Outcome::Success);
    let warning = "Probe terminated redirects, Response body: ".to_owned();
    assert_eq!(checked(probe.clone()).await, Outcome::Warning(warning));
    let failed = |code: u16| failure(format!("HTTP probe failed with statuscode: {code}"));
    assert_eq!(checked(probe.clone()).await, failed(404));
    assert_eq!(checked(probe).await, failed(500));
}

#[tokio::test]
async fn grpc_probe_calls_the_health_service() {
    let (reporter, service) = tonic_health::server::health_reporter();
    let serving = tonic_health::ServingStatus::Serving;
    reporter.set_service_status("up", serving).await;
    let stopped = tonic_health::ServingStatus::NotServing;
    reporter.set_service_status("down", stopped).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    tokio::spawn(Server::builder().serve_with_incoming(service, incoming));
    let probe = |service: &str| json!({"grpc": {"port": port, "service": service}});
    assert_eq!(checked(probe("up")).await, Outcome::Success);
    assert_eq!(
        checked(probe("down")).await,
        failure("service unhealthy (responded with \"NOT_SERVING\")")
    );
    let Outcome::Failure(message) = checked(probe("other")).await else {
        panic!("it is no service");
    };
    assert!(
        message.starts_with("error: health rpc probe failed: rpc error: code = NotFound desc = "),
        "{message}"
    );
}

#[tokio::test]
async fn grpc_waits_for_a_server_until_its_timeout() {
    let port = closed_port();
    let probe = json!({"grpc": {"port": port}, "timeoutSeconds": 1});
    let expected = format!(
        "timeout: failed to connect service \"127.0.0.1:{port}\" within 1s: context deadline exceeded"
    );
    assert_eq!(checked(probe).await, failure(expected));
}

#[tokio::test(start_paused = true)]
async fn exec_is_tried_three_times_if_it_cannot_be_run() {
    let (fake, probe) = (runtime(), json!({"exec": {"command": ["/check", "$(A) $(B)"]}}));
    fake.fail("ExecSync", 2, Code::Unknown, "no such process");
    assert_eq!(checked_by(&fake, probe.clone()).await, Outcome::Success);
    fake.fail("ExecSync", 3, Code::Unknown, "no such process");
    let error = Outcome::Error {
        state: "unknown",
        message: "rpc error: code = Unknown desc = no such process".to_owned(),
    };
    assert_eq!(checked_by(&fake, probe.clone()).await, error);
    let calls: Vec<String> = fake.calls().into_iter().map(|call| call.text).collect();
    assert_eq!(calls, ["ExecSync unknown c1 /check 1 $(B)"; 6]);
    fake.fail("ExecSync", 1, Code::DeadlineExceeded, "late");
    let expected = failure("command timed out: \"/check 1 $(B)\" timed out after 1s");
    assert_eq!(checked_by(&fake, probe).await, expected);
}

#[tokio::test]
async fn exec_with_too_long_command_is_not_run() {
    let (fake, command) = (runtime(), ["x".repeat(MOST_BYTES + 1)]);
    let outcome = checked_by(&fake, json!({"exec": {"command": command}})).await;
    let message = TooLong.to_string();
    assert!(outcome == Outcome::Error { state: "unknown", message });
    assert!(fake.calls().is_empty());
}
