//! The HTTPS server of a node, on port 10250 like the kubelet's. The API server gets logs from it, and connects through it to
//! processes and ports of pods.
//!
//! | file | what |
//! |---|---|
//! | `connections` | the number of connections, also of those without an authorized request; the time limit of unauthenticated ones |
//! | `tls`, `served_certificate` | the server's certificate; the authorities of client certificates (`tls::client_authority`) |
//! | `requests` | one request: authentication, authorization, and the response |
//! | `authenticate` (`websocket_token` ◆), `subject` ◆ | authentication by certificate or TokenReview |
//! | `authorize`, `attributes` ◆ | authorization by SubjectAccessReview |
//! | `node_api` | the part that the read-only port also serves: health, pods, statistics and metrics |
//! | `health` ◆, `configz` ◆ | checks of the agent; the configuration in use |
//! | `stats` | resource usage of the node and its pods, as the kubelet's Summary API (`summary` ◆); `machine` measures the machine |
//! | `metrics` | the same, and the agent's own metrics, in the Prometheus text format |
//! | `expiring` ◆ | the cache of the API server's reviews |
//! | `route` ◆, `query` ◆ | parses paths and queries |
//! | `logs`, `pods`, `streams`, `commands` | logs, pods, the runtime's URLs of exec, attach and port-forward; commands without a stream, and checkpoints |
//! | `system_logs`, `zpages` ◆ | the machine's logs; status and flags of this process |
//! | `tunnel` | passes an upgraded connection through, or translates a WebSocket for a runtime that speaks only SPDY |
//!
//! It accesses the agent through [`agent::AgentView`], and the runtime through [`agent::cri::Cri`].
//!
//! # Invariants
//! - Nothing is served before the client is authenticated and authorized. Authorization and routing use the same decoded path.
//! - No name in a URL is used as a file name: the runtime provides the paths of log files. The machine's logs are looked up in
//!   its log directory, and no symbolic link leads out of it.
//! - The runtime's stream server gets no credentials of the client: no token, also not as a WebSocket protocol, and no cookie.
//!
//! # Tasks
//! One for each connection, in the set of [`Server::serve`], which ends them when it is dropped. [`NodeApi::measure_starts`] counts
//! starts of pods.

mod attributes;
mod authenticate;
mod authorize;
mod commands;
mod configz;
mod connections;
mod expiring;
mod health;
mod logs;
mod metrics;
mod node_api;
mod pods;
mod query;
mod requests;
mod response;
mod route;
mod served_certificate;
mod stats;
mod streams;
mod subject;
mod system_logs;
mod tls;
mod tunnel;
mod zpages;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use agent::local_node::kubelet_config::KubeletConfiguration;
use kube_node::client::ApiClient;
use tokio::net::TcpListener;

use authenticate::{Authenticator, TokenReviewer};
use authorize::{AccessReviewer, Authorizer};
pub use configz::OtherPorts;
pub use node_api::NodeApi;
use requests::Api;
pub use response::Body;
use served_certificate::ServedCertificate;
use tls::{ClientAuthority, Tls};
pub use tls::{KeyPairFiles, TlsError};

/// The timeout of reviews by the API server.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

/// The settings of the server.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The address to listen on.
    pub address: SocketAddr,
    /// Whether to use a free port if the port of `address` is in use.
    pub any_port: bool,
    /// The server's certificate.
    pub certificate: KeyPairFiles,
    /// Whether the files of `certificate` are read again when they change (gate ReloadKubeletServerCertificateFile).
    pub reloads_certificate: bool,
    /// A certificate and its key in one file, which are served instead once they are there.
    pub signed: Option<PathBuf>,
    /// The authorities of client certificates, in PEM; `None`: no client authenticates by certificate.
    pub client_authority: Option<PathBuf>,
    /// Whether to read that file again when it changes (gate ReloadKubeletClientCAFile).
    pub reloads_client_authority: bool,
    /// Whether client certificates may have the uid of their user (gate AllowParsingUserUIDFromCertAuth).
    pub reads_user_ids: bool,
    /// Whether clients without credentials are admitted, as `system:anonymous`.
    pub anonymous: bool,
    /// The lifetime of a cached token review; `None`: tokens are not reviewed.
    pub token_reviews: Option<Duration>,
    /// The authorization mode.
    pub authorization: Authorization,
    /// Whether to require TLS 1.3; otherwise TLS 1.2 is also accepted.
    pub requires_tls_1_3: bool,
    /// The names of the TLS 1.2 cipher suites; empty: all. The suites of TLS 1.3 are not configurable, as in Go.
    pub cipher_suites: Vec<String>,
    /// The debugging handlers to enable.
    pub handlers: Handlers,
}

