//! Serves the connections of a unix socket until it is told to end.

use tokio::net::{UnixListener, UnixStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Serves each connection, which has a number from 1 on, in a task of its own. All of them end with the token.
pub(super) async fn accept<Serving>(
    listener: UnixListener,
    shutdown: CancellationToken,
    serve: impl Fn(UnixStream, u64) -> Serving,
) where
    Serving: Future<Output = ()> + Send + 'static,
{
    let mut connections = JoinSet::new();
    let mut number = 0;
    loop {
        tokio::select! {
            // Dropping the set ends the connections.
            () = shutdown.cancelled() => return,
            // Collects connections that ended, so that the set does not grow.
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    number += 1;
                    connections.spawn(serve(stream, number));
                }
                Err(error) => tracing::warn!(%error, "failed to accept connection"),
            }
        }
    }
}
