//! A session with one registry for one pull: sends authenticated requests and interprets the responses.
//!
//! All requests go through [`Session::send`]: it adds the session's grant, answers challenges, and follows redirects. A grant
//! belongs to one origin (scheme, host and port): a request redirected elsewhere carries none, and a challenge from that host is
//! answered without credentials.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fetch::{Client, FetchError, Response, Url};
use http::header::{ACCEPT, CONTENT_TYPE, RANGE, WWW_AUTHENTICATE};
use http::{HeaderName, HeaderValue, StatusCode};
use tokio::sync::Mutex;

use crate::Digest;

use super::challenge::Challenge;
use super::endpoint::{Endpoint, Scheme};
use super::peer::Peer;
use super::retry;
use super::settings::Credentials;
use super::token::{Grant, Tokens};
use super::transport::{Transport, chain, get, headers};
use crate::error::PullError;

/// Limit on redirects, the same as in other clients.
const REDIRECTS: usize = 10;

/// The accepted media types of a manifest, in order of preference.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// A document as the registry sent it.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    /// The media type that the registry declares.
    pub(crate) media_type: String,
}

/// A session with one registry; see the module.
pub(crate) struct Session {
    pub(crate) peer: Peer,
    http: Client,
    /// Grants by origin. The lock is held while a grant is requested, so that concurrent requests wait for it.
    grants: Mutex<HashMap<String, Grant>>,
}

impl Session {
    /// Opens a session with `endpoint`, with `credentials`.
    pub(crate) async fn open(
        transport: &Arc<Transport>,
        endpoint: Endpoint,
        credentials: Credentials,
    ) -> Result<Self, PullError> {
        let http = transport.http(&endpoint)?;
        let plain = match endpoint.scheme {
            Scheme::Http => true,
            Scheme::Https => false,
            Scheme::Either => speaks_plain_http(&http, &endpoint.host).await,
        };
        let mut session = Self {
            peer: Peer {
                endpoint,
                plain,
                patience: transport.settings.progress_timeout,
                credentials,
                answered: AtomicBool::new(false),
            },
            http,
            grants: Mutex::default(),
        };
        if let Credentials::RegistryToken(token) = &session.peer.credentials {
            let own = session.url("manifests", "")?.origin();
            let grant = Grant::Bearer(token.clone());
            session.grants.get_mut().insert(own, grant);
        }
        Ok(session)
    }

    /// Fetches the manifest or index called `reference`, a tag or a digest, with retries.
    pub(crate) async fn manifest(
        &self,
        reference: &str,
        limit: u64,
    ) -> Result<Document, PullError> {
        let url = self.url("manifests", reference)?;
        let doing =
            format!("requesting the manifest {reference} of {}", self.peer.endpoint.repository);
        let mut failures = 0;
        loop {
            match self.document(&url, &doing, reference, limit).await {
                Ok(document) => return Ok(document),
                Err(error) => self.again(&mut failures, error).await?,
            }
        }
    }

    async fn document(
        &self,
        url: &Url,
        doing: &str,
        what: &str,
        limit: u64,
    ) -> Result<Document, PullError> {
        let asked = RequestContext { doing, what, offset: None };
        let response = self.send(url, asked).await?;
        let media_type = response.headers.get(CONTENT_TYPE);
        let media_type = media_type.and_then(|value| value.to_str().ok()).unwrap_or_default();
        let media_type = media_type.split(';').next().unwrap_or_default().trim().to_owned();
        let bytes = self.peer.read(response, limit, doing).await?;
        Ok(Document { bytes, media_type })
    }

    /// The response with a blob from `offset` on, or from its start; the first number of the result is the offset at which it
    /// begins.
    pub(crate) async fn blob(
        &self,
        digest: &Digest,
        offset: u64,
    ) -> Result<(u64, Response), PullError> {
        let digest = digest.to_string();
        let asked =
            RequestContext { doing: &blob_doing(&digest), what: &digest, offset: Some(offset) };
        let response = self.send(&self.url("blobs", &digest)?, asked).await?;
        let start = if response.status == StatusCode::PARTIAL_CONTENT { offset } else { 0 };
        Ok((start, response))
    }

