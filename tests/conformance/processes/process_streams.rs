//! Exec, attach and port-forward over WebSocket, from the perspective of the stream server's clients.

use cri::v1::{AttachRequest, ContainerConfig, ExecRequest};
use futures_util::{SinkExt as _, StreamExt as _};
use tokio::net::TcpStream;
use tokio_tungstenite::{
    WebSocketStream, client_async,
    tungstenite::{Message, client::IntoClientRequest as _, http::HeaderValue},
};

use crate::support::*;

/// The channels of `v5.channel.k8s.io` (Kubernetes 1.36, client-go remotecommand).
const STDIN: u8 = 0;
const STDOUT: u8 = 1;
const STDERR: u8 = 2;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;

/// A client, and the output that it has received so far.
struct Session {
    socket: WebSocketStream<TcpStream>,
    out: Vec<u8>,
    err: Vec<u8>,
    status: String,
}

impl Session {
    async fn open(url: &str) -> Self {
        let mut request = url.replacen("http", "ws", 1).into_client_request().unwrap();
        let protocol = HeaderValue::from_static("v5.channel.k8s.io");
        request.headers_mut().insert("Sec-WebSocket-Protocol", protocol);
        let address = request.uri().authority().unwrap().as_str().to_owned();
        let stream = TcpStream::connect(address).await.unwrap();
        let (socket, _) = client_async(request, stream).await.unwrap();
        Self { socket, out: Vec::new(), err: Vec::new(), status: String::new() }
    }

    async fn send(&mut self, channel: u8, bytes: &[u8]) {
        let message = [&[channel], bytes].concat();
        self.socket.send(Message::Binary(message.into())).await.unwrap();
    }

    /// Receives the next message; `false` at the end.
    async fn next(&mut self) -> bool {
        let message = tokio::time::timeout(WAIT_LIMIT, self.socket.next()).await;
        let message = message.unwrap_or_else(|_| panic!("nothing came after {:?}", self.text()));
        let Some(Ok(Message::Binary(bytes))) = message else {
            return matches!(message, Some(Ok(Message::Ping(_) | Message::Pong(_))));
        };
        match bytes.split_first() {
            Some((&STDOUT, rest)) => self.out.extend_from_slice(rest),
            Some((&STDERR, rest)) => self.err.extend_from_slice(rest),
            Some((&ERROR, rest)) => self.status += &String::from_utf8_lossy(rest),
            _ => {}
        }
        true
    }

    async fn until(&mut self, wanted: &str) {
        while !self.text().contains(wanted) {
            assert!(self.next().await, "it ended with {:?}", self.text());
        }
    }

    async fn until_end(mut self) -> Self {
        while self.next().await {}
        self
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.out).into_owned()
    }
}

async fn exec(pod: &Pod, id: &str, script: &str, tty: bool) -> Session {
    let request = ExecRequest {
        container_id: id.to_owned(),
        cmd: ["sh", "-c", script].map(Into::into).into(),
        tty,
        stdin: true,
        stdout: true,
        stderr: !tty,
    };
    let answer = pod.client.runtime.clone().exec(request).await.unwrap();
    Session::open(&answer.into_inner().url).await
}

async fn attach(pod: &Pod, id: &str, tty: bool, stdin: bool) -> Session {
    let request =
        AttachRequest { container_id: id.to_owned(), stdin, tty, stdout: true, stderr: !tty };
    let answer = pod.client.runtime.clone().attach(request).await.unwrap();
    Session::open(&answer.into_inner().url).await
}

#[tokio::test]
async fn exec_stream_ends_while_orphan_holds_outputs() {
    let (_runtime, pod, id) = with_container().await;
    let session = exec(&pod, &id, "sleep 1000 & echo done", false).await;
    let session = session.until_end().await;
    assert_eq!(session.text(), "done\n");
    assert!(session.status.contains("Success"), "{}", session.status);
}

#[tokio::test]
async fn exec_on_terminal_reads_lines_until_ctrl_d() {
    let (_runtime, pod, id) = with_container().await;
    let script = "echo $TERM; stty size; while read line; do echo got $line; done";
    let mut session = exec(&pod, &id, script, true).await;
    session.until("xterm\r\n24 80\r\n").await;
    session.send(STDIN, b"one\n").await;
    session.until("got one\r\n").await;
    // Ctrl-D ends the input.
    session.send(STDIN, b"\x04").await;
    let session = session.until_end().await;
    assert!(session.status.contains("Success"), "{}", session.status);
}

