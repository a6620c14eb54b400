//! Handles new connections: redeems the token, negotiates a protocol, and passes the connection on. Any other request gets 404.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use hyper::{
    Response, StatusCode,
    body::Incoming,
    header::{self, HeaderMap, HeaderValue},
    server::conn::http1,
    service::service_fn,
    upgrade::OnUpgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use network::{Slot, Slots};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_util::task::TaskTracker;

use crate::config::Streams as Settings;

use super::{
    Request, Streams,
    command::{self, Command},
    forward::{self, Pod},
    negotiate::{HandshakeHeaders, Negotiated, NegotiationError, Transport, negotiate},
    target::Target,
    watch,
};

/// Timeout for a client to send its request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Limit on connections without a token. Above it, the oldest connection of the client with the most is dropped, because each
/// holds a descriptor.
const MAX_PENDING: usize = 256;
/// Limit on ports with channels: the channel numbers must fit into one byte, also as text.
const MAX_PORTS: usize = 64;

const STREAM_PROTOCOL: &str = "x-stream-protocol-version";

/// A redeemed request, with its negotiated transport.
struct Accepted {
    request: Request,
    transport: Transport,
    upgrade: OnUpgrade,
}

/// Serves until it is dropped, with every connection.
pub(super) async fn serve(
    listener: TcpListener,
    streams: Streams,
    settings: Settings,
    target: Arc<dyn Target>,
    tasks: TaskTracker,
) {
    let pending = Slots::new("stream connections without a token", MAX_PENDING);
    let mut connections = JoinSet::new();
    loop {
        // Both arms are cancel-safe.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let (client, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // Most likely there are too many open files: drop the oldest connection without a token.
                tracing::warn!(%error, "failed to accept stream connection");
                if !pending.evict() {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                continue;
            }
        };
        let Some(entry) = pending.take(peer.ip()) else {
            continue;
        };
        let (streams, pods) = (streams.clone(), tasks.clone());
        let target = target.clone();
        connections.spawn(tasks::boxed(tasks.track_future(async move {
            if let Some(accepted) = accept_request(client, &streams, &entry).await {
                serve_upgraded(accepted, settings, target, pods).await;
            }
        })));
    }
}

async fn accept_request(client: TcpStream, streams: &Streams, entry: &Slot) -> Option<Accepted> {
    // Send keystrokes and their echo immediately.
    let _ = client.set_nodelay(true);
    let slot = Mutex::new(None);
    let service = service_fn(async |request| {
        let (response, accepted) = answer(request, streams);
        if accepted.is_some() {
            // From now on it is not dropped for others.
            entry.release();
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = accepted;
        }
        Ok::<_, Infallible>(response)
    });
    let ended = {
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(PATIENCE)
            .max_buf_size(16 << 10)
            .serve_connection(TokioIo::new(client), service)
            .with_upgrades();
        let connection = tokio::time::timeout(PATIENCE, connection);
        tokio::pin!(connection);
        let has_token = || slot.lock().is_ok_and(|slot| slot.is_some());
        tokio::select! {
            biased;
            // Polled first, so that a connection whose request has arrived is answered and not dropped.
            ended = &mut connection => ended,
            () = entry.closed() => {
                if !has_token() {
                    return None;
                }
                connection.await
            }
        }
    };
    match ended {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!(%error, "stream client sent invalid HTTP"),
        Err(_) => return None,
    }
    slot.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn answer(
    mut request: hyper::Request<Incoming>,
    streams: &Streams,
) -> (Response<String>, Option<Accepted>) {
    let Some(redeemed) = streams.redeem(request.uri().path()) else {
        return (text_response(StatusCode::NOT_FOUND, String::new()), None);
    };
    let headers = request.headers();
    let negotiated = match negotiate_request(&redeemed, headers) {
        Ok(negotiated) => negotiated,
        Err((status, text)) => return (text_response(status, text), None),
    };
    let response = switching_protocols(&negotiated, headers);
    let upgrade = hyper::upgrade::on(&mut request);
    let accepted = Accepted { request: redeemed, transport: negotiated.transport, upgrade };
    (response, Some(accepted))
}

fn negotiate_request(
    redeemed: &Request,
    headers: &HeaderMap,
) -> Result<Negotiated, (StatusCode, String)> {
    let negotiated =
        negotiate(redeemed.kind(), &handshake_headers(headers)).map_err(|refused| {
            let status = match refused {
                NegotiationError::NotAnUpgrade | NegotiationError::BrokenHandshake => {
                    StatusCode::BAD_REQUEST
                }
                NegotiationError::UnknownProtocols { .. } => StatusCode::FORBIDDEN,
            };
            (status, refused.to_string())
        })?;
    if let (Request::PortForward { ports, .. }, Transport::Channels { .. }) =
        (redeemed, negotiated.transport)
        && !(1..=MAX_PORTS).contains(&ports.len())
    {
        let text = format!(
            "the PortForward call has to name 1 to {MAX_PORTS} ports for this protocol, not {}",
            ports.len()
        );
        return Err((StatusCode::BAD_REQUEST, text));
    }
    Ok(negotiated)
}

pub(super) fn handshake_headers(headers: &HeaderMap) -> HandshakeHeaders<'_> {
    fn all<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
        let values = headers.get_all(name).into_iter();
        values.filter_map(|value| value.to_str().ok()).collect()
    }
    let one = |name| headers.get(name).and_then(|value| value.to_str().ok());
    HandshakeHeaders {
        connection: all(headers, "connection"),
        upgrade: one(header::UPGRADE),
        stream_protocols: all(headers, STREAM_PROTOCOL),
        websocket_protocols: all(headers, "sec-websocket-protocol"),
        websocket_version: one(header::SEC_WEBSOCKET_VERSION),
        websocket_key: one(header::SEC_WEBSOCKET_KEY),
    }
}

