//! Checks whether a runtime listens on an endpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

use super::GrpcCri;
use crate::cri::{Cri, CriError};

/// The maximum length of a unix socket path, without the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;
/// How long [`connect`] waits for the first response.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Options of the connection to a runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectOptions {
    /// The endpoint of the image service (`imageServiceEndpoint`); `None`: the same endpoint.
    pub images: Option<String>,
    /// The deadline of most calls (`runtimeRequestTimeout`).
    pub deadline: Duration,
    /// Whether sandboxes and containers are listed by streams, if the runtime has these calls (gate CRIListStreaming).
    pub streams_lists: bool,
}

impl Default for ConnectOptions {
    /// A kubelet's defaults.
    fn default() -> Self {
        Self { images: None, deadline: Duration::from_secs(120), streams_lists: false }
    }
}

/// Why no runtime could be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The endpoint is not a unix socket address.
    #[error(
        "the runtime endpoint {endpoint:?} is not a unix socket; expected unix:///path/to/runtime.sock"
    )]
    NotUnix {
        /// The given endpoint.
        endpoint: String,
    },
    /// The kernel limits socket paths to 107 bytes.
    #[error(
        "the socket path {path} is {length} bytes long; the limit of unix sockets is 107 bytes"
    )]
    PathTooLong {
        /// The given path.
        path: String,
        /// In bytes.
        length: usize,
    },
    /// No server listens on the socket.
    #[error(
        "no container runtime listens at {path}; start one with `crib runtime --listen unix://{path}`, or set --runtime-endpoint"
    )]
    NotReachable {
        /// The socket.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The user lacks permission for the socket.
    #[error(
        "failed to connect to the runtime at {path}; run crib as the socket's owner, as root or in the socket's group, or choose another runtime with --runtime-endpoint"
    )]
    NotPermitted {
        /// The socket.
        path: String,
        /// The operating system's error.
        #[source]
        source: std::io::Error,
    },
    /// The server is not a container runtime.
    #[error(
        "the server at {path} does not implement the Container Runtime Interface v1; set --runtime-endpoint to the socket of a container runtime"
    )]
    NotCri {
        /// The socket.
        path: String,
        /// Its response to Version.
        #[source]
        source: CriError,
    },
    /// The server does not answer.
    #[error("the server at {path} did not answer within {} s; check the container runtime", waited.as_secs())]
    Silent {
        /// The socket.
        path: String,
        /// How long the agent waited.
        waited: Duration,
    },
}

/// Connects to the runtime at an endpoint such as `unix:///run/crib/crib.sock`, and returns after its response to Version. After a
/// broken connection the next call reconnects.
///
/// # Errors
/// If the endpoint cannot be used; the error names the remedy.
pub async fn connect(endpoint: &str) -> Result<Arc<dyn Cri>, ConnectError> {
    connect_with(endpoint, &ConnectOptions::default()).await
}

/// Like [`connect`], with options.
///
/// # Errors
/// If an endpoint cannot be used; the error names the remedy.
pub async fn connect_with(
    endpoint: &str,
    options: &ConnectOptions,
) -> Result<Arc<dyn Cri>, ConnectError> {
    let path = socket_path(endpoint)?;
    let shown = path.display().to_string();
    probe(&path, &shown).await?;
    let images = options.images.as_deref().map(socket_path).transpose()?;
    let images = images.filter(|images| *images != path);
    if let Some(images) = &images {
        probe(images, &images.display().to_string()).await?;
    }
    let client = GrpcCri::new(path, images, options);
    match tokio::time::timeout(FIRST_ANSWER, client.version()).await {
        Ok(Ok(_)) => Ok(Arc::new(client)),
        Ok(Err(source)) => Err(ConnectError::NotCri { path: shown, source }),
        Err(_) => Err(ConnectError::Silent { path: shown, waited: FIRST_ANSWER }),
    }
}

/// The path in an endpoint: `unix:///a/b`, `unix:/a/b` or `/a/b`.
fn socket_path(endpoint: &str) -> Result<PathBuf, ConnectError> {
    let path = endpoint
        .strip_prefix("unix://")
        .or_else(|| endpoint.strip_prefix("unix:"))
        .unwrap_or(endpoint);
    if !path.starts_with('/') {
        return Err(ConnectError::NotUnix { endpoint: endpoint.to_owned() });
    }
    if path.len() > MAX_SOCKET_PATH {
        return Err(ConnectError::PathTooLong { path: path.to_owned(), length: path.len() });
    }
    Ok(PathBuf::from(path))
}

/// Connects once to get the operating system's error.
async fn probe(path: &Path, shown: &str) -> Result<(), ConnectError> {
    match UnixStream::connect(path).await {
        Ok(_) => Ok(()),
        Err(source) if source.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(ConnectError::NotPermitted { path: shown.to_owned(), source })
        }
        Err(source) => Err(ConnectError::NotReachable { path: shown.to_owned(), source }),
    }
}

#[cfg(test)]
mod tests;