/// Like ssh.
#[tokio::test]
async fn exec_gets_eof_or_sighup_when_client_disconnects() {
    let (runtime, pod, id) = with_container().await;
    let directory = runtime.client.sh(&id, "mktemp -d").await.unwrap();
    let directory = directory.trim_end();
    let script = format!("echo ready; cat; echo > {directory}/end");
    let mut piped = exec(&pod, &id, &script, false).await;
    piped.until("ready").await;
    let script =
        format!("trap 'echo > {directory}/hup; exit' HUP; echo ready; while :; do sleep 0.1; done");
    let mut terminal = exec(&pod, &id, &script, true).await;
    terminal.until("ready").await;
    drop((piped, terminal));
    eventually(WAIT_LIMIT, "both to notice", || async {
        let seen = runtime.client.sh(&id, &format!("ls {directory}")).await;
        match seen.unwrap().as_str() {
            "end\nhup\n" => Ok(()),
            other => Err(other.to_owned()),
        }
    })
    .await;
    let remove = format!("rm -r {directory}");
    runtime.client.sh(&id, &remove).await.unwrap();
}

#[tokio::test]
async fn attach_to_terminal_works_after_daemon_restart() {
    let (mut runtime, pod) = pod_of(Runtime::with().durable()).await;
    let config = ContainerConfig {
        stdin: true,
        tty: true,
        ..pod.script("c", "until [ \"$(stty size)\" = '30 100' ]; do sleep 0.05; done; while read line; do echo got $line; done")
    };
    let id = pod.start(config).await.unwrap();
    let mut session = attach(&pod, &id, true, true).await;
    session.send(RESIZE, br#"{"Width":100,"Height":30}"#).await;
    session.send(STDIN, b"one\n").await;
    session.until("got one\r\n").await;
    runtime.kill_and_restart().await.unwrap();
    let pod = crate::restarts::recovery::pod_on(&pod, &runtime);
    let mut session = attach(&pod, &id, true, true).await;
    session.send(STDIN, b"two\n").await;
    session.until("got two\r\n").await;
    runtime.client.remove_pod(&pod.id).await.unwrap();
    session.until_end().await;
}

/// The container keeps running, its log is complete, and the client learns how much it missed.
#[tokio::test]
async fn slow_attach_client_does_not_block_container() {
    const LINES: usize = 2_000_000;
    let (runtime, pod) = with_pod().await;
    let config = ContainerConfig {
        stdin: true,
        ..pod.script("c", &format!("read go; seq {LINES}; while read more; do echo again; done"))
    };
    let id = pod.start(config).await.unwrap();
    let mut session = attach(&pod, &id, false, true).await;
    session.send(STDIN, b"go\n").await;
    let status = runtime.client.container(&id).await.unwrap();
    let last = format!(" stdout F {LINES}\n");
    eventually(4 * WAIT_LIMIT, "the whole log", || async {
        let log = std::fs::read(&status.log_path).unwrap_or_default();
        if log.ends_with(last.as_bytes()) { Ok(()) } else { Err(log.len()) }
    })
    .await;
    let log = std::fs::read(&status.log_path).unwrap();
    assert_eq!(log.split(|byte| *byte == b'\n').count(), LINES + 1);
    // The client reads again, and the container writes more.
    while !session.text().contains(" bytes are missing here") {
        assert!(session.next().await);
        session.send(STDIN, b"more\n").await;
    }
}

/// The note is sent even if the container writes nothing more.
#[tokio::test]
async fn slow_attach_client_learns_of_missing_bytes_after_exit() {
    const LINES: usize = 2_000_000;
    let (_runtime, pod) = with_pod().await;
    let config =
        ContainerConfig { stdin: true, ..pod.script("c", &format!("read go; seq {LINES}")) };
    let id = pod.start(config).await.unwrap();
    let mut session = attach(&pod, &id, false, true).await;
    session.send(STDIN, b"go\n").await;
    pod.ended(&id).await.unwrap();
    while session.next().await {}
    let (text, last) = (session.text(), format!("{LINES}\n"));
    assert!(!text.ends_with(&last), "it missed nothing: {}", text.len());
    let note = text.trim_end().rsplit("\r\n").next().unwrap();
    assert!(note.contains(" bytes are missing here"), "{note:?}");
    assert!(session.status.contains("Success"), "{}", session.status);
}
