//! Port-forward: many connections to ports of a pod over one client connection.

mod pairs;

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use stream::{
    Channels, Connection, Inlet, Outlet, Role, Stream, Tunnel, connect, pump_in, pump_out,
    websocket_config,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _},
    sync::mpsc,
    task::JoinSet,
    time::Instant,
};
use tokio_tungstenite::{WebSocketStream, tungstenite::protocol::Role as End};
use tokio_util::task::TaskTracker;

use super::{negotiate::Transport, target::Target};
use crate::id::SandboxId;
use pairs::{AddResult, Pairs, StreamKind};

/// The pod to forward to.
#[derive(Clone)]
pub(super) struct Pod {
    pub(super) target: Arc<dyn Target>,
    pub(super) sandbox: SandboxId,
    /// Tracks every forwarded connection.
    pub(super) tasks: TaskTracker,
}

/// Forwards for the client at the other end of `io`, until it disconnects.
pub(super) async fn serve<T: AsyncRead + AsyncWrite + Unpin + Send>(
    io: T,
    transport: Transport,
    pod: Pod,
    ports: &[u16],
    creation: Duration,
) {
    match transport {
        Transport::Spdy(_) => over_spdy(io, pod, creation).await,
        Transport::Tunnelled(_) => {
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(io, End::Server, config).await;
            over_spdy(Tunnel::new(socket), pod, creation).await;
        }
        Transport::Channels { codec, .. } => {
            let config = Some(websocket_config());
            let socket = WebSocketStream::from_raw_socket(io, End::Server, config).await;
            let mut channels = Channels::new(socket, codec, false, Role::Server);
            let mut forwards = JoinSet::new();
            for (n, port) in (0..).zip(ports) {
                let (data, error) = (2 * n, 2 * n + 1);
                let inlet = channels.inlet(data);
                let (outlet, error) = (channels.outlet(data), channels.outlet(error));
                let forward = channel(pod.clone(), *port, inlet, outlet, error);
                forwards.spawn(tasks::boxed(pod.tasks.track_future(forward)));
            }
            let talk = async { while forwards.join_next().await.is_some() {} };
            super::drive(channels.run(), talk).await;
        }
    }
}

/// Each channel begins with its port number.
async fn channel(pod: Pod, port: u16, inlet: Inlet, outlet: Outlet, error: Outlet) {
    let name = Bytes::copy_from_slice(&port.to_le_bytes());
    for outlet in [&outlet, &error] {
        if outlet.send(name.clone()).await.is_err() {
            return;
        }
    }
    forward(pod, port, inlet, outlet, error, false).await;
}

async fn over_spdy<T: AsyncRead + AsyncWrite + Send>(io: T, pod: Pod, creation: Duration) {
    let (connection, streams, driver) = connect(io, Role::Server);
    let talk = forwards(connection, streams, pod, creation);
    super::drive(driver.run(), talk).await;
}

async fn forwards(
    // Held: without it the connection would end with the last stream.
    _connection: Connection,
    mut streams: mpsc::Receiver<Stream>,
    pod: Pod,
    creation: Duration,
) {
    let mut pairs: Pairs<Stream> = Pairs::default();
    let mut forwards = JoinSet::new();
    loop {
        let late = pairs.oldest().map(|first| Instant::from_std(first) + creation);
        let stream = tokio::select! {
            stream = streams.recv() => match stream {
                Some(stream) => stream,
                None => return,
            },
            Some(_) = forwards.join_next() => continue,
            () = until(late) => {
                for (part, stream) in pairs.take_expired(std::time::Instant::now(), creation) {
                    if part == StreamKind::Error {
                        let text = "the stream for data was not opened in time";
                        let _ = stream.outlet.send(Bytes::from_static(text.as_bytes())).await;
                    }
                    stream.outlet.abort().await;
                }
                continue;
            }
        };
        let header = |name| stream.headers.get(name);
        let part = StreamKind::named(header("streamType").unwrap_or_default());
        let port: Option<u16> = header("port").and_then(|port| port.parse().ok());
        let (Some(part), Some(port @ 1..)) = (part, port) else {
            stream.outlet.abort().await;
            continue;
        };
        let key = pairs::key(header("requestID"), part, stream.id);
        match pairs.add(key, part, stream, std::time::Instant::now()) {
            AddResult::Pair { data, error } => {
                let Stream { inlet, outlet, .. } = data;
                let forward = forward(pod.clone(), port, inlet, outlet, error.outlet, true);
                forwards.spawn(tasks::boxed(pod.tasks.track_future(forward)));
            }
            AddResult::Half => {}
            AddResult::Duplicate(stream) => stream.outlet.abort().await,
        }
    }
}

async fn until(late: Option<Instant>) {
    match late {
        Some(late) => tokio::time::sleep_until(late).await,
        None => std::future::pending().await,
    }
}

/// Forwards one connection. `half_close`: whether the client can half-close. If it cannot, the connection ends when the pod has
/// closed its end.
async fn forward(
    pod: Pod,
    port: u16,
    mut inlet: Inlet,
    outlet: Outlet,
    error: Outlet,
    half_close: bool,
) {
    let connected = tokio::select! {
        connected = pod.target.connect(&pod.sandbox, port) => connected,
        () = outlet.closed() => return,
    };
    let connection = match connected {
        Ok(connection) => connection,
        Err(problem) => {
            let pod = pod.sandbox.short();
            let text = format!("pod {pod}: {}", crate::chain(&problem));
            let _ = error.send(text.into()).await;
            error.end().await;
            return outlet.abort().await;
        }
    };
    let (mut read, mut write) = tokio::io::split(connection);
    let upward = async {
        if pump_in(&mut inlet, &mut write).await.is_ok() {
            let _ = write.shutdown().await;
        }
        // If the pod stops reading, drop the rest, so that the client's other streams continue.
        while inlet.next().await.is_some() {}
    };
    let downward = pump_out(&mut read, &outlet);
    tokio::pin!(upward, downward);
    // The direction that ends first is not polled again.
    let (downward_ended, upward_ended) = tokio::select! {
        ended = &mut downward => (ended, false),
        () = &mut upward => (downward.await, true),
    };
    if let Err(problem) = downward_ended {
        let text = format!("port {port} of pod {}: {problem}", pod.sandbox.short());
        let _ = error.send(text.into()).await;
        error.end().await;
        return outlet.abort().await;
    }
    error.end().await;
    outlet.end().await;
    if half_close && !upward_ended {
        upward.await;
    }
}
