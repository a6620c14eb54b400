//! Exec, Attach and PortForward: what a client that comes with a URL of theirs is given.
//!
//! ```text
//!  gRPC ─▶ tokens ─▶ URL ─▶ client ─▶ http ─▶ negotiate ─┬ command ─┐
//!                                                        └ forward ─┴▶ Target (processes, sockets)
//! ```
//!
//! The server listens on an address of its own, open to every client: only one with a token gets more than an
//! answer that there is nothing. What it speaks is the package `stream`.

mod command;
mod drive;
mod forward;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod http;
mod negotiate;
mod pending;
mod resize;
mod status;
pub(crate) mod target;
#[cfg(test)]
mod tests;
mod token;
pub(crate) mod url_error;
mod watch;

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::{config::Streams as Settings, id::SandboxId};
use target::{AttachRequest, ExecRequest, Target};
use token::{Kind, Tokens};
use url_error::UrlError;

/// What a token stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Exec(ExecRequest),
    Attach(AttachRequest),
    PortForward {
        sandbox: SandboxId,
        /// Those that a WebSocket client may use; SPDY clients name theirs themselves.
        ports: Vec<u16>,
    },
}

impl Request {
    fn kind(&self) -> Kind {
        match self {
            Self::Exec(_) => Kind::Exec,
            Self::Attach(_) => Kind::Attach,
            Self::PortForward { .. } => Kind::PortForward,
        }
    }
}

/// Where URLs come from. Clones share the tokens.
#[derive(Clone)]
pub(crate) struct Streams {
    tokens: Arc<Mutex<Tokens<Request>>>,
    address: Result<SocketAddr, (SocketAddr, Arc<io::Error>)>,
}

impl Streams {
    /// A URL that is good for one client, once, for a minute.
    pub(crate) fn url(&self, request: Request) -> Result<String, UrlError> {
        let address =
            self.address
                .as_ref()
                .map_err(|(address, source)| UrlError::NotListening {
                    address: *address,
                    source: source.clone(),
                })?;
        let kind = request.kind();
        let token = crate::id::random_hex();
        let url = format!("http://{address}/{}/{token}", kind.path());
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.add(token, kind, request, Instant::now())?;
        Ok(url)
    }

    fn redeem(&self, path: &str) -> Option<Request> {
        let mut tokens = self.tokens.lock().unwrap_or_else(PoisonError::into_inner);
        tokens.redeem(path, Instant::now())
    }
}

/// The server before it serves.
pub(crate) struct Server {
    listener: Option<TcpListener>,
    streams: Streams,
}

impl Server {
    /// Listens. If it cannot bind its default address, it gives no URLs and reports why to every caller.
    ///
    /// # Errors
    /// When it was told where to listen, and cannot.
    pub(crate) async fn listen(address: SocketAddr) -> Result<Self, UrlError> {
        let bound = async {
            let listener = TcpListener::bind(address).await?;
            Ok((listener.local_addr()?, listener))
        };
        let (listener, address) = match bound.await {
            Ok((local, listener)) => (Some(listener), Ok(local)),
            Err(error) => {
                let source: Arc<io::Error> = Arc::new(error);
                if address != Settings::default().address {
                    return Err(UrlError::NotListening { address, source });
                }
                let error = source;
                tracing::warn!(%address, %error, "failed to bind stream server");
                (None, Err((address, error)))
            }
        };
        let tokens = Arc::default();
        let streams = Streams { tokens, address };
        Ok(Self { listener, streams })
    }

    pub(crate) fn streams(&self) -> Streams {
        self.streams.clone()
    }

    /// Serves for ever; dropped, it ends every stream. Waiting for `tasks` then waits for all of them.
    pub(crate) async fn serve(
        self,
        settings: Settings,
        target: Arc<dyn Target>,
        tasks: TaskTracker,
    ) {
        match self.listener {
            Some(listener) => http::serve(listener, self.streams, settings, target, tasks).await,
            None => std::future::pending().await,
        }
    }
}
