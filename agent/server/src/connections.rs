//! Limits the number of connections, and the time until a client is authenticated.

use std::convert::Infallible;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use compact::Map;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt;
use rustls::pki_types::CertificateDer;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::requests::{Admission, Api, Client};
use super::tls::Tls;

/// The maximum number of connections without an authorized request. A new one closes the oldest: any pod has a token that the API
/// server knows.
const MAX_PENDING: usize = 64;
/// The time limit of an unauthenticated connection, including its handshake.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(30);
/// The maximum number of connections. A new one closes the oldest of the namespace that has the most: through the API server, a
/// user who may read the log of one pod can open any number.
const MAX_CONNECTIONS: usize = 1024;
/// The idle timeout of a connection.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);
/// The keepalive time and interval, and the number of probes, as in Go's servers (net.KeepAliveConfig).
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(15), 9);
/// The limits of a request's head in bytes, and of its number of headers.
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 64;

/// An open connection.
struct OpenConnection {
    admission: Admission,
    task: AbortHandle,
}

impl OpenConnection {
    fn is_pending(&self) -> bool {
        !self.admission.authorized.is_cancelled()
    }
}

/// Accepts and serves clients.
pub(crate) async fn serve(listener: TcpListener, tls: Tls, api: Arc<Api>) {
    let mut clients = JoinSet::new();
    // The oldest comes first.
    let mut open: Vec<OpenConnection> = Vec::new();
    loop {
        let is_full = clients.len() >= MAX_CONNECTIONS;
        tokio::select! {
            accepted = accept(&listener), if !is_full || surplus(&open).is_some() => match accepted {
                Ok(stream) => {
                    open.retain(|one| !one.task.is_finished());
                    if is_full && let Some(index) = surplus(&open) {
                        open.remove(index).task.abort();
                    }
                    let oldest = open.iter().position(OpenConnection::is_pending);
                    if open.iter().filter(|one| one.is_pending()).count() >= MAX_PENDING
                        && let Some(oldest) = oldest
                    {
                        open.remove(oldest).task.abort();
                    }
                    let admission = Admission::default();
                    let connection = connection(stream, tls.acceptor(), Arc::clone(&api), admission.clone());
                    open.push(OpenConnection { admission, task: clients.spawn(tasks::boxed(connection)) });
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

/// The connection to close if there are too many.
fn surplus(open: &[OpenConnection]) -> Option<usize> {
    let namespaces: Vec<Option<String>> =
        open.iter().map(|one| one.admission.namespace()).collect();
    oldest_of_most(&namespaces)
}

/// ◆ The first connection of the namespace that has the most, and more than one, given the namespace of each connection.
fn oldest_of_most(namespaces: &[Option<String>]) -> Option<usize> {
    let mut counts: Map<&str, usize> = Map::new();
    for namespace in namespaces.iter().flatten() {
        *counts.entry(namespace.as_str()).or_default() += 1;
    }
    let most = counts.values().copied().max().filter(|most| *most > 1)?;
    let has_most = |namespace: &str| counts.get(namespace) == Some(&most);
    namespaces.iter().position(|namespace| namespace.as_deref().is_some_and(has_most))
}

/// Accepts a client. Cancel-safe.
async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    // Send without delay: exec streams carry single keystrokes.
    let _ = stream.set_nodelay(true);
    // A client whose machine or network fails sends no FIN or reset. Without probes, a followed log or a stream without output would
    // keep its connection forever.
    let (interval, probes) = KEEPALIVE;
    let _ = sockopt::set_tcp_keepidle(&stream, interval);
    let _ = sockopt::set_tcp_keepintvl(&stream, interval);
    let _ = sockopt::set_tcp_keepcnt(&stream, probes);
    let _ = sockopt::set_socket_keepalive(&stream, true);
    Ok(stream)
}

async fn connection(stream: TcpStream, tls: TlsAcceptor, api: Arc<Api>, admission: Admission) {
    let served = tokio::select! {
        served = requests(stream, tls, api, &admission) => served,
        () = authentication_timeout(&admission.authenticated) => return,
    };
    let Some(client) = served else {
        return;
    };
    let tunnel = client.tunnel.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(tunnel) = tunnel
        && let Err(error) = tunnel.run().await
    {
        tracing::debug!(%error, "failed to upgrade connection");
    }
}

/// Returns when a client is not authenticated in time; never once it is.
async fn authentication_timeout(authenticated: &CancellationToken) {
    tokio::select! {
        () = tokio::time::sleep(AUTHENTICATION_TIMEOUT) => {}
        () = authenticated.cancelled() => std::future::pending().await,
    }
}

/// Serves requests until the connection is closed or upgraded.
async fn requests(
    stream: TcpStream,
    tls: TlsAcceptor,
    api: Arc<Api>,
    admission: &Admission,
) -> Option<Arc<Client>> {
    let stream = match tls.accept(stream).await {
        Ok(stream) => stream,
        Err(error) => {
            tracing::debug!(%error, "TLS handshake failed");
            return None;
        }
    };
    let presented = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let certificates = presented.iter().map(CertificateDer::clone).map(CertificateDer::into_owned);
    let client = Arc::new(Client {
        api,
        certificates: certificates.collect(),
        admission: admission.clone(),
        tunnel: Mutex::default(),
    });
    let answer = service_fn(|request: Request<Incoming>| {
        let client = Arc::clone(&client);
        async move { Ok::<_, Infallible>(client.answer(request).await) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(IDLE_TIMEOUT)
        .max_headers(MAX_HEADERS)
        .max_buf_size(MAX_HEAD_BYTES)
        .serve_connection(TokioIo::new(stream), answer)
        .with_upgrades();
    if let Err(error) = served.await {
        tracing::debug!(%error, "connection failed");
    }
    Some(client)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::none(&["", ""], None)]
    #[case::one_of_each(&["a", "", "b"], None)]
    #[case::most(&["", "b", "a", "a"], Some(2))]
    #[case::many_do_not_close_those_of_others(&["b", "b", "a", "a", "a"], Some(2))]
    #[case::equally_many(&["b", "a", "a", "b"], Some(0))]
    fn oldest_connection_of_namespace_with_most_makes_room(
        #[case] namespaces: &[&str],
        #[case] expected: Option<usize>,
    ) {
        let namespaces = namespaces.iter();
        let namespaces = namespaces.map(|name| (!name.is_empty()).then(|| (*name).to_owned()));
        assert_eq!(oldest_of_most(&namespaces.collect::<Vec<_>>()), expected);
    }

    #[tokio::test]
    async fn connections_are_probed_after_fifteen_idle_seconds() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let accepted = accept(&listener).await.unwrap();
        assert!(!sockopt::socket_keepalive(&client).unwrap(), "not the default of the machine");
        assert!(sockopt::socket_keepalive(&accepted).unwrap());
        let interval = Duration::from_secs(15);
        assert_eq!(sockopt::tcp_keepidle(&accepted).unwrap(), interval);
        assert_eq!(sockopt::tcp_keepintvl(&accepted).unwrap(), interval);
        assert_eq!(sockopt::tcp_keepcnt(&accepted).unwrap(), 9);
        assert!(accepted.nodelay().unwrap());
    }
}
