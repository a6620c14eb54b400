//! HTTP clients for registries: one set of trusted certificates each, nothing ever unverified.

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

/// What registries are told to be spoken to by.
const AGENT: &str = concat!("crib/", env!("CARGO_PKG_VERSION"));

/// How long a connection may take to come about.
const CONNECT: Duration = Duration::from_secs(30);

/// The clients there are, by the file of certificates that they trust besides the system's.
#[derive(Debug)]
pub(crate) struct Transport {
    pub(crate) settings: Registries,
    known: Mutex<HashMap<Option<PathBuf>, reqwest::Client>>,
}

impl Transport {
    pub(crate) fn new(settings: Registries) -> Self {
        // Two providers of cryptography in one program would have to be told apart; a second installation of this one
        // fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Self {
            settings,
            known: Mutex::default(),
        }
    }

    /// A client that keeps connections, shared by all pulls.
    pub(crate) fn http(&self, endpoint: &Endpoint) -> Result<reqwest::Client, PullError> {
        let ca = self.ca(endpoint);
        // Whole entries only are ever inserted, so a panic elsewhere does no harm.
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
                // Sessions follow them: they know what may be sent where.
                .redirect(reqwest::redirect::Policy::none())
        };
        let mut more = Vec::new();
        for der in self.certificates(endpoint)? {
            more.push(reqwest::Certificate::from_der(&der).map_err(refuse)?);
        }
        let client = match builder().tls_certs_merge(more.clone()).build() {
            Ok(client) => client,
            // A box without certificates of its own is no reason not to trust those that were given, nor to do without.
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

/// An error with its causes; the address that reqwest adds may carry a signature, and is in our own sentence anyway.
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
        // Some repeat their cause.
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

/// Where an answer sends its client, if it does.
pub(super) fn redirect(response: &reqwest::Response) -> Option<Url> {
    let codes = [301, 302, 303, 307, 308];
    codes.contains(&response.status().as_u16()).then_some(())?;
    let location = response.headers().get(LOCATION)?.to_str().ok()?;
    let next = response.url().join(location).ok()?;
    matches!(next.scheme(), "http" | "https").then_some(next)
}
