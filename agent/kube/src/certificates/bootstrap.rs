//! Requests the node's first client certificate with the credentials of a bootstrap kubeconfig, which have few rights and which
//! several nodes may share.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/certificate/bootstrap/bootstrap.go LoadClientCert.

use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use rcgen::KeyPair;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::request::{CertificateRequest, RequestError, request};
use super::rotation::read;
use super::store::{CertificateStore, StoreError, client_store, write_private};
use super::validity::Validity;
use crate::chance::jittered;
use crate::client::{ApiClient, Connection, KubeconfigError};

/// Limits of the wait for the server: total time, time per request, and interval between requests.
const SERVER_TIMEOUT: Duration = Duration::from_secs(60);
const PROBE_TIMEOUT: Duration = Duration::from_secs(1);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);
const JITTER: f64 = 0.2;
/// The time limit for approval and signing of the request.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(3600);

/// The node could not get a certificate.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The bootstrap kubeconfig cannot be used.
    #[error(transparent)]
    Kubeconfig(#[from] KubeconfigError),
    /// The bootstrap kubeconfig's client certificate cannot be used.
    #[error("failed to use the client certificate of a kubeconfig")]
    Client(#[from] fetch::TlsError),
    /// The request failed.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The certificate files cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The key of an earlier request cannot be read.
    #[error("failed to use the key of an earlier request in {}: remove it", path.display())]
    Key {
        /// The directory of the certificate files.
        path: PathBuf,
        /// The cause.
        #[source]
        source: rcgen::Error,
    },
}

/// Whether the kubeconfig exists and its client certificates are valid. Only otherwise is a new certificate requested.
#[must_use]
pub fn is_valid(kubeconfig: &Path, now: Timestamp) -> bool {
    if !kubeconfig.exists() {
        return false;
    }
    let problem = |problem: &dyn std::fmt::Display| {
        tracing::warn!(kubeconfig = %kubeconfig.display(), problem = %problem, "failed to use the kubeconfig; requesting a new client certificate");
        false
    };
    let identity = match Connection::load(kubeconfig) {
        Ok(connection) => connection.identity,
        Err(error) => return problem(&error),
    };
    let Some(identity) = identity else {
        return problem(&"no client certificate");
    };
    for certificate in &identity.certificates {
        match Validity::of(certificate) {
            Some(validity) if validity.has_expired(now) => {
                return problem(&format!("client certificate expired at {}", validity.not_after));
            }
            Some(_) => {}
            None => return problem(&"failed to parse a client certificate"),
        }
    }
    true
}

/// A node that has no certificate yet. It requests one with the credentials of the kubeconfig `from`, stores it in `directory`,
/// and writes a kubeconfig that uses it to `kubeconfig`.
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
    /// Creates a client for the node. Its requests wait for the certificate.
    ///
    /// # Errors
    /// If the bootstrap kubeconfig cannot be used.
    pub fn client(&self) -> Result<ApiClient, BootstrapError> {
        Ok(ApiClient::without_credentials(Connection::load(&self.from)?)?)
    }

    /// Requests the certificate, and sets it as the identity of the node's client.
    ///
    /// # Errors
    /// If the node cannot get a certificate.
    pub(crate) async fn run(&self, node_client: &ApiClient) -> Result<(), BootstrapError> {
        let connection = Connection::load(&self.from)?;
        let cluster = connection.cluster.clone();
        let client = ApiClient::new(connection)?;
        let store = client_store(&self.directory);
        let key = self.key(&store)?;
        wait_for_server(&client).await;
        let template = CertificateRequest::client(&self.node);
        let name = template.name_from_digest(&key);
        let certificate = request(&client, &template, &key, Some(&name), SIGNING_TIMEOUT).await?;
        store.put(&certificate, &key.serialize_pem(), Timestamp::now())?;
        store.remove_pending_key();
        write_private(&self.kubeconfig, &kubeconfig_text(&cluster, &store.current()))?;
        node_client.set_credentials(Connection::load(&self.kubeconfig)?)?;
        tracing::info!(kubeconfig = %self.kubeconfig.display(), "received the client certificate of the node");
        Ok(())
    }

    /// The key for the request: that of the last certificate, which may have expired, or of an earlier request, or a new one.
    fn key(&self, store: &CertificateStore) -> Result<KeyPair, BootstrapError> {
        let last = read(store).and_then(|last| KeyPair::try_from(&last.key).ok());
        if let Some(key) = last {
            return Ok(key);
        }
        if let Some(key) = store.pending_key()? {
            return KeyPair::from_pem(&key)
                .map_err(|source| BootstrapError::Key { path: self.directory.clone(), source });
        }
        let key = KeyPair::generate().map_err(RequestError::Make)?;
        store.save_pending_key(&key.serialize_pem())?;
        Ok(key)
    }
}

/// ◆ A kubeconfig that names the file with the certificate and key.
fn kubeconfig_text(cluster: &Value, pem: &Path) -> String {
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

/// Waits until the server responds, for a minute at most. If it does not, a later request fails.
async fn wait_for_server(client: &ApiClient) {
    let client = client.with_timeout(PROBE_TIMEOUT);
    let until = Instant::now() + SERVER_TIMEOUT;
    while Instant::now() < until {
        match client.is_healthy().await {
            Ok(()) => return,
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::info!(server = client.server(), error, "waiting for the API server");
            }
        }
        sleep(jittered(PROBE_INTERVAL, JITTER)).await;
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rcgen::CertificateParams;

    use super::*;

    #[test]
    fn request_has_the_key_of_the_last_certificate_or_of_an_earlier_request() {
        let directory = tempfile::tempdir().unwrap();
        let bootstrap = Bootstrap {
            from: directory.path().join("bootstrap"),
            kubeconfig: directory.path().join("kubeconfig"),
            directory: directory.path().join("pki"),
            node: "n1".to_owned(),
        };
        let store = client_store(&bootstrap.directory);
        let key = || bootstrap.key(&store).unwrap().serialize_pem();
        let first = key();
        assert_eq!(store.pending_key().unwrap().as_ref(), Some(&first));
        assert_eq!(key(), first);
        let last = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["n1".to_owned()]).unwrap();
        let certificate = params.self_signed(&last).unwrap().pem();
        store.put(&certificate, &last.serialize_pem(), Timestamp::UNIX_EPOCH).unwrap();
        assert_eq!(key(), last.serialize_pem());
    }
}
