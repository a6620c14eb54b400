//! HTTP clients for registries, one for each set of trusted certificates. Certificates are always verified.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use fetch::{Client, FetchError, Options, Response, Url};
use http::header::USER_AGENT;
use http::{HeaderMap, HeaderValue, Method};
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
    known: Mutex<HashMap<Option<PathBuf>, Client>>,
}

impl Transport {
    pub(crate) fn new(settings: Registries) -> Self {
        Self { settings, known: Mutex::default() }
    }

    /// A client that keeps connections alive, shared by all pulls. It trusts the system's certificates, too.
    pub(crate) fn http(&self, endpoint: &Endpoint) -> Result<Client, PullError> {
        let ca = self.ca(endpoint);
        // Only whole entries are ever inserted, so a poisoned lock is harmless.
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(client) = known().get(&ca) {
            return Ok(client.clone());
        }
        let client = Client::new(Options {
            roots: self.certificates(endpoint)?,
            connect_timeout: Some(CONNECT),
            read_timeout: Some(self.settings.progress_timeout),
            ..Options::default()
        });
        let client = client.map_err(|error| settings(endpoint, chain(&error)))?;
        known().insert(ca, client.clone());
        Ok(client)
    }

    fn ca(&self, endpoint: &Endpoint) -> Option<PathBuf> {
        let of = |name: &str| self.settings.hosts.get(name).and_then(|host| host.ca.clone());
        of(&endpoint.name).or_else(|| of(EVERY_HOST))
    }

    fn certificates(&self, endpoint: &Endpoint) -> Result<Vec<CertificateDer<'static>>, PullError> {
        let Some(path) = self.ca(endpoint) else {
            return Ok(Vec::new());
        };
        let shown = path.display();
        let bytes = std::fs::read(&path).map_err(|error| {
            settings(endpoint, format!("cannot read the certificates in {shown}: {error}"))
        })?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&bytes).collect();
        match read {
            Ok(all) if !all.is_empty() => Ok(all),
            Ok(_) | Err(_) => {
                Err(settings(endpoint, format!("{shown} holds no certificates in PEM form")))
            }
        }
    }
}

fn settings(endpoint: &Endpoint, why: String) -> PullError {
    PullError::Settings { host: endpoint.host.clone(), why }
}

/// The headers of every request.
pub(crate) fn headers() -> HeaderMap {
    HeaderMap::from_iter([(USER_AGENT, HeaderValue::from_static(AGENT))])
}

/// Formats an error with its causes.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut said: Vec<String> = Vec::new();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        let text = error.to_string();
        // Some errors repeat their cause.
        if !said.iter().any(|earlier| earlier.contains(&text)) {
            said.push(text);
        }
        next = error.source();
    }
    said.join(": ")
}

/// Sends a GET request without a body.
pub(super) async fn get(
    http: &Client,
    url: &Url,
    headers: HeaderMap,
) -> Result<Response, FetchError> {
    http.send(Method::GET, url, headers, Bytes::new()).await
}
