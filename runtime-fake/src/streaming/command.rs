//! Exec and attach: connects a client to a process's streams and reports its exit.

use std::{collections::HashMap, time::Duration};

use bytes::Bytes;
use stream::{
    Channels, Connection, Inlet, Outlet, Role, Stream, Tunnel, connect, pump_in, pump_out,
    websocket_config,
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role as End};

use super::{
    negotiate::{ResultFormat, Spdy, Transport},
    resize::Sizes,
    status::{ExitStatus, message},
    target::{AttachRequest, ExecRequest, Reader, Session, Size, Target, Writer},
};

/// The command to run or to attach to.
#[derive(Debug)]
pub(super) enum Command {
    Exec(ExecRequest),
    Attach(AttachRequest),
}

/// The streams that a client requested.
#[derive(Debug, Clone, Copy)]
struct RequestedStreams {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

impl Command {
    fn wanted(&self) -> RequestedStreams {
        match self {
            Self::Exec(r) => {
                RequestedStreams { stdin: r.stdin, stdout: r.stdout, stderr: r.stderr, tty: r.tty }
            }
            Self::Attach(r) => {
                RequestedStreams { stdin: r.stdin, stdout: r.stdout, stderr: r.stderr, tty: r.tty }
            }
        }
    }

    async fn start(self, target: &dyn Target) -> Result<(Session, bool), String> {
        let (session, is_exec) = match self {
            Self::Exec(request) => (target.exec(request).await, true),
            Self::Attach(request) => (target.attach(request).await, false),
        };
        match session {
            Ok(session) => Ok((session, is_exec)),
            Err(error) => Err(crate::chain(&error)),
        }
    }
}

/// The client's ends of a command's streams, in any protocol.
struct ClientStreams {
    stdin: Option<Inlet>,
    stdout: Option<Outlet>,
    stderr: Option<Outlet>,
    resize: Option<Inlet>,
    error: Outlet,
    outcome: ResultFormat,
}

/// Runs a command for the client at the other end of `io`, until either ends.
pub(super) async fn serve<T: AsyncRead + AsyncWrite + Unpin + Send>(
    io: T,
    transport: Transport,
    command: Command,
    target: &dyn Target,
    creation: Duration,
) {
    match transport {
        Transport::Spdy(spdy) => over_spdy(io, spdy, command, target, creation).await,
        Transport::Tunnelled(spdy) => {
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(io, End::Server, config).await;
            over_spdy(Tunnel::new(socket), spdy, command, target, creation).await;
        }
        Transport::Channels { codec, half_close, outcome } => {
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(io, End::Server, config).await;
            let mut channels = Channels::new(socket, codec, half_close, Role::Server);
            let wanted = command.wanted();
            let streams = ClientStreams {
                stdin: wanted.stdin.then(|| channels.inlet(0)),
                stdout: wanted.stdout.then(|| channels.outlet(1)),
                stderr: wanted.stderr.then(|| channels.outlet(2)),
                error: channels.outlet(3),
                resize: wanted.tty.then(|| channels.inlet(4)),
                outcome,
            };
            let talk = async {
                // An empty message on the first output channel shows the client that it is connected.
                let first = streams.stdout.as_ref().or(streams.stderr.as_ref());
                let _ = first.unwrap_or(&streams.error).send(Bytes::new()).await;
                run(command, streams, target).await;
            };
            super::drive(channels.run(), talk).await;
        }
    }
}

async fn over_spdy<T: AsyncRead + AsyncWrite + Send>(
    io: T,
    spdy: Spdy,
    command: Command,
    target: &dyn Target,
    creation: Duration,
) {
    let (connection, streams, driver) = connect(io, Role::Server);
    let talk = async {
        if let Some(streams) =
            accept_streams(connection, streams, command.wanted(), spdy, creation).await
        {
            run(command, streams, target).await;
        }
    };
    super::drive(driver.run(), talk).await;
}

/// Waits for the streams that the client must open. If some are missing at the timeout, the client gets an error
/// if possible.
async fn accept_streams(
    // Held until all streams are open: without it the connection would end.
    connection: Connection,
    mut streams: mpsc::Receiver<Stream>,
    wanted: RequestedStreams,
    spdy: Spdy,
    creation: Duration,
) -> Option<ClientStreams> {
    let mut missing = vec!["error"];
    for (name, is_wanted) in [
        ("stdin", wanted.stdin),
        ("stdout", wanted.stdout),
        ("stderr", wanted.stderr),
        ("resize", wanted.tty && spdy.resize),
    ] {
        missing.extend(is_wanted.then_some(name));
    }
    let mut have: HashMap<&str, Stream> = HashMap::new();
    let all = async {
        while !missing.is_empty() {
            let Some(stream) = streams.recv().await else {
                return;
            };
            let kind = stream.headers.get("streamType").unwrap_or_default();
            match missing.iter().position(|name| *name == kind) {
                Some(n) => {
                    have.insert(missing.swap_remove(n), stream);
                }
                None => stream.outlet.abort().await,
            }
        }
    };
    let in_time = tokio::time::timeout(creation, all).await.is_ok();
    drop(connection);
    let mut inlet = |name| have.remove(name).map(|stream| stream.inlet);
    let (stdin, resize) = (inlet("stdin"), inlet("resize"));
    let mut outlet = |name| have.remove(name).map(|stream| stream.outlet);
    let streams = ClientStreams {
        stdin,
        stdout: outlet("stdout"),
        stderr: outlet("stderr"),
        resize,
        error: outlet("error")?,
        outcome: spdy.outcome,
    };
    if in_time && missing.is_empty() {
        return Some(streams);
    }
    let problem = format!(
        "the client did not open its streams within {} s: {} missing",
        creation.as_secs(),
        missing.join(", ")
    );
    report_result(streams.error, streams.outcome, &ExitStatus::Failed(problem)).await;
    None
}

async fn report_result(error: Outlet, outcome: ResultFormat, ending: &ExitStatus) {
    if let Some(message) = message(outcome, ending) {
        let _ = error.send(message).await;
    }
    error.end().await;
}

async fn run(command: Command, streams: ClientStreams, target: &dyn Target) {
    let (session, is_exec) = match command.start(target).await {
        Ok(started) => started,
        Err(problem) => {
            return report_result(streams.error, streams.outcome, &ExitStatus::Failed(problem))
                .await;
        }
    };
    let input = async {
        tokio::join!(feed(streams.stdin, session.stdin), resize(streams.resize, session.resize),);
        std::future::pending::<()>().await;
    };
    let output = async {
        let (.., ended) = tokio::join!(
            drain(session.stdout, streams.stdout),
            drain(session.stderr, streams.stderr),
            session.ended,
        );
        ended
    };
    // Once the process has ended and its output was sent, further input is ignored.
    let ended = tokio::select! {
        ended = output => ended,
        () = input => return,
    };
    let ending = match ended {
        Ok(code) if is_exec => ExitStatus::Code(code),
        Ok(_) => ExitStatus::Over,
        Err(error) => ExitStatus::Failed(crate::chain(&error)),
    };
    report_result(streams.error, streams.outcome, &ending).await;
}

/// Copies the client's input to a process. When the process stops reading, the rest is dropped, so that the
/// client's other streams continue.
async fn feed(inlet: Option<Inlet>, stdin: Option<Writer>) {
    let Some(mut inlet) = inlet else {
        return;
    };
    if let Some(mut stdin) = stdin
        && pump_in(&mut inlet, &mut stdin).await.is_ok()
    {
        let _ = stdin.shutdown().await;
    }
    while inlet.next().await.is_some() {}
}

async fn resize(inlet: Option<Inlet>, sizes: Option<mpsc::Sender<Size>>) {
    let Some(mut inlet) = inlet else {
        return;
    };
    let mut text = Sizes::default();
    while let Some(bytes) = inlet.next().await {
        if let (Some(size), Some(sizes)) = (text.feed(&bytes), &sizes) {
            // The client may have disconnected.
            let _ = sizes.send(size).await;
        }
    }
}

/// Copies a process's output to the client. When the client stops reading, the rest is dropped, so that the
/// process continues.
async fn drain(reader: Option<Reader>, outlet: Option<Outlet>) {
    let Some(mut reader) = reader else {
        return;
    };
    if let Some(outlet) = outlet {
        let sent = pump_out(&mut reader, &outlet).await;
        outlet.end().await;
        if sent.is_ok() {
            return;
        }
    }
    let mut nowhere = vec![0; 4 << 10];
    while reader.read(&mut nowhere).await.is_ok_and(|n| n > 0) {}
}
