//! A client of an API server: kubeconfigs, requests, and reflectors (list and watch).
//!
//! It uses the HTTPS client that also pulls images. Objects are JSON values as the server sent them, so that unknown fields are
//! preserved; the few types that the agent needs are decoded where they are used.

mod backoff;
mod counts;
mod error;
mod exec;
mod exec_credential;
mod files;
mod insecure;
mod kubeconfig;
mod kubeconfig_file;
mod rate;
mod reflector;
mod requests;
mod shape;
mod transport;
mod watch;

pub(crate) use backoff::Backoff;
pub use counts::RequestCounts;
pub use error::ApiError;
pub use kubeconfig::{Connection, KubeconfigError};
pub use rate::Rate;
pub(crate) use reflector::Key;
pub use reflector::{Change, Reflector};
pub use requests::{ApiClient, PatchKind};

/// A client of a server of a test, without TLS.
#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
pub(crate) fn plain_client(address: std::net::SocketAddr) -> ApiClient {
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("config");
    let config = format!(
        "current-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: 'http://{address}'}}}}]\n\
         users: [{{name: u, user: {{token: t}}}}]\n"
    );
    std::fs::write(&kubeconfig, config).unwrap();
    ApiClient::new(Connection::load(&kubeconfig).unwrap()).unwrap()
}
