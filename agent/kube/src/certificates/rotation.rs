//! Rotates the node's client certificate and serving certificate before they expire.
//!
//! Source: Kubernetes 1.36, staging/src/k8s.io/client-go/util/certificate/certificate_manager.go, pkg/kubelet/certificate/transport.go.

use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use agent::histogram::Histogram;
use fetch::Identity;
use fetch::pki_types::pem::PemObject as _;
use fetch::pki_types::{CertificateDer, PrivateKeyDer};
use jiff::Timestamp;
use rcgen::KeyPair;
use tokio::time::{Instant, sleep};

use super::request::{CertificateRequest, RequestError, request};
use super::store::{CertificateStore, client_store, server_store};
use super::validity::{Validity, has_names};
use crate::chance::chance;
use crate::client::{ApiClient, ApiError};

/// The time limit for approval and signing of a request.
const SIGNING_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The first delay after a failure, and the longest one.
const RETRY: Duration = Duration::from_secs(2);
const RETRY_MAX: Duration = Duration::from_secs(32);
/// The longest sleep before the clock is read again: the machine may have been suspended.
const MAX_SLEEP: Duration = Duration::from_secs(60);
/// How long the client may be without a valid certificate, and the interval between checks.
const MAX_EXPIRED: Duration = Duration::from_secs(5 * 60);
const CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// The upper bounds of the buckets of certificate ages: from a minute to four years of 360 days, in seconds.
const AGE_BOUNDS: &[f64] = &[
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
];

/// The certificate's purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// The node's client certificate. Bootstrap or the kubeconfig provides the first one.
    Client,
    /// The node's serving certificate.
    Server,
}

/// Counts of successful and failed rotations. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Rotations(Arc<Counts>);

#[derive(Debug)]
struct Counts {
    failures: AtomicU64,
    /// The ages of the replaced certificates, in seconds.
    ages: Mutex<Histogram>,
}

impl Default for Rotations {
    fn default() -> Self {
        let ages = Mutex::new(Histogram::new(AGE_BOUNDS));
        Self(Arc::new(Counts { failures: AtomicU64::new(0), ages }))
    }
}

impl Rotations {
    /// The number of failed rotations.
    pub(crate) fn failures(&self) -> u64 {
        self.0.failures.load(Ordering::Relaxed)
    }

