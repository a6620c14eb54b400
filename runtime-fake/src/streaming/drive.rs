//! A connection that is driven while its streams are served.

use std::{fmt::Display, time::Duration};

/// How long a client may take to close a connection over which everything was said.
const LINGER: Duration = Duration::from_secs(5);

/// Talks over a connection while it is driven. When everything was said, what is still to be sent is; when the client
/// goes away first, the talk is dropped.
pub(super) async fn drive<E: Display>(
    driven: impl Future<Output = Result<(), E>>,
    talk: impl Future<Output = ()>,
) {
    tokio::pin!(driven);
    // Neither is asked again once it has ended.
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
