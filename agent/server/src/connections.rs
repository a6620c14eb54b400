//! Limits the number of connections, and the time until a client is authenticated.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::requests::{Api, Client};
use super::tls::Tls;

/// The maximum number of unauthenticated connections. A new one closes the oldest.
const MOST_STRANGERS: usize = 64;
/// The time limit of an unauthenticated connection, including its handshake.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of connections.
const MOST_CONNECTIONS: usize = 1024;
/// The idle timeout of a connection.
const IDLE: Duration = Duration::from_secs(90);
/// The limits of a request's head in bytes, and of its number of headers.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 64;

/// A connection that was unauthenticated when it was recorded.
struct Stranger {
    known: CancellationToken,
    task: AbortHandle,
}

/// Accepts and serves clients.
pub(crate) async fn serve(listener: TcpListener, tls: Tls, api: Arc<Api>) {
    let mut clients = JoinSet::new();
    let mut strangers: VecDeque<Stranger> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept(), if clients.len() < MOST_CONNECTIONS => match accepted {
                Ok((stream, _)) => {
                    strangers.retain(|one| !one.known.is_cancelled() && !one.task.is_finished());
                    if strangers.len() >= MOST_STRANGERS && let Some(oldest) = strangers.pop_front() {
                        oldest.task.abort();
                    }
                    let known = CancellationToken::new();
                    let connection = connection(stream, tls.acceptor(), Arc::clone(&api), known.clone());
                    strangers.push_back(Stranger { known, task: clients.spawn(tasks::boxed(connection)) });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, api: Arc<Api>, known: CancellationToken) {
    let served = tokio::select! {
        served = requests(stream, tls, api, &known) => served,
        () = too_long(&known) => return,
    };
    let Some(client) = served else {
        return;
    };
    let tunnel = client.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(tunnel) = tunnel
        && let Err(error) = tunnel.run().await
    {
        tracing::debug!(%error, "failed to upgrade a connection");
    }
}

/// Returns when a client is not authenticated in time; never once it is.
async fn too_long(known: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(STRANGER_LIMIT) => {}
        () = known.cancelled() => std::future::pending().await,
    }
}

/// Serves requests until the connection is closed or upgraded.
async fn requests(
    stream: TcpStream,
    tls: TlsAcceptor,
    api: Arc<Api>,
    known: &CancellationToken,
) -> Option<Arc<Client>> {
    // Send without delay: exec streams carry single keystrokes.
    let _ = stream.set_nodelay(true);
    let stream = match tls.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "failed to shake hands with a client");
            return None;
        }
    };
    let shown = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = shown.iter().map(CertificateDer::clone).map(CertificateDer::into_owned);
    let client = Arc::new(Client {
        api,
        certificates: certificates.collect(),
        known: known.clone(),
        tunnel: Mutex::default(),
    });
    let answer = service_fn(|request: Request<Incoming>| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE)
        .max_headers(MOST_HEADERS)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(%error, "a client's connection ended");
    }
    Some(client)
}
