//! The HTTPS server of a node, on port 10250 as a kubelet's: the API server asks it for logs, and connects through it to processes
//! and ports of pods.
//!
//! | file | what |
//! |---|---|
//! | `connections` | how many clients there are, and for how long one may be a stranger |
//! | `tls`, `served_certificate` | the server's certificate; whose certificates are an identity (`tls::client_authority`) |
//! | `requests` | one request: who, whether, what |
//! | `authenticate`, `subject` ◆ | who a client is: by certificate or by TokenReview |
//! | `authorize`, `attributes` ◆ | whether it may: by SubjectAccessReview |
//! | `exposed` | what the read-only port has too: health, pods, statistics and metrics |
//! | `health` ◆, `configz` ◆ | checks of the agent; the configuration in use |
//! | `stats` | what the node and its pods use, as the kubelet's Summary API (`summary` ◆): of the runtime, and of the machine (`machine`) |
//! | `metrics` | the same, and what the agent counts, as Prometheus' text |
//! | `expiring` ◆ | how long the API server's answers count |
//! | `route` ◆, `query` ◆ | what a URL asks for |
//! | `logs`, `pods`, `streams`, `commands` | logs, pods, the runtime's URLs of exec, attach and port-forward; commands without a stream, and checkpoints |
//! | `system_logs`, `zpages` ◆ | the machine's logs; what this process is |
//! | `tunnel` | passes an upgraded connection through, or translates a WebSocket for a runtime that speaks only SPDY |
//!
//! It knows the agent by its [`agent::AgentView`] and the runtime by [`agent::cri::Cri`].
//!
//! # Invariants
//! - Nothing is served before the client is known and allowed: one decoded path decides about rights and about what is served.
//! - No name in a URL is used as a file's: log files are where the runtime says. Those of the machine are looked for in its log
//!   directory, and no link leads out of it.
//! - Nothing of a client but its request reaches the runtime's stream server: no token, no cookie.
//!
//! # Tasks
//! One for each connection, in the set of [`Server::serve`], which ends them when it is dropped. [`Exposed::follow`] counts starts of
//! pods.

mod answer;
mod attributes;
mod authenticate;
mod authorize;
mod commands;
mod configz;
mod connections;
mod expiring;
mod exposed;
mod health;
mod logs;
mod metrics;
mod pods;
mod query;
mod requests;
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

pub use answer::Body;
use authenticate::{Authenticator, TokenReviewer};
use authorize::{AccessReviewer, Authorizer};
pub use configz::OtherPorts;
pub use exposed::Exposed;
use requests::Api;
use served_certificate::ServedCertificate;
use tls::{ClientAuthority, Tls};
pub use tls::{KeyPairFiles, TlsError};

/// How long the API server may take to review a token or a right.
const REVIEW_LIMIT: Duration = Duration::from_secs(10);

/// Where and with what the server serves.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Where it listens.
    pub address: SocketAddr,
    /// Whether it listens on a free port if the port of `address` is taken.
    pub any_port: bool,
    /// Its certificate.
    pub certificate: KeyPairFiles,
    /// Whether the files of `certificate` are read again when they change (gate ReloadKubeletServerCertificateFile).
    pub reloads_certificate: bool,
    /// A certificate and its key in one file, which are served instead once they are there.
    pub signed: Option<PathBuf>,
    /// The authorities of client certificates, in PEM; `None`: no certificate is an identity.
    pub client_authority: Option<PathBuf>,
    /// Whether that file is read again when it changes (gate ReloadKubeletClientCAFile).
    pub reloads_client_authority: bool,
    /// Whether client certificates may have the uid of their user (gate AllowParsingUserUIDFromCertAuth).
    pub reads_user_ids: bool,
    /// Whether clients without credentials are admitted, as `system:anonymous`.
    pub anonymous: bool,
    /// How long an answer about a token counts; `None`: the API server is not asked about tokens.
    pub token_reviews: Option<Duration>,
    /// Who decides what a client may do.
    pub authorization: Authorization,
    /// Whether clients need TLS 1.3; otherwise 1.2 will do.
    pub tls_1_3_alone: bool,
    /// The cipher suites of TLS 1.2 by their names; empty: all that there are. Those of TLS 1.3 are not chosen, as in Go.
    pub cipher_suites: Vec<String>,
    /// Which debugging handlers it has.
    pub handlers: Handlers,
}

/// The debugging handlers of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handlers {
    /// Whether there are any: commands, streams, logs (`enableDebuggingHandlers`).
    pub debugging: bool,
    /// The directory of the machine's logs; `None`: they are not shown (`enableSystemLogHandler`).
    pub system_logs: Option<PathBuf>,
    /// Whether containers are checkpointed (gate ContainerCheckpoint).
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

/// Who decides what a client may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authorization {
    /// Nobody: all clients may do everything.
    AlwaysAllow,
    /// The API server.
    Webhook {
        /// How long a permission counts.
        keep_allowed: Duration,
        /// How long a refusal counts.
        keep_refused: Duration,
    },
}

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its certificate or its client authority cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Its address cannot be used.
    #[error("failed to bind {address}")]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// A server that listens, and does not serve yet.
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
    /// If a file or the address cannot be used.
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

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.settings.address
    }

    /// What `/configz` shows of an agent with this configuration, made of this file.
    #[must_use]
    pub fn configz(
        &self,
        config: &agent::Config,
        file: &KubeletConfiguration,
        others: OtherPorts,
    ) -> String {
        configz::configz(config, file, &self.settings, others).to_string()
    }

    /// Serves for ever, as a node at the API server of `client`. Without one no client has a right that is to be reviewed.
    pub async fn serve(self, client: Option<&ApiClient>, exposed: Arc<Exposed>, configz: String) {
        let client = client.map(|client| client.with_limit(REVIEW_LIMIT));
        let tokens = self.settings.token_reviews;
        let authorizer = match self.settings.authorization {
            Authorization::AlwaysAllow => Authorizer::AlwaysAllow,
            Authorization::Webhook { keep_allowed, keep_refused } => {
                Authorizer::Webhook(Box::new(AccessReviewer {
                    client: client.clone(),
                    node: exposed.node().to_owned(),
                    keep_allowed,
                    keep_refused,
                    known: Mutex::default(),
                }))
            }
        };
        let authenticator = Authenticator {
            authority: self.authority,
            tokens: client.zip(tokens).map(|(client, keep)| TokenReviewer::new(client, keep)),
            anonymous: self.settings.anonymous,
            reads_uids: self.settings.reads_user_ids,
        };
        let flags = zpages::flags(std::env::args_os().map(|it| it.to_string_lossy().into_owned()));
        let handlers = self.settings.handlers;
        let api = Api { exposed, configz, authenticator, authorizer, handlers, flags };
        let api = Arc::new(api);
        connections::serve(self.listener, self.tls, api).await;
    }
}
