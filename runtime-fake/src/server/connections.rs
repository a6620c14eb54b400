//! Accepts clients on the socket, checks their credentials, and serves HTTP/2.

use std::{convert::Infallible, os::unix::fs::MetadataExt as _, path::PathBuf, time::Duration};

use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::{
    rt::{TokioExecutor, TokioIo, TokioTimer},
    server::graceful::GracefulShutdown,
    service::TowerToHyperService,
};
use stream::ClientStream;
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tower::Service;

/// The delay after a failed accept: the process may be out of descriptors for a while.
const PAUSE: Duration = Duration::from_millis(50);

/// Serves every admitted client until `shutdown`; running calls are answered before this returns.
pub(super) async fn serve<S>(
    listener: UnixListener,
    admission: Admission,
    service: S,
    shutdown: CancellationToken,
) where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send + 'static,
{
    let connections = GracefulShutdown::new();
    let mut http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new());
    loop {
        // Cancel-safe: a client that was not accepted stays in the queue.
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "failed to accept connection");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        if !admitted(&stream, &admission) {
            continue;
        }
        let connection = http.serve_connection(
            TokioIo::new(ClientStream::new(stream)),
            TowerToHyperService::new(service.clone()),
        );
        let connection = connections.watch(connection);
        tasks::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "client connection failed");
            }
        });
    }
    drop(listener);
    connections.shutdown().await;
}

/// The peers that may use the socket. A permissive socket mode does not admit further users, unless `group` is set.
#[derive(Debug, Clone)]
pub(super) struct Admission {
    /// The user that the daemon runs as.
    pub(super) own: u32,
    /// The socket's mode admits a group; then the kernel alone decides, by that mode.
    pub(super) group: bool,
    /// The overflow user. All users who are not mapped into the daemon's user namespace appear as this user, including the host's
    /// root; `None` in the initial user namespace. With mode 0600, only the owner and the host's root can connect; with any other
    /// mode, the overflow user is rejected.
    pub(super) unmapped: Option<u32>,
    /// The socket's path; `None` if the caller of the server does not provide it.
    pub(super) socket: Option<PathBuf>,
}

impl Admission {
    /// Whether a peer is served; `is_private` returns whether the socket's mode admits its owner alone.
    fn admits(&self, uid: u32, is_private: impl Fn() -> bool) -> bool {
        self.group || uid == self.own || uid == 0 || (Some(uid) == self.unmapped && is_private())
    }

    fn is_private(&self) -> bool {
        let Some(socket) = &self.socket else {
            return true;
        };
        socket.metadata().is_ok_and(|metadata| metadata.mode() & 0o077 == 0)
    }
}

fn admitted(stream: &UnixStream, admission: &Admission) -> bool {
    let peer = match stream.peer_cred() {
        Ok(peer) => peer,
        Err(error) => {
            tracing::warn!(%error, "rejected peer: failed to read its credentials");
            return false;
        }
    };
    let admitted = admission.admits(peer.uid(), || admission.is_private());
    if !admitted {
        let (uid, pid) = (peer.uid(), peer.pid());
        tracing::warn!(uid, ?pid, "rejected peer");
    }
    admitted
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::the_owner(1000, false, None, 1000, [true, true])]
    #[case::root(1000, false, None, 0, [true, true])]
    #[case::somebody_else(1000, false, None, 1001, [false, false])]
    #[case::somebody_of_the_group(1000, true, None, 1001, [true, true])]
    #[case::nobody_outside_a_user_namespace(0, false, None, 65534, [false, false])]
    #[case::the_hosts_root_seen_from_inside(0, false, Some(65534), 65534, [true, false])]
    #[case::a_subordinate_user(0, false, Some(65534), 7, [false, false])]
    fn admission_checks_peer_uid(
        #[case] own: u32,
        #[case] group: bool,
        #[case] unmapped: Option<u32>,
        #[case] uid: u32,
        #[case] by_a_private_socket_and_another: [bool; 2],
    ) {
        let admission = Admission { own, group, unmapped, socket: None };
        let admits = [true, false].map(|is_private| admission.admits(uid, || is_private));
        assert_eq!(admits, by_a_private_socket_and_another);
    }
}
