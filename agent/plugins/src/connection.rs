//! A connection to a plugin that all calls share, as those of a kubelet to a DRA driver do.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/dra/plugin/dra_plugin_manager.go add, HandleConn.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::sync::Mutex;
use tonic::Status;
use tonic::transport::Channel;

use crate::client::open;

/// A connection to a plugin's socket. Clones share it.
#[derive(Clone, Debug)]
pub struct Connection(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: PathBuf,
    channel: Mutex<Option<Channel>>,
    /// Each open stream to the socket has a clone.
    streams: Arc<()>,
}

impl Connection {
    /// A connection that the first call opens.
    #[must_use]
    pub fn new(socket: &Path) -> Self {
        let socket = socket.to_owned();
        Self(Arc::new(Shared { socket, channel: Mutex::default(), streams: Arc::default() }))
    }

    /// The channel for a call. It connects if there was no connection yet, or the plugin has closed it.
    ///
    /// # Errors
    /// `Unavailable`, in the words of Go's gRPC.
    pub async fn channel(&self) -> Result<Channel, Status> {
        // Callers that find no connection wait for the first of them to connect.
        let mut known = self.0.channel.lock().await;
        if let Some(channel) = known.as_ref().filter(|_| self.is_open()) {
            return Ok(channel.clone());
        }
        let channel = open(&self.0.socket, Arc::downgrade(&self.0.streams)).await?;
        *known = Some(channel.clone());
        Ok(channel)
    }

    /// Whether neither side has closed the connection.
    fn is_open(&self) -> bool {
        Arc::strong_count(&self.0.streams) > 1
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::net::UnixListener;
    use tokio::task::yield_now;

    use super::*;

    #[tokio::test]
    async fn calls_share_a_connection_until_the_plugin_closes_it() {
        let root = tempfile::tempdir().unwrap();
        let socket = root.path().join("plugin.sock");
        let connection = Connection::new(&socket);
        connection.channel().await.unwrap_err();
        assert!(!connection.is_open(), "nothing listens");
        let listener = UnixListener::bind(&socket).unwrap();
        let (first, second) = tokio::join!(connection.channel(), connection.channel());
        let (accepted, _) = listener.accept().await.unwrap();
        assert!(first.is_ok() && second.is_ok() && connection.is_open());
        drop(accepted);
        while connection.is_open() {
            yield_now().await;
        }
        connection.channel().await.unwrap();
        let _again = listener.accept().await.unwrap();
        assert!(connection.is_open());
    }
}
