//! The stream server: serves clients that redeem a URL of Exec, Attach or PortForward.
//!
//! ```text
//!  gRPC ─▶ tokens ─▶ URL ─▶ client ─▶ http ─▶ negotiate ─┬ command ─┐
//!                                                        └ forward ─┴▶ Target (processes, sockets)
//! ```
//!
//! The server listens on its own address, which any client can reach: without a valid token a client only gets
//! 404. The protocols are in the package `stream`.

mod command;
mod forward;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod http;
mod negotiate;
mod resize;
mod status;
pub(crate) mod target;
#[cfg(test)]
mod tests;
pub(crate) mod token;
mod watch;

use std::fmt::Display;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::config::Streams as Settings;
use crate::id::SandboxId;

use target::{AttachRequest, ExecRequest, Target};
use token::{Kind, Tokens, UrlError};

/// The request of a token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    Exec(ExecRequest),
    Attach(AttachRequest),
    PortForward {
        sandbox: SandboxId,
        /// The ports for a WebSocket client; SPDY clients name the ports in their streams.
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

/// Issues URLs. Clones share the tokens.
#[derive(Clone)]
pub(crate) struct Streams {
    tokens: Arc<Mutex<Tokens<Request>>>,
    address: Result<SocketAddr, (SocketAddr, Arc<io::Error>)>,
}

impl Streams {
    /// A URL for one use within a minute.
    pub(crate) fn url(&self, request: Request) -> Result<String, UrlError> {
        let address = self.address.as_ref().map_err(|(address, source)| {
            UrlError::NotListening { address: *address, source: source.clone() }
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

/// The stream server, before it serves.
pub(crate) struct Server {
    listener: Option<TcpListener>,
    streams: Streams,
}

impl Server {
    /// Binds the server. If the default address cannot be bound, the server issues no URLs and reports the cause to
    /// every caller.
    ///
    /// # Errors
    /// When a configured address cannot be bound.
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

    /// Serves until it is dropped, which ends every stream. `tasks` tracks all of them.
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

/// Timeout for a client to close the connection after everything was sent.
const LINGER: Duration = Duration::from_secs(5);

/// Runs `talk` while the connection is driven. After `talk` has completed, the remaining data is sent; if the client disconnects
/// first, `talk` is dropped.
async fn drive<E: Display>(
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