    /// The ages of certificates when they were replaced, in seconds.
    pub(crate) fn ages(&self) -> Histogram {
        self.0.ages.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn failed(&self) {
        self.0.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Records the replacement at `now` of a certificate that was valid from `not_before`.
    fn replaced(&self, not_before: Timestamp, now: Timestamp) {
        let age = now.duration_since(not_before).as_secs_f64();
        self.0.ages.lock().unwrap_or_else(PoisonError::into_inner).observe(age);
    }
}

/// Rotates one certificate of the node.
pub(crate) struct Rotation {
    client: ApiClient,
    role: Role,
    template: CertificateRequest,
    store: CertificateStore,
    rotations: Rotations,
    /// Whether the API server itself, not a proxy in front of it, answered the last request.
    server_responds: AtomicBool,
}

impl Rotation {
    /// Rotates the certificate of `client` in `directory`. A client certificate that is stored elsewhere is not rotated.
    pub(crate) fn for_client(
        client: ApiClient,
        node: &str,
        directory: &Path,
        rotations: Rotations,
    ) -> Self {
        let (template, store) = (CertificateRequest::client(node), client_store(directory));
        let server_responds = AtomicBool::default();
        Self { client, role: Role::Client, template, store, rotations, server_responds }
    }

    /// Requests a serving certificate with these names, and rotates it.
    pub(crate) fn for_server(
        client: ApiClient,
        node: &str,
        names: Vec<String>,
        directory: &Path,
        rotations: Rotations,
    ) -> Self {
        let (template, store) = (CertificateRequest::server(node, names), server_store(directory));
        let server_responds = AtomicBool::default();
        Self { client, role: Role::Server, template, store, rotations, server_responds }
    }

    /// Rotates the certificate until the client has had no valid one for too long. Returns the reason in words.
    pub(crate) async fn run(self) -> String {
        if self.role == Role::Client && self.stored_validity().is_none() {
            tracing::warn!(file = %self.store.current().display(), "no client certificate to rotate");
            return std::future::pending().await;
        }
        tokio::select! {
            never = self.rotate() => match never {},
            why = self.wait_until_expired(), if self.role == Role::Client => why,
        }
    }

    async fn rotate(&self) -> Infallible {
        // A signer may leave names out, so only the certificate of an earlier agent is compared with the request.
        let mut is_for_node = self.has_requested_names();
        if !is_for_node {
            tracing::info!(role = ?self.role, names = ?self.template.names, "the certificate lacks a name of the node; requesting another one");
        }
        loop {
            // If the file is missing, the client keeps its certificate in memory.
            let in_use =
                || self.client.certificate_validity().filter(|_| self.role == Role::Client);
            let validity = self.stored_validity().or_else(in_use);
            if let Some(validity) = validity.filter(|_| is_for_node) {
                sleep_until(validity.renewal(chance())).await;
            }
            is_for_node = true;
            let mut delays = retry_delays();
            while let Err(problem) = self.renew().await {
                self.rotations.failed();
                tracing::warn!(problem, role = ?self.role, "failed to renew the certificate; will retry");
                sleep(delays.next().unwrap_or(RETRY_MAX)).await;
            }
            if let Some(validity) = validity {
                self.rotations.replaced(validity.not_before, Timestamp::now());
            }
        }
    }

    /// The validity of the certificate in the store.
    fn stored_validity(&self) -> Option<Validity> {
        Validity::of(read(&self.store)?.certificates.first()?)
    }

    /// Whether the certificate in the store, if there is one, has all requested names. The node may have had other addresses when an
    /// earlier agent requested it.
    fn has_requested_names(&self) -> bool {
        let stored = read(&self.store);
        let certificate = stored.as_ref().and_then(|stored| stored.certificates.first());
        certificate.is_none_or(|certificate| has_names(certificate, &self.template.names))
    }

    /// Returns once the client has had no valid certificate for too long although the server answers. Only a restarted agent can
    /// then get one, with the bootstrap kubeconfig.
    async fn wait_until_expired(&self) -> String {
        let has_expired = || {
            let validity = self.client.certificate_validity();
            validity.is_some_and(|validity| validity.has_expired(Timestamp::now()))
        };
        wait_without_certificate(has_expired, || self.server_responds.load(Ordering::Relaxed)).await
    }

    async fn renew(&self) -> Result<(), String> {
        let error_chain = |error: &dyn std::error::Error| {
            let cause = error.source().map(|cause| format!(": {cause}"));
            format!("{error}{}", cause.unwrap_or_default())
        };
        let key = KeyPair::generate().map_err(|error| error_chain(&error))?;
        let certificate = request(&self.client, &self.template, &key, None, SIGNING_TIMEOUT).await;
        if let Err(RequestError::Create(error)) = &certificate {
            self.server_responds.store(is_from_api_server(error), Ordering::Relaxed);
        }
        let certificate = certificate.map_err(|error| error_chain(&error))?;
        let put = self.store.put(&certificate, &key.serialize_pem(), Timestamp::now());
        put.map_err(|error| error_chain(&error))?;
        let identity = read(&self.store).ok_or("failed to read the issued certificate")?;
        if self.role == Role::Client {
            self.client.set_identity(&identity).map_err(|error| error_chain(&error))?;
        }
        self.server_responds.store(true, Ordering::Relaxed);
        tracing::info!(role = ?self.role, "renewed the certificate");
        Ok(())
    }
}

/// ◆ The delays after failed renewals.
fn retry_delays() -> impl Iterator<Item = Duration> {
    std::iter::successors(Some(RETRY), |last| Some(last.saturating_mul(2).min(RETRY_MAX)))
}

/// ◆ Whether the API server itself rejected a request: other errors may come from a proxy in front of it.
fn is_from_api_server(error: &ApiError) -> bool {
    error.is_unauthorized() || error.is_forbidden() || error.is_not_found()
}

/// Returns the reason in words once the client has had no valid certificate for too long although the server answers.
async fn wait_without_certificate(
    has_expired: impl Fn() -> bool,
    server_responds: impl Fn() -> bool,
) -> String {
    let mut valid_at = Instant::now();
    loop {
        sleep(CHECK_INTERVAL).await;
        if !has_expired() {
            valid_at = Instant::now();
        } else if valid_at.elapsed() > MAX_EXPIRED {
            if server_responds() {
                return "no valid client certificate is found and the server is responsive: start the agent again with --bootstrap-kubeconfig, or replace the certificate".to_owned();
            }
            tracing::error!(
                "no valid client certificate is found, but the server is not responsive; a restart may be necessary to get new initial credentials"
            );
        }
    }
}

async fn sleep_until(at: Timestamp) {
    tracing::debug!(%at, "next rotation of a certificate");
    while Timestamp::now() < at {
        let left = Duration::try_from(at.duration_since(Timestamp::now()));
        sleep(left.unwrap_or_default().min(MAX_SLEEP)).await;
    }
}

/// The expiry of the node's cluster-signed serving certificate; `None` if there is no such certificate.
pub(crate) fn server_certificate_expiry(directory: &Path) -> Option<Timestamp> {
    let identity = read(&server_store(directory))?;
    Some(Validity::of(identity.certificates.first()?)?.not_after)
}

/// The certificate and the key in use.
pub(super) fn read(store: &CertificateStore) -> Option<Identity> {
    let text = std::fs::read(store.current()).ok()?;
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let key = PrivateKeyDer::from_pem_slice(&text).ok()?;
    Some(Identity { certificates: certificates.ok()?, key })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use tokio::time::timeout;

    use super::*;

    /// A condition at a second of the test.
    type At = fn(u64) -> bool;

    /// Parameters: whether the certificate has expired, whether the server answers, and when the node must end.
    #[rstest]
    #[case::valid(|_: u64| false, |_: u64| true, None)]
    #[case::expired(|at: u64| at > 105, |_: u64| true, Some(400))]
    #[case::replaced(|at: u64| (105..395).contains(&at) || at > 1005, |_: u64| true, Some(1300))]
    #[case::server_away(|at: u64| at > 105, |at: u64| at > 2005, Some(2010))]
    #[case::server_away_for_ever(|at: u64| at > 105, |_: u64| false, None)]
    #[tokio::test(start_paused = true)]
    async fn node_ends_five_minutes_after_expiry_if_server_responds(
        #[case] has_expired: At,
        #[case] answers: At,
        #[case] expected: Option<u64>,
    ) {
        let began = Instant::now();
        let second = || began.elapsed().as_secs();
        let ending = wait_without_certificate(|| has_expired(second()), || answers(second()));
        let ended = timeout(Duration::from_secs(10_000), ending).await;
        assert_eq!(ended.is_ok(), expected.is_some());
        if let (Ok(why), Some(expected)) = (ended, expected) {
            assert!(why.contains("no valid client certificate is found"), "{why}");
            // The check runs every 10 s.
            assert!((expected..=expected + 10).contains(&second()), "{}", second());
        }
    }

    #[rstest]
    #[case(401, true)]
    #[case(403, true)]
    #[case(404, true)]
    #[case(409, false)]
    #[case(429, false)]
    #[case(502, false)]
    fn api_server_errors_are_told_from_proxy_errors(#[case] code: u16, #[case] expected: bool) {
        assert_eq!(is_from_api_server(&ApiError::refused(code, b"no")), expected);
        assert!(!is_from_api_server(&ApiError::TimedOut(SIGNING_TIMEOUT)));
    }

    #[test]
    fn delays_after_failures_grow_to_32_seconds() {
        let delays: Vec<u64> = retry_delays().take(6).map(|delay| delay.as_secs()).collect();
        assert_eq!(delays, [2, 4, 8, 16, 32, 32]);
    }

    #[test]
    fn replaced_certificates_are_counted_by_their_age() {
        let rotations = Rotations::default();
        let at = |second| Timestamp::from_second(second).unwrap();
        rotations.replaced(at(0), at(30));
        rotations.replaced(at(0), at(3601));
        rotations.failed();
        let ages = rotations.ages();
        let first: Vec<(f64, u64)> = ages.buckets().take(3).collect();
        assert_eq!(first, [(60.0, 1), (3600.0, 1), (14_400.0, 2)]);
        assert_eq!((ages.sum(), rotations.failures()), (3631.0, 1));
    }
}
