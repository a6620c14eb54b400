//! Exec, Attach and PortForward: their URLs and the streams behind them.

use harness::streaming::{Command, ForwardError, Streams, Transport, command, port_forward};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::support::*;

const OUTPUTS: Streams = Streams { stdin: false, stdout: true, stderr: true, tty: false };
const ALL: Streams = Streams { stdin: true, ..OUTPUTS };
const TERMINAL: Streams = Streams { stdin: true, stdout: true, stderr: false, tty: true };

async fn exec_url(pod: &Pod, id: &str, argv: &[&str], streams: Streams) -> Result<String, Status> {
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: argv.iter().copied().map(str::to_owned).collect(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let answer = pod.client.runtime.clone().exec(request).await?;
    Ok(answer.into_inner().url)
}

async fn exec(pod: &Pod, id: &str, script: &str, streams: Streams, over: Transport) -> Command {
    let argv = ["/bin/sh", "-c", script];
    let url = exec_url(pod, id, &argv, streams).await.unwrap();
    command(&url, streams, over).await.unwrap()
}

async fn attach_url(pod: &Pod, id: &str, streams: Streams) -> Result<String, Status> {
    let request = v1::AttachRequest {
        container_id: id.to_owned(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let answer = pod.client.runtime.clone().attach(request).await?;
    Ok(answer.into_inner().url)
}

async fn ports_url(pod: &Pod, ports: &[i32]) -> Result<String, Status> {
    let request = v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: ports.to_vec() };
    let answer = pod.client.runtime.clone().port_forward(request).await?;
    Ok(answer.into_inner().url)
}

/// Reads a stream until it contains `word`.
async fn read_until(inlet: &mut Option<harness::streaming::Inlet>, word: &str) -> String {
    let mut message = String::new();
    let inlet = inlet.as_mut().unwrap();
    while !message.contains(word) {
        match tokio::time::timeout(WAIT_LIMIT, inlet.next()).await {
            Ok(Some(bytes)) => message += &String::from_utf8_lossy(&bytes),
            Ok(None) => panic!("it ended without {word:?}: {message:?}"),
            Err(_) => panic!("not within {WAIT_LIMIT:?}: {word:?}, only {message:?}"),
        }
    }
    message
}

/// Echoes the input of each client.
const ECHO: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 50, LocalAddr => "127.0.0.1") or die "listen: $!";
    $| = 1; print "port=", $server->sockport, "\n"; $SIG{CHLD} = "IGNORE";
    while ($client = $server->accept) {
        if (fork) { close $client; next }
        while (sysread $client, $text, 4096) {
            syswrite $client, $text; while ($text eq "for ever") { syswrite $client, $text } }
        print $client "bye"; exit }'"#;

#[rstest]
#[case(Transport::Spdy)]
#[case(Transport::WebSocket)]
#[tokio::test]
async fn port_forward_carries_concurrent_connections(#[case] over: Transport) {
    let (_runtime, pod) = with_pod().await;
    let id = pod.start(pod.script("echo", ECHO)).await.unwrap();
    let port = eventually(WAIT_LIMIT, "its port", async || {
        let status = pod.client.container(&id).await.unwrap();
        let lines: Vec<String> = pod.log(&status).into_iter().map(|line| line.text).collect();
        let port = lines.iter().find_map(|line| line.strip_prefix("port=")?.parse().ok());
        port.ok_or(lines)
    })
    .await;
    let ports = port_forward(&ports_url(&pod, &[]).await.unwrap(), over).await.unwrap();
    let many = async |n: usize| {
        let (ours, theirs) = tokio::io::duplex(1024);
        let ask = async {
            let (mut read, mut write) = tokio::io::split(ours);
            let text = format!("{n},").repeat(10_000);
            let (mut answer, length) = (String::new(), text.len());
            let sent = async {
                write.write_all(text.as_bytes()).await.unwrap();
                write.shutdown().await.unwrap();
            };
            let ((), read) = tokio::join!(sent, read.read_to_string(&mut answer));
            read.unwrap();
            assert_eq!(answer.len(), length + 3);
            assert!(answer == text + "bye");
        };
        let ((), carried) = tokio::join!(ask, ports.carry(port, theirs));
        carried.unwrap();
    };
    tokio::join!(many(1), many(22), many(333), many(4), many(55), many(666));
    // No process listens on port 1.
    let (_ours, theirs) = tokio::io::duplex(64);
    match ports.carry(1, theirs).await {
        Err(ForwardError::Refused(problem)) => {
            assert!(problem.to_lowercase().contains("refused"), "{problem}");
        }
        carried => panic!("{carried:?}"),
    }
    many(7).await;
    // A disconnected client does not block, even if data for it is pending.
    let (mut ours, theirs) = tokio::io::duplex(64);
    let leave = async {
        ours.write_all(b"for ever").await.unwrap();
        ours.read_exact(&mut [0; 4000]).await.unwrap();
        drop(ours);
    };
    let both = async { tokio::join!(leave, ports.carry(port, theirs)) };
    let ((), carried) = tokio::time::timeout(WAIT_LIMIT, both).await.unwrap();
    carried.unwrap();
    many(8).await;
}

#[tokio::test]
async fn stream_requests_reject_invalid_arguments() {
    let (runtime, pod) = with_pod().await;
    let id = pod.create(fixture::forever("c")).await.unwrap();
    let none = Streams::default();
    let both = Streams { stderr: true, ..TERMINAL };
    let exec =
        async |id: &str, argv: &[&str], streams| code(exec_url(&pod, id, argv, streams).await);
    let attach = async |id: &str, streams| code(attach_url(&pod, id, streams).await);
    assert_eq!(exec(&id, &["true"], ALL).await, Code::FailedPrecondition);
    assert_eq!(attach(&id, ALL).await, Code::FailedPrecondition);
    runtime.client.start(&id).await.unwrap();
    for streams in [none, both] {
        assert_eq!(exec(&id, &["true"], streams).await, Code::InvalidArgument);
        assert_eq!(attach(&id, streams).await, Code::InvalidArgument);
    }
    assert_eq!(exec(&id, &[], ALL).await, Code::InvalidArgument);
    assert_eq!(exec("", &["true"], ALL).await, Code::InvalidArgument);
    assert_eq!(exec("nowhere", &["true"], ALL).await, Code::NotFound);
    assert_eq!(attach("nowhere", ALL).await, Code::NotFound);
    for port in [0, -1, 65536] {
        assert_eq!(code(ports_url(&pod, &[port]).await), Code::InvalidArgument);
    }
    runtime.client.stop_pod(&pod.id).await.unwrap();
    assert_eq!(exec(&id, &["true"], ALL).await, Code::FailedPrecondition);
    assert_eq!(attach(&id, ALL).await, Code::FailedPrecondition);
    assert_eq!(code(ports_url(&pod, &[80]).await), Code::FailedPrecondition);
}

#[tokio::test]
async fn stream_urls_are_limited_in_number() {
    let (_runtime, pod, id) = with_container().await;
    for _ in 0..1000 {
        exec_url(&pod, &id, &["true"], OUTPUTS).await.unwrap();
    }
    let one_more = exec_url(&pod, &id, &["true"], OUTPUTS).await;
    assert_eq!(code(one_more), Code::ResourceExhausted);
}

/// The process blocks on its output, and the daemon's memory stays bounded.
#[tokio::test]
async fn exec_output_blocks_while_client_does_not_read() {
    let runtime = Runtime::start().await.unwrap();
    let daemon = runtime.pid().unwrap();
    let pod = runtime.pod("p").await.unwrap();
    let id = pod.start(fixture::forever("c")).await.unwrap();
    let memory = || {
        let status = std::fs::read_to_string(format!("/proc/{daemon}/status")).unwrap();
        let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap()
    };
    let before = memory();
    let script = "head -c 200000000 /dev/zero; echo done >&2";
    let mut flood = exec(&pod, &id, script, OUTPUTS, Transport::Spdy).await;
    let done = tokio::time::timeout(Duration::from_secs(3), async {
        read_until(&mut flood.stderr, "done").await
    });
    assert!(done.await.is_err(), "200 MB went somewhere");
    let more = memory().saturating_sub(before);
    assert!(more < 32 << 10, "{more} KiB more than before");
    // The process continues when the client reads.
    let mut stdout = flood.stdout.take().unwrap();
    let mut all = 0;
    while let Some(bytes) = stdout.next().await {
        all += bytes.len();
    }
    assert_eq!(all, 200_000_000);
    assert_eq!(flood.ended().await, Ok(0));
}

/// Connections that send nothing. A running exec and one that is about to start have tokens.
#[tokio::test]
async fn connections_without_token_are_limited_in_number() {
    let (runtime, pod, id) = with_container().await;
    let daemon = ObservedProcess { pid: runtime.pid().unwrap() };
    let script = "echo ready; read -r line; echo heard $line";
    let mut early = exec(&pod, &id, script, ALL, Transport::WebSocket).await;
    read_until(&mut early.stdout, "ready").await;
    let url = exec_url(&pod, &id, &["echo", "late"], OUTPUTS).await.unwrap();
    let address = url.strip_prefix("http://").unwrap().split('/').next().unwrap();
    let before = daemon.descriptors().len();
    let mut silent = Vec::new();
    for _ in 0..400 {
        silent.push(tokio::net::TcpStream::connect(address).await.unwrap());
    }
    let mut late = command(&url, OUTPUTS, Transport::WebSocket).await.unwrap();
    read_until(&mut late.stdout, "late").await;
    // Before the 10 seconds that each connection has for its request are over.
    eventually(Duration::from_secs(7), "at most 256 connections", async || {
        let more = daemon.descriptors().len().saturating_sub(before);
        (more <= 256 + 16).then_some(()).ok_or(more)
    })
    .await;
    early.write(b"again\n").await.unwrap();
    read_until(&mut early.stdout, "heard again").await;
    drop(silent);
}
