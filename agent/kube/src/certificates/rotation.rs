//! Replaces the client's certificate before it ends, if it is in files of this node: another one is asked for with it.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/certificate_manager.go.

use std::path::PathBuf;
use std::time::Duration;

use fetch::Identity;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer};
use jiff::Timestamp;
use rcgen::KeyPair;
use tokio::time::sleep;

use super::request::{Wanted, request};
use super::store::CertificateStore;
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

/// Replaces the certificate of a client.
pub(crate) struct Rotation {
    pub(crate) client: ApiClient,
    pub(crate) node: String,
    pub(crate) directory: PathBuf,
}

impl Rotation {
    /// Replaces it, for ever. A kubeconfig whose certificate is elsewhere is left alone.
    pub(crate) async fn run(self) {
        let store = CertificateStore::new(&self.directory, "kubelet-client");
        let mut wait = FIRST;
        loop {
            let Some(validity) =
                read(&store).and_then(|identity| Validity::of(identity.certificates.first()?))
            else {
                tracing::debug!(directory = %self.directory.display(), "no client certificate to rotate");
                return std::future::pending().await;
            };
            let at = validity.renewal(chance());
            tracing::debug!(%at, expires_at = %validity.not_after, "next rotation of the client certificate");
            while Timestamp::now() < at {
                let left = Duration::try_from(at.duration_since(Timestamp::now()));
                sleep(left.unwrap_or_default().min(LOOK)).await;
            }
            while let Err(problem) = self.renew(&store).await {
                tracing::warn!(problem, expires_at = %validity.not_after, "failed to rotate the client certificate; will retry");
                sleep(wait).await;
                wait = wait.saturating_mul(2).min(LONGEST);
            }
            wait = FIRST;
        }
    }

    async fn renew(&self, store: &CertificateStore) -> Result<(), String> {
        let in_words = |error: &dyn std::error::Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        };
        let key = KeyPair::generate().map_err(|error| in_words(&error))?;
        let wanted = Wanted::client(&self.node);
        let certificate = request(&self.client, &wanted, &key, None, SIGNED).await;
        let certificate = certificate.map_err(|error| in_words(&error))?;
        let put = store.put(&certificate, &key.serialize_pem(), Timestamp::now());
        put.map_err(|error| in_words(&error))?;
        let identity = read(store).ok_or("the certificate that was issued cannot be read")?;
        self.client.use_identity(&identity).map_err(|error| in_words(&error))?;
        tracing::info!("rotated the client certificate");
        Ok(())
    }
}

/// The certificate and the key in use.
fn read(store: &CertificateStore) -> Option<Identity> {
    let text = std::fs::read(store.current()).ok()?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let key = PrivateKeyDer::from_pem_slice(&text).ok()?;
    Some(Identity { certificates: certificates.ok()?, key })
}
