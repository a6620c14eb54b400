//! Finds out whether a runtime listens at an endpoint.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;

use super::GrpcCri;
use crate::cri::{ConnectError, Cri};

/// The maximum length of a unix socket path, without the terminating NUL.
const MAX_SOCKET_PATH: usize = 107;
/// How long [`connect`] waits for the first answer.
const FIRST_ANSWER: Duration = Duration::from_secs(10);

/// Connects to the runtime at an endpoint such as `unix:///run/crib/crib.sock`, and returns once it has answered Version.
/// After a broken connection the next call reconnects.
///
/// # Errors
/// Why the endpoint cannot be used, and what to do.
pub async fn connect(endpoint: &str) -> Result<Arc<dyn Cri>, ConnectError> {
    let path = socket_path(endpoint)?;
    let shown = path.display().to_string();
    probe(&path, &shown).await?;
    let client = GrpcCri::new(path);
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