/// The debugging handlers of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handlers {
    /// Whether to enable commands, streams and logs (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// The directory of the machine's logs; `None`: they are not served (`enableSystemLogHandler`).
    pub system_logs: Option<PathBuf>,
    /// Whether containers can be checkpointed (gate ContainerCheckpoint).
    pub checkpoints: bool,
    /// Whether `/flagz` shows the flags of the process (gate ComponentFlagz).
    pub flagz: bool,
    /// Whether `/statusz` shows what the process is (gate ComponentStatusz).
    pub statusz: bool,
    /// Whether clients may select one stream of a log (gate PodLogsQuerySplitStreams).
    pub log_streams: bool,
    /// Whether WebSockets are translated that the runtime refuses, and carry SPDY (gate ExtendWebSocketsToKubelet).
    pub translates_websockets: bool,
}

impl Default for Handlers {
    fn default() -> Self {
        Self {
            debugging: true,
            system_logs: Some(PathBuf::from("/var/log")),
            checkpoints: true,
            flagz: true,
            statusz: true,
            log_streams: true,
            translates_websockets: true,
        }
    }
}

/// The authorization mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Allows all clients everything.
    AlwaysAllow,
    /// Delegates to the API server.
    Webhook {
        /// The lifetime of a cached permission.
        allowed_ttl: Duration,
        /// The lifetime of a cached denial.
        denied_ttl: Duration,
    },
}

/// The server could not be started.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// The certificate or the client authority cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be used.
    #[error("failed to bind {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A server that is bound, but does not serve yet.
pub struct Server {
    listener: TcpListener,
    tls: Tls,
    authority: Option<Arc<ClientAuthority>>,
    settings: Settings,
}

impl Server {
    /// Binds the server.
    ///
    /// # Errors
    /// If a file cannot be used, or the address cannot be bound.
    pub async fn bind(mut settings: Settings) -> Result<Self, ServerError> {
        let reloads = settings.reloads_client_authority;
        let authority = settings.client_authority.clone();
        let authority = authority.map(|file| ClientAuthority::new(file, reloads)).transpose()?;
        let authority = authority.map(Arc::new);
        let (files, signed) = (settings.certificate.clone(), settings.signed.clone());
        let served = ServedCertificate::new(files, signed, settings.reloads_certificate)?;
        let tls = Tls::new(Arc::new(served), authority.clone(), &settings);
        let tls = tls.map_err(|source| {
            let path = settings.certificate.certificate.clone();
            TlsError::Use { path, source }
        })?;
        let address = settings.address;
        let mut listener = TcpListener::bind(address).await;
        if settings.any_port
            && listener.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AddrInUse)
        {
            listener = TcpListener::bind((address.ip(), 0)).await;
        }
        let bound = listener.and_then(|listener| Ok((listener.local_addr()?, listener)));
        let (at, listener) = bound.map_err(|source| ServerError::Bind { address, source })?;
        settings.address.set_port(at.port());
        Ok(Self { listener, tls, authority, settings })
    }

    /// The address that it listens on.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.settings.address
    }

    /// The response of `/configz` for an agent with this configuration, which results from `file`.
    #[must_use]
    pub fn configz(
        &self,
        config: &agent::Config,
        file: &KubeletConfiguration,
        others: OtherPorts,
    ) -> String {
        configz::configz(config, file, &self.settings, others).to_string()
    }

    /// Serves clients. `client` is the node's API client, for reviews. Without it every review fails.
    pub async fn serve(self, client: Option<&ApiClient>, node_api: Arc<NodeApi>, configz: String) {
        let client = client.map(|client| client.with_timeout(REVIEW_LIMIT));
        let tokens = self.settings.token_reviews;
        let authorizer = match self.settings.authorization {
            Authorization::AlwaysAllow => Authorizer::AlwaysAllow,
            Authorization::Webhook { allowed_ttl, denied_ttl } => {
                Authorizer::Webhook(Box::new(AccessReviewer {
                    client: client.clone(),
                    node: node_api.node().to_owned(),
                    allowed_ttl,
                    denied_ttl,
                    cache: Mutex::default(),
                }))
            }
        };
        let authenticator = Authenticator {
            authority: self.authority,
            tokens: client.zip(tokens).map(|(client, ttl)| TokenReviewer::new(client, ttl)),
            anonymous: self.settings.anonymous,
            reads_uids: self.settings.reads_user_ids,
        };
        let flags = zpages::flags(std::env::args_os().map(|it| it.to_string_lossy().into_owned()));
        let handlers = self.settings.handlers;
        let api = Api { node_api, configz, authenticator, authorizer, handlers, flags };
        let api = Arc::new(api);
        connections::serve(self.listener, self.tls, api).await;
    }
}
