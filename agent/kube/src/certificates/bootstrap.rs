//! The first certificate of a node: asked for with the credentials of a bootstrap kubeconfig, which have little rights and may be
//! those of many nodes.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/certificate/bootstrap/bootstrap.go LoadClientCert.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::KeyPair;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::request::{RequestError, Wanted, request};
use super::store::{StoreError, client_store, write_private};
use super::validity::Validity;
use crate::chance::jittered;
use crate::client::{ApiClient, Connection, KubeconfigError};

/// How long the server may take to answer at all, how long one answer, and how often it is asked.
const SERVER: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_secs(2);
const JITTER: f64 = 0.2;
/// How long a request may take to be approved and signed.
const SIGNED: Duration = Duration::from_secs(3600);

/// Why a node has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The bootstrap kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// Its client cannot.
    #[error("failed to use the client certificate of a kubeconfig")]
    Client(#[from] fetch::TlsError),
    /// There is no certificate.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It cannot be kept.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key of an earlier request cannot be read.
    #[error("failed to use the key of an earlier request in {}: remove it", path.display())]
    Key {
        /// The directory.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
}

/// Whether there is a kubeconfig whose client certificates are good: only then is none asked for.
#[must_use]
pub fn is_valid(kubeconfig: &Path, now: Timestamp) -> bool {
    if !kubeconfig.exists() {
        return false;
    }
    let problem = |problem: &dyn std::fmt::Display| {
        tracing::warn!(kubeconfig = %kubeconfig.display(), problem = %problem, "the kubeconfig cannot be used; asking for another client certificate");
        false
    };
    let identity = match Connection::load(kubeconfig) {
        Ok(connection) => connection.identity,
        Err(error) => return problem(&error),
    };
    let Some(identity) = identity else {
        return problem(&"it has no client certificate");
    };
    for certificate in &identity.certificates {
        match Validity::of(certificate) {
            Some(validity) if validity.has_ended(now) => {
                return problem(&format!(
                    "a client certificate has expired at {}",
                    validity.not_after
                ));
            }
            Some(_) => {}
            None => return problem(&"a client certificate cannot be read"),
        }
    }
    true
}

/// A node that has no certificate yet, and asks for one with the credentials of the kubeconfig `from`. It keeps the certificate in
/// `directory`, and writes a kubeconfig that uses it to `kubeconfig`.
#[derive(Clone, Debug)]
pub struct Bootstrap {
    /// The bootstrap kubeconfig.
    pub from: PathBuf,
    /// The kubeconfig to write.
    pub kubeconfig: PathBuf,
    /// The directory of the node's certificates.
    pub directory: PathBuf,
    /// The node's name.
    pub node: String,
}

impl Bootstrap {
    /// A client for the node. Its requests wait for the certificate.
    ///
    /// # Errors
    /// If the bootstrap kubeconfig cannot be used.
    pub fn client(&self) -> Result<ApiClient, BootstrapError> {
        Ok(ApiClient::unknown(Connection::load(&self.from)?)?)
    }

    /// Asks for the certificate, and gives it to the node's client.
    ///
    /// # Errors
    /// If there is no certificate.
    pub(crate) async fn run(&self, of_node: &ApiClient) -> Result<(), BootstrapError> {
        let connection = Connection::load(&self.from)?;
        let cluster = connection.cluster.clone();
        let client = ApiClient::new(connection)?;
        let store = client_store(&self.directory);
        let key = match store.pending_key()? {
            Some(key) => key,
            None => {
                let key = KeyPair::generate().map_err(RequestError::Make)?.serialize_pem();
                store.keep_key(&key)?;
                key
            }
        };
        let pair = KeyPair::from_pem(&key)
            .map_err(|source| BootstrapError::Key { path: self.directory.clone(), source })?;
        wait_for_server(&client).await;
        let wanted = Wanted::client(&self.node);
        let name = wanted.digested_name(&pair);
        let certificate = request(&client, &wanted, &pair, Some(&name), SIGNED).await?;
        store.put(&certificate, &key, Timestamp::now())?;
        store.forget_key();
        write_private(&self.kubeconfig, &written(&cluster, &store.current()))?;
        of_node.become_known(Connection::load(&self.kubeconfig)?)?;
        tracing::info!(kubeconfig = %self.kubeconfig.display(), "the node has its own client certificate");
        Ok(())
    }
}

/// ◆ A kubeconfig with the certificate and key in a file.
fn written(cluster: &Value, pem: &Path) -> String {
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "default-cluster", "cluster": cluster}],
        "users": [{"name": "default-auth", "user": {"client-certificate": pem, "client-key": pem}}],
        "contexts": [{
            "name": "default-context",
            "context": {"cluster": "default-cluster", "user": "default-auth", "namespace": "default"},
        }],
        "current-context": "default-context",
    });
    format!("{config:#}\n")
}

/// Waits until the server answers, for a minute at most: a request fails later if it does not.
async fn wait_for_server(client: &ApiClient) {
    let client = client.with_limit(ANSWER);
    let until = Instant::now() + SERVER;
    while Instant::now() < until {
        match client.is_healthy().await {
            Ok(()) => return,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::info!(server = client.server(), error, "waiting for the API server");
            }
        }
        sleep(jittered(AGAIN, JITTER)).await;
    }
}
