//! The agent's own network connections (for probes and hooks), behind a trait so that tests need no network.

use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::io::{AsyncRead, AsyncWrite};

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
