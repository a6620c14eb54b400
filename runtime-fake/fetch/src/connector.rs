//! Connections to servers: with TLS or without, directly or through a proxy.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::Uri;
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{Connected, Connection, HttpConnector};
use hyper_util::client::proxy::matcher::{Intercept, Matcher};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower::Service;

/// The TCP keepalive time and interval, and the number of probes.
const KEEPALIVE: (Duration, u32) = (Duration::from_secs(15), 3);
/// How long the kernel waits for an acknowledgement of sent data.
const UNACKNOWLEDGED: Duration = Duration::from_secs(30);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A connection was not made in time.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
pub(crate) struct ConnectTimeout(Duration);

/// Connects to servers.
#[derive(Clone)]
pub(crate) struct Connector {
    tcp: HttpConnector,
    tls: TlsConnector,
    /// The name that certificates must have, instead of the host's.
    server_name: Option<ServerName<'static>>,
    proxies: Arc<Matcher>,
    timeout: Option<Duration>,
}

impl fmt::Debug for Connector {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Connector").finish_non_exhaustive()
    }
}

impl Connector {
    pub(crate) fn new(
        tls: ClientConfig,
        server_name: Option<ServerName<'static>>,
        proxies: Arc<Matcher>,
        timeout: Option<Duration>,
    ) -> Self {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        let (interval, tries) = KEEPALIVE;
        tcp.set_keepalive(Some(interval));
        tcp.set_keepalive_interval(Some(interval));
        tcp.set_keepalive_retries(Some(tries));
        tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED));
        Self { tcp, tls: TlsConnector::from(Arc::new(tls)), server_name, proxies, timeout }
    }

    async fn connect(self, server: Uri) -> Result<Stream, BoxError> {
        match self.proxies.intercept(&server) {
            None => self.direct(server).await,
            Some(proxy) if is_https(&server) => self.through(proxy, server).await,
            Some(proxy) => Ok(Stream { is_proxy: true, ..self.direct(proxy.uri().clone()).await? }),
        }
    }

    async fn direct(mut self, server: Uri) -> Result<Stream, BoxError> {
        let tcp = self.tcp.call(server.clone()).await?.into_inner();
        match server.scheme_str() {
            Some("http") => Ok(Stream::new(tcp)),
            Some("https") => self.encrypted(&server, tcp).await,
            scheme => Err(format!("proxies of scheme {scheme:?} are not supported").into()),
        }
    }

    /// Connects through a tunnel, in which the server's TLS is verified as without a proxy.
    async fn through(self, proxy: Intercept, server: Uri) -> Result<Stream, BoxError> {
        let to_proxy = self.clone();
        let connect = tower::service_fn(move |proxy| to_proxy.clone().direct(proxy));
        let mut tunnel = Tunnel::new(proxy.uri().clone(), connect);
        if let Some(credentials) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(credentials.clone());
        }
        let through = tunnel.call(server.clone()).await?;
        self.encrypted(&server, through.io.into_inner()).await
    }

    async fn encrypted(
        &self,
        server: &Uri,
        plain: impl Duplex + 'static,
    ) -> Result<Stream, BoxError> {
        let host = server.host().unwrap_or_default();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => ServerName::try_from(host.to_owned())?,
        };
        Ok(Stream::new(self.tls.connect(name, plain).await?))
    }
}

fn is_https(uri: &Uri) -> bool {
    uri.scheme_str() == Some("https")
}

impl Service<Uri> for Connector {
    type Response = Stream;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Stream, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let (timeout, connecting) = (self.timeout, self.clone().connect(server));
        Box::pin(async move {
            let Some(timeout) = timeout else {
                return connecting.await;
            };
            let connected = tokio::time::timeout(timeout, connecting).await;
            connected.unwrap_or_else(|_| Err(Box::new(ConnectTimeout(timeout))))
        })
    }
}

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection.
pub(crate) struct Stream {
    io: TokioIo<Box<dyn Duplex>>,
    /// The peer is a proxy that reads the requests, so their first line has the whole URL.
    is_proxy: bool,
}

impl Stream {
    fn new(io: impl Duplex + 'static) -> Self {
        Self { io: TokioIo::new(Box::new(io)), is_proxy: false }
    }
}

impl Connection for Stream {
    fn connected(&self) -> Connected {
        Connected::new().proxy(self.is_proxy)
    }
}

impl Read for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }
}
