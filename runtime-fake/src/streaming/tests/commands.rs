//! Exec and attach over every protocol.

use std::{sync::atomic::Ordering, time::Duration};

use bytes::Bytes;
use rstest::rstest;
use serde_json::json;

use super::{
    client::{Client, V4, ask, command, rest, send},
    fixture, fixture_with, in_time, until,
};
use crate::config::Streams as Settings;

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("SPDY SPDY/3.1+v4.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[case(V4)]
#[case("v4.base64.channel.k8s.io")]
#[tokio::test]
async fn exec_streams_output_and_exit_code(#[case] protocol: &str) {
    let fixture = fixture().await;
    let long = "abc".repeat(30_000);
    let mut client = command(&fixture.exec(&["say", &long], "oe"), protocol, "oe").await;
    assert_eq!(Client::all(&mut client.stdout).await, long);
    assert_eq!(Client::all(&mut client.stderr).await, "complaint");
    let status = client.status().await;
    assert_eq!(status["reason"], "NonZeroExitCode");
    let causes = json!([{"reason": "ExitCode", "message": "3"}]);
    assert_eq!(status["details"]["causes"], causes);
    fixture.nothing_left().await;
}

#[rstest]
#[case("SPDY v3.channel.k8s.io")]
#[case("SPDY v2.channel.k8s.io")]
#[case("SPDY channel.k8s.io")]
#[case("channel.k8s.io")]
#[case("base64.channel.k8s.io")]
#[tokio::test]
async fn old_protocols_report_failures_as_text(#[case] protocol: &str) {
    let fixture = fixture().await;
    let mut client = command(&fixture.exec(&["say", "hello"], "oe"), protocol, "oe").await;
    assert_eq!(Client::all(&mut client.stdout).await, "hello");
    let text = rest(&mut client.error).await;
    assert_eq!(text, "command terminated with exit code 3");
    let mut client = command(&fixture.exec(&["nonsense"], "o"), protocol, "o").await;
    let text = rest(&mut client.error).await;
    assert_eq!(text, "failed to run it: entity not found");
    fixture.nothing_left().await;
}

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("SPDY SPDY/3.1+v4.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[tokio::test]
async fn stdin_and_stdout_flow_concurrently_to_eof(#[case] protocol: &str) {
    let fixture = fixture().await;
    let mut client = command(&fixture.exec(&["cat"], "io"), protocol, "io").await;
    let text = "0123456789abcdef".repeat(64 << 10);
    let stdin = client.stdin.take();
    let sent = async {
        send(&stdin, &text).await;
        stdin.unwrap().end().await;
    };
    let (back, ()) = tokio::join!(Client::all(&mut client.stdout), sent);
    assert!(back == text, "{} of {} bytes", back.len(), text.len());
    assert_eq!(client.status().await["status"], "Success");
    fixture.nothing_left().await;
}

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("SPDY v3.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[case("base64.channel.k8s.io")]
#[tokio::test]
async fn terminal_resize_reaches_process(#[case] protocol: &str) {
    let fixture = fixture().await;
    let mut client = command(&fixture.exec(&["sizes"], "iot"), protocol, "iot").await;
    send(&client.resize, "{\"Width\":80,\"Hei").await;
    send(&client.resize, "ght\":24}\n").await;
    let first = client.stdout.as_mut().unwrap();
    let mut line = String::new();
    while !line.ends_with('\n') {
        let chunk = in_time("a size", first.next()).await.unwrap();
        line += std::str::from_utf8(&chunk).unwrap();
    }
    assert_eq!(line, "80x24\n");
    send(&client.resize, "{\"Width\":1,\"Height\":2}\n").await;
    assert_eq!(Client::all(&mut client.stdout).await, "1x2\n");
}

#[tokio::test]
async fn attach_ends_successfully_when_container_exits() {
    let fixture = fixture().await;
    for protocol in ["SPDY v4.channel.k8s.io", "v5.channel.k8s.io"] {
        let mut client = command(&fixture.attach("ioe"), protocol, "ioe").await;
        assert_eq!(Client::all(&mut client.stdout).await, "hello");
        assert_eq!(client.status().await["status"], "Success");
    }
    fixture.nothing_left().await;
}

#[tokio::test]
async fn stream_url_is_valid_once() {
    let fixture = fixture().await;
    let url = fixture.exec(&["cat"], "io");
    let token = url.rsplit('/').next().unwrap();
    assert!(token.len() >= 32, "{url}");
    let upgrade = "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n";
    let address = fixture.address();
    let nothing = |path: &str| ask_for_nothing(format!("http://{address}/{path}"));
    nothing("").await;
    nothing("exec/").await;
    nothing(&format!("attach/{token}")).await;
    nothing(&format!("exec/{}", &token[1..])).await;
    assert_eq!(ask(&url, upgrade).await.status, 101);
    let again = ask(&url, upgrade).await;
    assert_eq!(again.status, 404);
    assert!(again.text.contains("content-length: 0"), "{}", again.text);
    // A client without a protocol, or with an unsupported one, has used its token.
    for (headers, status) in [
        ("", 400),
        ("Connection: Upgrade\r\nUpgrade: h2c\r\n", 400),
        ("Connection: Upgrade\r\nUpgrade: websocket\r\n", 400),
        ("Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\nX-Stream-Protocol-Version: v9\r\n", 403),
    ] {
        let url = fixture.exec(&["cat"], "io");
        assert_eq!(ask(&url, headers).await.status, status, "{headers}");
        assert_eq!(ask(&url, upgrade).await.status, 404);
    }
    assert_eq!(fixture.counts.live.load(Ordering::SeqCst), 0);
}

async fn ask_for_nothing(url: String) {
    let answer = ask(&url, "Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n").await;
    assert_eq!(answer.status, 404, "{url}");
    assert!(answer.text.contains("content-length: 0"), "{}", answer.text);
}

#[tokio::test]
async fn missing_streams_are_reported_to_client() {
    let creation = Duration::from_millis(50);
    let settings = Settings { creation, ..Settings::default() };
    let fixture = fixture_with(settings).await;
    let url = fixture.exec(&["cat"], "ioe");
    let mut client = command(&url, "SPDY v4.channel.k8s.io", "oe").await;
    let status = client.status().await;
    let message = status["message"].as_str().unwrap();
    assert!(message.ends_with("stdin missing"), "{message}");
    assert_eq!(fixture.counts.live.load(Ordering::SeqCst), 0);
}

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[tokio::test]
async fn idle_connection_is_closed(#[case] protocol: &str) {
    let idle = Duration::from_millis(200);
    let settings = Settings { idle, ..Settings::default() };
    let fixture = fixture_with(settings).await;
    let mut client = command(&fixture.exec(&["cat"], "io"), protocol, "io").await;
    let began = std::time::Instant::now();
    assert_eq!(rest(&mut client.error).await, "");
    assert!(began.elapsed() >= idle - Duration::from_millis(50));
    fixture.nothing_left().await;
}

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[tokio::test]
async fn disconnected_client_leaves_no_tasks(#[case] protocol: &str) {
    let fixture = fixture().await;
    // One client waits, one does not read, and one has a process that does not read.
    let waits = command(&fixture.exec(&["cat"], "io"), protocol, "io").await;
    let reads_not = command(&fixture.exec(&["flood"], "io"), protocol, "io").await;
    let is_stuck = command(&fixture.exec(&["stuck"], "io"), protocol, "io").await;
    let counts = &fixture.counts;
    until("all run", || counts.live.load(Ordering::SeqCst) == 3).await;
    let filled = async {
        let chunk = Bytes::from(vec![0; 16 << 10]);
        let stdin = is_stuck.stdin.as_ref().unwrap();
        while tokio::time::timeout(Duration::from_millis(500), stdin.send(chunk.clone()))
            .await
            .is_ok()
        {}
    };
    in_time("a full connection", filled).await;
    for client in [waits, reads_not, is_stuck] {
        client.driving.abort();
    }
    fixture.nothing_left().await;
}

#[rstest]
#[case("SPDY v4.channel.k8s.io")]
#[case("SPDY SPDY/3.1+v4.channel.k8s.io")]
#[case("v5.channel.k8s.io")]
#[tokio::test]
async fn slow_reader_blocks_process_output(#[case] protocol: &str) {
    let fixture = fixture().await;
    let mut client = command(&fixture.exec(&["flood"], "o"), protocol, "o").await;
    let flooded = || fixture.counts.flooded.load(Ordering::SeqCst);
    let stalled = async {
        loop {
            let before = flooded();
            tokio::time::sleep(Duration::from_millis(300)).await;
            if before > 0 && flooded() == before {
                return before;
            }
        }
    };
    let held = in_time("the process to wait", stalled).await;
    // At most the socket buffers, and a few of the server's own.
    assert!(held < 32 << 20, "{held} bytes are held");
    // It continues when the client reads.
    let stdout = client.stdout.as_mut().unwrap();
    while flooded() < held + (8 << 20) {
        in_time("more", stdout.next()).await.unwrap();
    }
}

#[tokio::test]
async fn server_shutdown_ends_all_streams() {
    let fixture = fixture().await;
    let mut clients = Vec::new();
    for protocol in ["SPDY v4.channel.k8s.io", "v5.channel.k8s.io"] {
        clients.push(command(&fixture.exec(&["cat"], "io"), protocol, "io").await);
        clients.push(command(&fixture.exec(&["flood"], "io"), protocol, "io").await);
    }
    let counts = &fixture.counts;
    until("all run", || counts.live.load(Ordering::SeqCst) == 4).await;
    fixture.serving.abort();
    fixture.tasks.close();
    in_time("the ends of its tasks", fixture.tasks.wait()).await;
    assert_eq!(counts.live.load(Ordering::SeqCst), 0);
    for client in clients {
        in_time("the end of a connection", client.left()).await.unwrap();
    }
}
