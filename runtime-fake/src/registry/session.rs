//! One registry spoken to for one pull: requests that prove who asks, and what the answers mean.
//!
//! Blobs come through oci-client. Manifests and tokens do not, because oci-client reads documents of any length into
//! memory, has no identity tokens, and hides `Retry-After` and the status of a token server's refusal.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use oci_client::client::BlobResponse;
use oci_client::errors::OciDistributionError;
use oci_client::secrets::RegistryAuth;
use reqwest::header::{ACCEPT, CONTENT_TYPE, RANGE, WWW_AUTHENTICATE};
use reqwest::{Method, StatusCode};
use tokio::sync::Mutex;
use tokio_stream::StreamExt as _;

use crate::image::{Digest, Problem};

use super::challenge::Challenge;
use super::problem::PullError;
use super::retry;
use super::route::{Endpoint, Scheme};
use super::settings::Credentials;
use super::token::{Grant, Tokens};
use super::transport::{Transport, chain};

/// What a manifest may be, in the order of preference.
const MANIFESTS: &str = "application/vnd.oci.image.index.v1+json, application/vnd.oci.image.manifest.v1+json, \
    application/vnd.docker.distribution.manifest.list.v2+json, application/vnd.docker.distribution.manifest.v2+json";

/// The bytes of a blob from some offset on.
pub(crate) type Bytes =
    std::pin::Pin<Box<dyn tokio_stream::Stream<Item = std::io::Result<bytes::Bytes>> + Send>>;

/// A document as it came.
#[derive(Debug)]
pub(crate) struct Document {
    pub(crate) bytes: Vec<u8>,
    /// What the registry says it is.
    pub(crate) media_type: String,
}

/// See the module.
pub(crate) struct Session {
    pub(crate) endpoint: Endpoint,
    pub(crate) patience: Duration,
    transport: Arc<Transport>,
    http: reqwest::Client,
    plain: bool,
    pub(super) credentials: Credentials,
    grant: Mutex<Grant>,
    distribution: Mutex<Option<(Grant, oci_client::Client)>>,
    /// Did it answer anything yet? Before that, one refused connection is answer enough.
    pub(super) answered: AtomicBool,
}

