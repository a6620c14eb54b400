//! HTTP clients for registries, one for each set of trusted certificates. Certificates are always verified.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use reqwest::Url;
use reqwest::header::LOCATION;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use super::endpoint::Endpoint;
use super::settings::{EVERY_HOST, Registries};
use crate::error::PullError;

/// The user agent.
const AGENT: &str = concat!("crib/", env!("CARGO_PKG_VERSION"));

/// Timeout of a connection attempt.
const CONNECT: Duration = Duration::from_secs(30);

/// The clients, by the file of certificates that they trust in addition to the system's.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) settings: Registries,
    known: Mutex<HashMap<Option<PathBuf>, reqwest::Client>>,
}

impl Transport {
    pub(crate) fn new(settings: Registries) -> Self {
        // rustls needs a default provider if a program links several; a second installation fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            settings,
            known: Mutex::default(),
        }
    }

    /// A client that keeps connections alive, shared by all pulls.
    pub(crate) fn http(&self, endpoint: &Endpoint) -> Result<reqwest::Client, PullError> {
        let ca = self.ca(endpoint);
        // Only whole entries are ever inserted, so a poisoned lock is harmless.
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known().get(&ca) {
            return Ok(client.clone());
        }
        let refuse = |error: reqwest::Error| settings(endpoint, chain(&error));
        let builder = || {
            reqwest::Client::builder()
                .user_agent(AGENT)
                .connect_timeout(CONNECT)
                .read_timeout(self.settings.progress_timeout)
                // Sessions follow redirects themselves: they decide which origin gets credentials.
                .redirect(reqwest::redirect::Policy::none())
        };
        let mut more = Vec::new();
        for der in self.certificates(endpoint)? {
            more.push(reqwest::Certificate::from_der(&der).map_err(refuse)?);
        }
        let client = match builder().tls_certs_merge(more.clone()).build() {
            Ok(client) => client,
            // Without system certificates, trust the configured ones alone, which may be none.
            Err(error) => {
                tracing::debug!(
                    error = chain(&error),
                    "the system's certificates cannot be used"
                );
                builder().tls_certs_only(more).build().map_err(refuse)?
            }
        };
        known().insert(ca, client.clone());
        Ok(client)
    }

    fn ca(&self, endpoint: &Endpoint) -> Option<PathBuf> {
        let of = |name: &str| {
            self.settings
                .hosts
                .get(name)
                .and_then(|host| host.ca.clone())
        };
        of(&endpoint.name).or_else(|| of(EVERY_HOST))
    }

    fn certificates(&self, endpoint: &Endpoint) -> Result<Vec<Vec<u8>>, PullError> {
        let Some(path) = self.ca(endpoint) else {
            return Ok(Vec::new());
        };
        let shown = path.display();
        let bytes = std::fs::read(&path).map_err(|error| {
            settings(
                endpoint,
                format!("cannot read the certificates in {shown}: {error}"),
            )
        })?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match read {
            Ok(all) if !all.is_empty() => Ok(all.iter().map(|der| der.to_vec()).collect()),
            Ok(_) | Err(_) => Err(settings(
                endpoint,
                format!("{shown} holds no certificates in PEM form"),
            )),
        }
    }
}

fn settings(endpoint: &Endpoint, why: String) -> PullError {
    PullError::Settings {
        host: endpoint.host.clone(),
        why,
    }
}

/// Formats an error with its causes, without the URL that reqwest adds: it may carry a signature, and is in our
/// message anyway.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let text = match error.downcast_ref::<reqwest::Error>() {
            Some(error) => error
                .to_string()
                .split(" for url (")
                .next()
                .unwrap_or_default()
                .to_owned(),
            None => error.to_string(),
        };
        // Some errors repeat their cause.
        if !said.iter().any(|earlier| earlier.contains(&text)) {
            said.push(text);
        }
        next = error.source();
    }
    said.join(": ")
}

/// Scheme, host and port.
pub(super) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

/// The target of a redirect response.
pub(super) fn redirect(response: &reqwest::Response) -> Option<Url> {
    let codes = [301, 302, 303, 307, 308];
    codes.contains(&response.status().as_u16()).then_some(())?;
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let next = response.url().join(location).ok()?;
    matches!(next.scheme(), "http" | "https").then_some(next)
}
