//! The agent's own network connections (for probes and hooks), behind a trait so that tests need no network.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Semaphore;

/// The maximum number of names that are looked up at a time. A lookup occupies a thread until the resolver gives up, long after the
/// timeout of a probe, and the rest of the agent needs threads too: otherwise probes of a few containers could stop it.
const MAX_LOOKUPS: usize = 32;
static LOOKUPS: Semaphore = Semaphore::const_new(MAX_LOOKUPS);

/// A byte stream to a peer.
pub trait Connection: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Connection for T {}

/// Opens connections.
#[async_trait]
pub trait Dialer: Send + Sync {
    /// Connects by TCP. The caller bounds the wait.
    async fn tcp(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>>;
}

/// Connects through the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemDialer;

#[async_trait]
impl Dialer for SystemDialer {
    async fn tcp(&self, to: SocketAddr) -> io::Result<Box<dyn Connection>> {
        Ok(Box::new(tokio::net::TcpStream::connect(to).await?))
    }
}

/// A connection failure, with a kubelet's message.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// The host's name has no address.
    #[error("dial tcp: lookup {host}: no such host")]
    Lookup {
        /// The name.
        host: String,
        /// The resolver's error, if it has one.
        #[source]
        source: Option<io::Error>,
    },
    /// The last of the host's addresses refused the connection.
    #[error("dial tcp {to}: connect: {}", go_error_text(source))]
    Connect {
        /// The address.
        to: SocketAddr,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
}

/// Connects to a host by address or name, trying its addresses in turn. An empty host means this machine.
///
/// # Errors
///
/// If the host has no address, or no address accepts the connection.
pub(crate) async fn dial(
    dialer: &dyn Dialer,
    host: &str,
    port: u16,
) -> Result<Box<dyn Connection>, DialError> {
    let host = if host.is_empty() { "localhost" } else { host };
    let lookup = |source| DialError::Lookup { host: host.to_owned(), source };
    let addresses = match host.parse::<IpAddr>() {
        Ok(address) => vec![SocketAddr::new(address, port)],
        Err(_) => {
            let name = host.to_owned();
            let look_up = move || -> io::Result<Vec<SocketAddr>> {
                Ok((name.as_str(), port).to_socket_addrs()?.collect())
            };
            limited(&LOOKUPS, look_up).await.map_err(|error| lookup(Some(error)))?
        }
    };
    let mut failed = lookup(None);
    for to in addresses {
        match dialer.tcp(to).await {
            Ok(connection) => return Ok(connection),
            Err(source) => failed = DialError::Connect { to, source },
        }
    }
    Err(failed)
}

/// Runs a lookup on another thread once it gets a permit, which it keeps until it ends, even if the caller stops waiting.
async fn limited<T: Send + 'static>(
    lookups: &'static Semaphore,
    look_up: impl FnOnce() -> T + Send + 'static,
) -> T {
    // The semaphore is never closed.
    let permit = lookups.acquire().await;
    let work = move || {
        let found = look_up();
        drop(permit);
        found
    };
    tasks::blocking(work).await
}

/// An error of the operating system as Go formats it: in lower case, without its number.
pub(crate) fn go_error_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut rest = text.chars();
    match rest.next() {
        Some(first) => first.to_lowercase().chain(rest).collect(),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::mpsc;

    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn lookup_keeps_its_permit_after_its_caller_has_given_up() {
        static ONE: Semaphore = Semaphore::const_new(1);
        let (begun, has_begun) = oneshot::channel();
        let (end, ended) = mpsc::channel::<()>();
        let first = tasks::spawn(limited(&ONE, move || {
            let _ = begun.send(());
            ended.recv().is_ok()
        }));
        has_begun.await.unwrap();
        first.abort();
        assert!(first.await.unwrap_err().is_cancelled());
        assert_eq!(ONE.available_permits(), 0);
        end.send(()).unwrap();
        assert_eq!(limited(&ONE, || 2).await, 2);
    }

    #[tokio::test]
    async fn refused_connection_has_kubelet_message() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(dial(&SystemDialer, "localhost", port).await.is_ok());
        drop(listener);
        let error = dial(&SystemDialer, "127.0.0.1", port).await.err().unwrap();
        let expected = format!("dial tcp 127.0.0.1:{port}: connect: connection refused");
        assert_eq!(error.to_string(), expected);
    }
}
