//! Drives a connection while its streams are served.

use std::{fmt::Display, time::Duration};

/// Timeout for a client to close the connection after everything was sent.
const LINGER: Duration = Duration::from_secs(5);

/// Runs `talk` while the connection is driven. When `talk` is done, the remaining data is sent; if the client
/// disconnects first, `talk` is dropped.
pub(super) async fn drive<E: Display>(
    driven: impl Future<Output = Result<(), E>>,
    talk: impl Future<Output = ()>,
) {
    tokio::pin!(driven);
    // Not polled again after it has ended.
    tokio::select! {
        ended = &mut driven => {
            if let Err(error) = ended {
                tracing::debug!(%error, "stream client disconnected early");
            }
            return;
        }
        () = talk => {}
    }
    let _ = tokio::time::timeout(LINGER, driven).await;
}