fn text_response(status: StatusCode, text: String) -> Response<String> {
    let mut response = Response::new(text);
    *response.status_mut() = status;
    response
}

pub(super) fn switching_protocols(
    negotiated: &Negotiated,
    request: &HeaderMap,
) -> Response<String> {
    let mut response = text_response(StatusCode::SWITCHING_PROTOCOLS, String::new());
    let headers = response.headers_mut();
    headers.insert(header::CONNECTION, HeaderValue::from_static("Upgrade"));
    let (upgrade, name) = match negotiated.transport {
        Transport::Spdy(_) => ("SPDY/3.1", STREAM_PROTOCOL),
        Transport::Tunnelled(_) | Transport::Channels { .. } => {
            ("websocket", "sec-websocket-protocol")
        }
    };
    headers.insert(header::UPGRADE, HeaderValue::from_static(upgrade));
    // It is one of the supported protocols, which are valid header values.
    if let Some(Ok(protocol)) = negotiated.protocol.as_deref().map(HeaderValue::from_str) {
        headers.insert(name, protocol);
    }
    if let Some(key) = request.get(header::SEC_WEBSOCKET_KEY)
        && let Ok(accept) = HeaderValue::from_str(&derive_accept_key(key.as_bytes()))
        && upgrade == "websocket"
    {
        headers.insert(header::SEC_WEBSOCKET_ACCEPT, accept);
    }
    response
}

async fn serve_upgraded(
    accepted: Accepted,
    settings: Settings,
    target: Arc<dyn Target>,
    tasks: TaskTracker,
) {
    let Accepted { request, transport, upgrade } = accepted;
    let kind = request.kind().path();
    let parts = match upgrade.await.map(|up| up.downcast::<TokioIo<TcpStream>>()) {
        Ok(Ok(parts)) => parts,
        Ok(Err(_)) => return,
        Err(error) => return tracing::debug!(%error, kind, "stream upgrade failed"),
    };
    let (io, watch) = watch::watched(parts.io.into_inner(), parts.read_buf);
    let served = async {
        match request {
            Request::Exec(request) => {
                let command = Command::Exec(request);
                command::serve(io, transport, command, &*target, settings.creation).await;
            }
            Request::Attach(request) => {
                let command = Command::Attach(request);
                command::serve(io, transport, command, &*target, settings.creation).await;
            }
            Request::PortForward { sandbox, ports } => {
                let pod = Pod { target: target.clone(), sandbox, tasks };
                forward::serve(io, transport, pod, &ports, settings.creation).await;
            }
        }
    };
    // Dropping `served` is safe: the client's streams end as if it had disconnected.
    tokio::select! {
        () = served => {}
        () = watch.idle(settings.idle) => tracing::debug!(kind, "closed idle stream connection"),
    }
}
