//! Serves gRPC on a socket of the node. Clients in Go send the socket's path as the authority, which h2 rejects: see
//! [`stream::ClientStream`].

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::service::TowerToHyperService;
use stream::ClientStream;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tonic::body::Body;
use tonic::codegen::http::{Request, Response};
use tower::Service;

/// The delay after a failed accept: the process may temporarily be out of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves all clients. Never returns.
pub(crate) async fn serve<S>(listener: UnixListener, service: S)
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let http = http2::Builder::new(TokioExecutor::new());
    let mut clients = JoinSet::new();
    loop {
        // Cancel-safe: a client that was not accepted stays in the backlog.
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = clients.join_next() => continue,
        };
        match accepted {
            Ok((stream, _)) => {
                let service = TowerToHyperService::new(service.clone());
                let stream = TokioIo::new(ClientStream::new(stream));
                clients.spawn(http.serve_connection(stream, service));
            }
            Err(error) => {
                tracing::warn!(%error, "failed to accept connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}
