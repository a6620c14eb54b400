//! Connections: how many there may be, and for how long one may not say who it is.

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

/// How many connections there may be whose clients have not shown who they are. The oldest makes room for a new one.
const MOST_STRANGERS: usize = 64;
/// How long such a connection may take, with its handshake.
const STRANGER_LIMIT: Duration = Duration::from_secs(30);
/// How many connections there may be.
const MOST_CONNECTIONS: usize = 1024;
/// How long a connection may be without a request.
const IDLE: Duration = Duration::from_secs(90);
/// How large the head of a request may be, in bytes, and how many headers it may have.
const LARGEST_HEAD: usize = 64 << 10;
const MOST_HEADERS: usize = 64;

/// A connection whose client has not shown who it is, unless it has since.
struct Stranger {
    known: CancellationToken,
    task: AbortHandle,
}

/// Serves clients for ever.
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

/// Returns when a client has not shown who it is for too long; never once it has.
async fn too_long(known: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(STRANGER_LIMIT) => {}
        () = known.cancelled() => std::future::pending().await,
    }
}

/// Answers requests until the client has gone, or the connection is to be something else.
async fn requests(
    stream: TcpStream,
    tls: TlsAcceptor,
    api: Arc<Api>,
    known: &CancellationToken,
) -> Option<Arc<Client>> {
    // Keystrokes are small, and are waited for.
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