impl Session {
    /// Prepares to speak to `endpoint` as `credentials` say.
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
        let grant = match &credentials {
            Credentials::RegistryToken(token) => Grant::Bearer(token.clone()),
            Credentials::Anonymous | Credentials::Basic { .. } | Credentials::IdentityToken(_) => {
                Grant::None
            }
        };
        Ok(Self {
            patience: transport.settings.progress_timeout,
            transport: transport.clone(),
            endpoint,
            http,
            plain,
            credentials,
            grant: Mutex::new(grant),
            distribution: Mutex::default(),
            answered: AtomicBool::new(false),
        })
    }

    /// The manifest or index called `reference`: a tag or a digest. Tried again as long as that may help.
    pub(crate) async fn manifest(
        &self,
        reference: &str,
        limit: u64,
    ) -> Result<Document, PullError> {
        let url = self.url("manifests", reference);
        let doing = format!(
            "asking for the manifest {reference} of {}",
            self.endpoint.repository
        );
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
        url: &str,
        doing: &str,
        what: &str,
        limit: u64,
    ) -> Result<Document, PullError> {
        let response = self.send(url, doing, what).await?;
        let media_type = response.headers().get(CONTENT_TYPE);
        let media_type = media_type
            .and_then(|value| value.to_str().ok())
            .unwrap_or_default();
        let media_type = media_type
            .split(';')
            .next()
            .unwrap_or_default()
            .trim()
            .to_owned();
        let bytes = self.read(response, limit, doing).await?;
        Ok(Document { bytes, media_type })
    }

    /// The bytes of a blob from `offset` on, or from the beginning, as the first number says.
    pub(crate) async fn blob(
        &self,
        digest: &Digest,
        offset: u64,
    ) -> Result<(u64, Bytes), PullError> {
        let digest = digest.to_string();
        let doing = blob_doing(&digest);
        let mut renewed = false;
        loop {
            let (grant, client) = match self.distribution().await {
                Ok(both) => both,
                Err(PullError::Settings { .. }) => {
                    return self.own_blob(&digest, offset, &doing).await;
                }
                Err(error) => return Err(error),
            };
            match client
                .pull_blob_stream_partial(&self.reference(&digest), digest.as_str(), offset, None)
                .await
            {
                Ok(BlobResponse::Partial(sized)) => return Ok((offset, sized.stream)),
                Ok(BlobResponse::Full(sized)) => return Ok((0, sized.stream)),
                Err(OciDistributionError::UnauthorizedError { .. }) if !renewed => {
                    renewed = true;
                    let url = self.url("blobs", &digest);
                    let response = self.once(Method::HEAD, &url, &grant, &doing).await?;
                    match challenge(&response) {
                        Some(challenge) => self.renew(&grant, &challenge).await?,
                        None => {
                            return Err(self.judge(
                                StatusCode::UNAUTHORIZED,
                                String::new(),
                                None,
                                &doing,
                                &digest,
                            ));
                        }
                    }
                }
                Err(error) => {
                    let error = self.of_oci(error, &doing, &digest);
                    let unclear =
                        matches!(error, PullError::Trouble { .. } | PullError::Refused { .. });
                    if unclear {
                        return Err(self.second_opinion(error, &grant, &doing, &digest).await);
                    }
                    return Err(error);
                }
            }
        }
    }

    /// The same on a box without any certificates of its own, where oci-client cannot be had.
    async fn own_blob(
        &self,
        digest: &str,
        offset: u64,
        doing: &str,
    ) -> Result<(u64, Bytes), PullError> {
        let url = self.url("blobs", digest);
        let response = self.send_from(&url, doing, digest, Some(offset)).await?;
        let start = if response.status() == StatusCode::PARTIAL_CONTENT {
            offset
        } else {
            0
        };
        let stream = response
            .bytes_stream()
            .map(|chunk| chunk.map_err(std::io::Error::other));
        Ok((start, Box::pin(stream)))
    }

    /// oci-client keeps neither the status of a refusal that it can read, nor `Retry-After`: the head of the same answer
    /// has both.
    async fn second_opinion(
        &self,
        error: PullError,
        grant: &Grant,
        doing: &str,
        what: &str,
    ) -> PullError {
        let url = self.url("blobs", what);
        match self.once(Method::HEAD, &url, grant, doing).await {
            // It has recovered.
            Ok(response) if response.status().is_success() => PullError::Broken {
                host: self.endpoint.host.clone(),
                doing: doing.to_owned(),
                why: error.to_string(),
            },
            Ok(response) => match (self.refusal(response, doing, what).await, error) {
                (PullError::Refused { .. }, error) => error,
                (better, _) => better,
            },
            Err(_) => error,
        }
    }

    /// Waits before the next try of something that failed `failures` times in a row, or gives the error back because
    /// there is no sense in going on.
    pub(crate) async fn again(
        &self,
        failures: &mut u32,
        error: PullError,
    ) -> Result<(), PullError> {
        *failures += 1;
        let Some(pause) = retry::pause(*failures, error.fault(), jitter()) else {
            return Err(error);
        };
        tracing::info!(registry = self.endpoint.host, ?pause, %error, "will try again");
        tokio::time::sleep(pause).await;
        Ok(())
    }

    fn url(&self, kind: &str, reference: &str) -> String {
        let scheme = self.scheme();
        let Endpoint {
            host,
            repository,
            mirrored,
            ..
        } = &self.endpoint;
        let of = mirrored
            .as_ref()
            .map(|name| format!("?ns={name}"))
            .unwrap_or_default();
        format!("{scheme}://{host}/v2/{repository}/{kind}/{reference}{of}")
    }

    pub(super) fn scheme(&self) -> &'static str {
        if self.plain { "http" } else { "https" }
    }

    /// The same for oci-client.
    fn reference(&self, digest: &str) -> oci_client::Reference {
        let Endpoint {
            host,
            repository,
            mirrored,
            ..
        } = &self.endpoint;
        let name = mirrored.as_ref().unwrap_or(host);
        let mut reference =
            oci_client::Reference::with_digest(name.clone(), repository.clone(), digest.to_owned());
        if mirrored.is_some() {
            reference.set_mirror_registry(host.clone());
        }
        reference
    }

    /// A client with the rights that we have now.
    async fn distribution(&self) -> Result<(Grant, oci_client::Client), PullError> {
        let grant = self.grant.lock().await.clone();
        let mut known = self.distribution.lock().await;
        if let Some((of, client)) = &*known
            && *of == grant
        {
            return Ok((grant, client.clone()));
        }
        let client = self.transport.distribution(&self.endpoint, self.plain)?;
        let auth = match &grant {
            Grant::None => None,
            Grant::Basic { username, password } => Some(RegistryAuth::Basic(
                username.clone(),
                password.reveal().to_owned(),
            )),
            Grant::Bearer(token) => Some(RegistryAuth::Bearer(token.reveal().to_owned())),
        };
        if let Some(auth) = auth {
            client
                .store_auth_if_needed(&self.endpoint.host, &auth)
                .await;
        }
        *known = Some((grant.clone(), client.clone()));
        Ok((grant, client))
    }

    /// Asks once, or twice if it turns out that we have to prove who we are.
    async fn send(
        &self,
        url: &str,
        doing: &str,
        what: &str,
    ) -> Result<reqwest::Response, PullError> {
        self.send_from(url, doing, what, None).await
    }

    /// The same for the bytes from an offset on.
    async fn send_from(
        &self,
        url: &str,
        doing: &str,
        what: &str,
        offset: Option<u64>,
    ) -> Result<reqwest::Response, PullError> {
        let mut renewed = false;
        loop {
            let grant = self.grant.lock().await.clone();
            let range = offset.map(|offset| format!("bytes={offset}-"));
            let response = self.request(Method::GET, url, &grant, range, doing).await?;
            let status = response.status();
            if status == StatusCode::OK
                || (offset.is_some() && status == StatusCode::PARTIAL_CONTENT)
            {
                return Ok(response);
            }
            if status == StatusCode::UNAUTHORIZED
                && !renewed
                && let Some(challenge) = challenge(&response)
            {
                renewed = true;
                self.renew(&grant, &challenge).await?;
                continue;
            }
            return Err(self.refusal(response, doing, what).await);
        }
    }

    async fn once(
        &self,
        method: Method,
        url: &str,
        grant: &Grant,
        doing: &str,
    ) -> Result<reqwest::Response, PullError> {
        self.request(method, url, grant, None, doing).await
    }

    async fn request(
        &self,
        method: Method,
        url: &str,
        grant: &Grant,
        range: Option<String>,
        doing: &str,
    ) -> Result<reqwest::Response, PullError> {
        let mut request = grant
            .show(self.http.request(method, url))
            .header(ACCEPT, MANIFESTS);
        if let Some(range) = range {
            request = request.header(RANGE, range);
        }
        let response = request
            .send()
            .await
            .map_err(|error| self.broken(&error, doing))?;
        self.answered.store(true, Ordering::Relaxed);
        Ok(response)
    }

    /// Gets other rights than `old`, unless somebody else just did.
    async fn renew(&self, old: &Grant, challenge: &Challenge) -> Result<(), PullError> {
        let mut grant = self.grant.lock().await;
        if *grant == *old {
            let tokens = Tokens {
                session: self,
                http: &self.http,
                credentials: &self.credentials,
            };
            *grant = tokens.grant(old, challenge).await?;
        }
        Ok(())
    }

    /// All of a body, if it is not too long.
    pub(crate) async fn read(
        &self,
        mut response: reqwest::Response,
        limit: u64,
        doing: &str,
    ) -> Result<Vec<u8>, PullError> {
        let mut bytes = Vec::new();
        while let Some(chunk) = response
            .chunk()
            .await
            .map_err(|error| self.broken(&error, doing))?
        {
            bytes.extend_from_slice(&chunk);
            if bytes.len() as u64 > limit {
                let what = "the document".to_owned();
                return Err(self.content(Problem::TooMuch {
                    what,
                    limit,
                    unit: "bytes",
                }));
            }
        }
        Ok(bytes)
    }

    /// Whether credentials may be sent to `url` because the way there is as safe as to the registry itself.
    pub(crate) fn is_as_safe(&self, url: &reqwest::Url) -> bool {
        url.scheme() == "https" || (self.plain && url.scheme() == "http")
    }
}

pub(crate) fn blob_doing(digest: &str) -> String {
    format!("sending the blob {digest}")
}

fn challenge(response: &reqwest::Response) -> Option<Challenge> {
    let values = response.headers().get_all(WWW_AUTHENTICATE);
    Challenge::read(values.iter().filter_map(|value| value.to_str().ok()))
}

/// A server with TLS answers 400 to a request without, or breaks off. One without may break off for other reasons, and
/// then does not shake hands either.
async fn speaks_plain_http(http: &reqwest::Client, host: &str) -> bool {
    match http.get(format!("http://{host}/v2/")).send().await {
        Ok(response) if response.status() != StatusCode::BAD_REQUEST => true,
        // Nobody is there: any scheme will do to find that out again, and to say it.
        Err(error) if error.is_connect() => true,
        Ok(_) | Err(_) => {
            let shaken = http.get(format!("https://{host}/v2/")).send().await;
            shaken.is_err_and(|error| error.is_connect() && !chain(&error).contains("certificate"))
        }
    }
}

/// From 0 to 1.
fn jitter() -> f64 {
    let mut bytes = [0; 2];
    let _ = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    f64::from(u16::from_ne_bytes(bytes)) / f64::from(u16::MAX)
}
