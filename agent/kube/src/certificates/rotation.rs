//! Replaces the node's certificates before they end: that of the client, which signs the requests, and that of the server.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/certificate_manager.go.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fetch::Identity;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer};
use jiff::Timestamp;
use rcgen::KeyPair;
use tokio::time::sleep;

use super::request::{Wanted, request};
use super::store::{CertificateStore, client_store, server_store};
use super::validity::Validity;
use crate::chance::chance;
use crate::client::ApiClient;

/// How long a request may take to be approved and signed.
const SIGNED: Duration = Duration::from_secs(15 * 60);
/// The first delay after a failure, and the longest one.
const FIRST: Duration = Duration::from_secs(2);
const LONGEST: Duration = Duration::from_secs(64);
/// How often the time is looked at: a machine may have slept.
const LOOK: Duration = Duration::from_secs(60);

/// Whose certificate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The node's as a client of the API server. The first one comes from elsewhere.
    Client,
    /// That of the node's server.
    Server,
}

/// How often a certificate could not be replaced. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Failures(Arc<AtomicU64>);

impl Failures {
    pub(crate) fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Replaces a certificate of the node.
pub(crate) struct Rotation {
    client: ApiClient,
    role: Role,
    wanted: Wanted,
    store: CertificateStore,
    failures: Failures,
}

impl Rotation {
    /// Replaces the certificate of `client`, which is in a directory. One that is elsewhere is left alone.
    pub(crate) fn of_client(
        client: ApiClient,
        node: &str,
        directory: &Path,
        failures: Failures,
    ) -> Self {
        let (wanted, store) = (Wanted::client(node), client_store(directory));
        Self { client, role: Role::Client, wanted, store, failures }
    }

    /// Asks for a certificate of the node's server with these names, and replaces it.
    pub(crate) fn of_server(
        client: ApiClient,
        node: &str,
        names: Vec<String>,
        directory: &Path,
        failures: Failures,
    ) -> Self {
        let (wanted, store) = (Wanted::server(node, names), server_store(directory));
        Self { client, role: Role::Server, wanted, store, failures }
    }

    /// Replaces it, for ever.
    pub(crate) async fn run(self) {
        let mut wait = FIRST;
        loop {
            let validity =
                read(&self.store).and_then(|identity| Validity::of(identity.certificates.first()?));
            match (validity, self.role) {
                (Some(validity), _) => sleep_until(validity.renewal(chance())).await,
                (None, Role::Server) => {}
                (None, Role::Client) => {
                    tracing::warn!(file = %self.store.current().display(), "there is no client certificate to rotate");
                    return std::future::pending().await;
                }
            }
            while let Err(problem) = self.renew().await {
                self.failures.0.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(problem, role = ?self.role, "failed to get another certificate; will retry");
                sleep(wait).await;
                wait = wait.saturating_mul(2).min(LONGEST);
            }
            wait = FIRST;
        }
    }

    async fn renew(&self) -> Result<(), String> {
        let in_words = |error: &dyn std::error::Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        };
        let key = KeyPair::generate().map_err(|error| in_words(&error))?;
        let certificate = request(&self.client, &self.wanted, &key, None, SIGNED).await;
        let certificate = certificate.map_err(|error| in_words(&error))?;
        let put = self.store.put(&certificate, &key.serialize_pem(), Timestamp::now());
        put.map_err(|error| in_words(&error))?;
        let identity = read(&self.store).ok_or("the certificate that was issued cannot be read")?;
        if self.role == Role::Client {
            self.client.use_identity(&identity).map_err(|error| in_words(&error))?;
        }
        tracing::info!(role = ?self.role, "the node has another certificate");
        Ok(())
    }
}

async fn sleep_until(at: Timestamp) {
    tracing::debug!(%at, "next rotation of a certificate");
    while Timestamp::now() < at {
        let left = Duration::try_from(at.duration_since(Timestamp::now()));
        sleep(left.unwrap_or_default().min(LOOK)).await;
    }
}

/// When the certificate of the node's server ends that the cluster has signed; `None`: there is none.
pub(crate) fn server_ends(directory: &Path) -> Option<Timestamp> {
    let identity = read(&server_store(directory))?;
    Some(Validity::of(identity.certificates.first()?)?.not_after)
}

/// The certificate and the key in use.
fn read(store: &CertificateStore) -> Option<Identity> {
    let text = std::fs::read(store.current()).ok()?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let key = PrivateKeyDer::from_pem_slice(&text).ok()?;
    Some(Identity { certificates: certificates.ok()?, key })
}