    /// Waits before the next attempt after `failures` failures in a row, or returns the error if a retry is
    /// pointless.
    pub(crate) async fn again(
        &self,
        failures: &mut u32,
        error: PullError,
    ) -> Result<(), PullError> {
        *failures += 1;
        let Some(pause) = retry::pause(*failures, error.retryability(), jitter()) else {
            return Err(error);
        };
        tracing::info!(registry = self.peer.endpoint.host, ?pause, %error, "registry request failed, retrying");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn url(&self, kind: &str, reference: &str) -> Result<Url, PullError> {
        let scheme = self.peer.scheme();
        let Endpoint { host, repository, mirrored, .. } = &self.peer.endpoint;
        let of = mirrored.as_ref().map(|name| format!("?ns={name}")).unwrap_or_default();
        let url = format!("{scheme}://{host}/v2/{repository}/{kind}/{reference}{of}");
        Url::of_server(&url).ok_or_else(|| PullError::Settings {
            host: host.clone(),
            why: format!("{url} is not a URL"),
        })
    }

    /// Sends a request for `url`, follows redirects, and answers one challenge for each origin.
    async fn send(&self, url: &Url, asked: RequestContext<'_>) -> Result<Response, PullError> {
        let (own, mut url) = (url.origin(), url.clone());
        let (mut redirects, mut challenged) = (0, HashSet::new());
        loop {
            let here = url.origin();
            let grant = self.grant(&here).await;
            let response = self.request(&url, &grant, asked).await?;
            let status = response.status;
            let partial = asked.offset.is_some() && status == StatusCode::PARTIAL_CONTENT;
            if status == StatusCode::OK || partial {
                return Ok(response);
            }
            if let Some(next) = response.redirect()
                && redirects < REDIRECTS
            {
                redirects += 1;
                url = next;
                continue;
            }
            if status == StatusCode::UNAUTHORIZED
                && let Some(challenge) = challenge(&response)
                && !challenged.contains(&here)
            {
                let credentials =
                    if here == own { &self.peer.credentials } else { &Credentials::Anonymous };
                // Count only a renewal by this call: a grant that another request obtained may have expired again.
                if self.renew(&url, credentials, &grant, &challenge).await? {
                    challenged.insert(here);
                }
                continue;
            }
            return Err(self.peer.refusal(response, asked.doing, asked.what).await);
        }
    }

    /// The session's grant for `origin`.
    async fn grant(&self, origin: &str) -> Grant {
        let grants = self.grants.lock().await;
        grants.get(origin).cloned().unwrap_or(Grant::None)
    }

    async fn request(
        &self,
        url: &Url,
        grant: &Grant,
        asked: RequestContext<'_>,
    ) -> Result<Response, PullError> {
        let mut headers = headers();
        grant.show(&mut headers);
        match asked.offset {
            Some(0) => {}
            Some(offset) => headers.extend(range(offset)),
            None => {
                headers.insert(ACCEPT, HeaderValue::from_static(MANIFESTS));
            }
        }
        let response = get(&self.http, url, headers)
            .await
            .map_err(|error| self.peer.broken(&error, asked.doing))?;
        self.peer.answered.store(true, Ordering::Relaxed);
        Ok(response)
    }

    /// Renews the grant `old` for the origin of `url`, unless another request has just renewed it. Returns whether this call
    /// renewed it.
    async fn renew(
        &self,
        url: &Url,
        credentials: &Credentials,
        old: &Grant,
        challenge: &Challenge,
    ) -> Result<bool, PullError> {
        let mut grants = self.grants.lock().await;
        let grant = grants.entry(url.origin()).or_insert(Grant::None);
        if *grant != *old {
            return Ok(false);
        }
        let tokens = Tokens { peer: &self.peer, http: &self.http, registry: url, credentials };
        *grant = tokens.grant(old, challenge).await?;
        Ok(true)
    }
}

/// The purpose of a request.
#[derive(Clone, Copy)]
struct RequestContext<'a> {
    /// The operation, for errors.
    doing: &'a str,
    /// The tag or digest.
    what: &'a str,
    /// The offset in a blob; `None` for a document.
    offset: Option<u64>,
}

/// The header that requests the bytes from `offset` on.
fn range(offset: u64) -> Option<(HeaderName, HeaderValue)> {
    let value = HeaderValue::from_str(&format!("bytes={offset}-"));
    value.ok().map(|value| (RANGE, value))
}

pub(crate) fn blob_doing(digest: &str) -> String {
    format!("sending the blob {digest}")
}

fn challenge(response: &Response) -> Option<Challenge> {
    let values = response.headers.get_all(WWW_AUTHENTICATE);
    Challenge::read(values.iter().filter_map(|value| value.to_str().ok()))
}

/// A TLS server answers 400 to a plain request, or closes the connection. A server without TLS may close it for
/// other reasons, but then fails the TLS handshake too.
async fn speaks_plain_http(http: &Client, host: &str) -> bool {
    let ask = async |scheme: &str| {
        let url = format!("{scheme}://{host}/v2/");
        let parsed = Url::of_server(&url).ok_or(FetchError::Url(url))?;
        get(http, &parsed, headers()).await
    };
    match ask("http").await {
        Ok(response) if response.status != StatusCode::BAD_REQUEST => true,
        // No server listens there: either scheme leads to the error that reports it.
        Err(error) if error.is_connect() => true,
        Ok(_) | Err(_) => {
            let shaken = ask("https").await;
            shaken.is_err_and(|error| error.is_connect() && !chain(&error).contains("certificate"))
        }
    }
}

/// A random number from 0 to 1.
fn jitter() -> f64 {
    let mut bytes = [0; 2];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}
