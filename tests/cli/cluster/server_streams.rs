//! Exec, attach and port-forward through the agent's HTTPS server, as the API server connects to it.

use harness::streaming::{self, Streams, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::api_server::ApiServer;
use super::joined::{Joined, pod};
use super::server_client::Served;
use crate::command::*;

const ALL: Streams = Streams { stdin: true, stdout: true, stderr: true, tty: false };

async fn with_pod(script: &str) -> (Served, String) {
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    let uid = served.joined.create_pod(&pod("p", script));
    served.joined.wait_for_phase("p", "Running").await;
    (served, uid)
}

#[rstest]
#[case(Transport::Spdy)]
#[case(Transport::WebSocket)]
#[tokio::test]
async fn exec_passes_streams_and_exit_code_through(#[case] transport: Transport) {
    let (served, uid) = with_pod("sleep 3600").await;
    let plain = served.plain().await;
    for pod in ["p".to_owned(), format!("p/{uid}")] {
        let script = "command=sh&command=-c&command=echo+err+%3E%262;+cat;+exit+7";
        let url = format!("{}/exec/default/{pod}/app?{script}&input=1&output=1&error=1", plain.url);
        let mut command = streaming::command(&url, ALL, transport).await.unwrap();
        // More than any buffer holds.
        let bytes = "0123456789".repeat(100_000);
        let mut stdout = command.stdout.take();
        let reading = tokio::spawn(async move { streaming::text(&mut stdout).await });
        command.write(bytes.as_bytes()).await.unwrap();
        command.end_stdin().await;
        assert_eq!(streaming::text(&mut command.stderr).await, "err\n");
        assert!(reading.await.unwrap() == bytes);
        assert_eq!(command.ended().await.unwrap(), 7);
    }
    served.end().await;
}

#[tokio::test]
async fn attach_reads_output_of_container() {
    let (served, _) = with_pod("while :; do echo tick; sleep 0.1; done").await;
    let plain = served.plain().await;
    let url = format!("{}/attach/default/p/app?output=1", plain.url);
    let wanted = Streams { stdout: true, ..Streams::default() };
    let mut command = streaming::command(&url, wanted, Transport::Spdy).await.unwrap();
    let read = command.stdout.as_mut().unwrap().next();
    let read = tokio::time::timeout(WAIT_LIMIT, read).await.unwrap();
    assert!(String::from_utf8_lossy(&read.unwrap()).starts_with("tick\n"));
    drop(command);
    served.end().await;
}

#[rstest]
#[case(Transport::Spdy)]
#[case(Transport::WebSocket)]
#[tokio::test]
async fn port_forward_reaches_a_port_of_the_pod(#[case] transport: Transport) {
    let server = "use IO::Socket::INET; my $l = IO::Socket::INET->new(LocalAddr => q(127.0.0.1:8080), Listen => 9) or die $@; \
        while (my $c = $l->accept()) { next if fork; while (sysread($c, my $d, 65536)) { syswrite($c, uc $d); } exit; }";
    let manifest = "apiVersion: v1
kind: Pod
metadata: {name: p}
spec:
  restartPolicy: Never
  containers:
  - name: app
    image: crib.local/host
    command: [perl, -e, '";
    let served = Served::new(Joined::new(ApiServer::start()).await).await;
    served.joined.create_pod(&format!("{manifest}{server}']\n"));
    served.joined.wait_for_phase("p", "Running").await;
    let plain = served.plain().await;
    let url = format!("{}/portForward/default/p", plain.url);
    harness::eventually(WAIT_LIMIT, "the pod's server answers", async || {
        let ports =
            streaming::port_forward(&url, transport).await.map_err(|error| error.to_string())?;
        let (near, mut far) = tokio::io::duplex(1024);
        let carrying = tokio::spawn(ports.carry(8080, near));
        let mut answer = String::new();
        let requested = async {
            far.write_all(b"hello").await?;
            far.shutdown().await?;
            far.read_to_string(&mut answer).await
        };
        let requested = requested.await.map_err(|error| error.to_string());
        let carried = carrying.await.unwrap().map_err(|error| error.to_string());
        if answer == "HELLO" { Ok(()) } else { Err(format!("{answer} {requested:?} {carried:?}")) }
    })
    .await;
    served.end().await;
}

#[tokio::test]
async fn streams_that_cannot_be_are_refused_before_the_upgrade() {
    let (served, _) = with_pod("sleep 3600").await;
    let plain = served.plain().await;
    for (path, status, words) in [
        (
            "/exec/default/p/app?command=true",
            "400",
            "you must specify at least 1 of stdin, stdout, stderr",
        ),
        ("/exec/default/none/app?command=true&output=1", "404", "pod does not exist"),
        ("/exec/default/p/none?command=true&output=1", "500", "container not found (\"none\")"),
        ("/exec/default/p/other-uid/app?command=true&output=1", "404", "pod not found"),
        ("/attach/default/p/none?output=1", "500", "container none not found in pod p_default"),
        ("/portForward/default/none", "404", "pod does not exist"),
        ("/portForward/default/p/other-uid", "404", "pod not found"),
    ] {
        let refused =
            streaming::command(&format!("{}{path}", plain.url), ALL, Transport::Spdy).await;
        let message = refused.map(drop).unwrap_err().to_string();
        assert!(message.contains(status) && message.contains(words), "{path}: {message}");
    }
    let refused = (400, "Upgrade request required".to_owned());
    assert_eq!(served.get("/exec/default/p/app?command=true&output=1").await, refused);
    served.end().await;
}
