//! Manifests of an HTTP URL, fetched periodically.
//!
//! As in Kubernetes 1.36, pkg/kubelet/config/http.go: a Pod or a PodList, every 20 s with a timeout of 10 s; an unchanged response
//! is skipped, and after a failure the pods stay.

use std::sync::Arc;
use std::time::Duration;

use api::manifest::static_pod::{self, Location, MAX_BYTES, Rejected};
use api::pod::Pod;
use async_trait::async_trait;
use compact::Set;
use fetch::{Client, Options, Response, Url};
use http::header::{AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, REFERER, WWW_AUTHENTICATE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use hyper::body::Bytes;
use tokio::time::timeout;

use super::PodSource;
use super::merge::{DuplicatePod, SourceKind, SourcePods, new_duplicates};
use super::{log_duplicates, log_updates};
use crate::clock::{Clock, SystemClock};

/// The default time between two requests.
const PERIOD: Duration = Duration::from_secs(20);
/// The timeout of a request, including its body.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum number of redirects.
const REDIRECTS: usize = 10;
/// Headers that are not sent when a redirect leads to another server.
const PRIVATE: [HeaderName; 4] = [AUTHORIZATION, COOKIE, PROXY_AUTHORIZATION, WWW_AUTHENTICATE];
/// The number of consecutive failures that are logged.
const LOGGED_FAILURES: u32 = 4;

/// Why a URL source cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum UrlSourceError {
    /// The URL is malformed, or neither http nor https.
    #[error("{url:?} is not an http or https URL")]
    Url {
        /// The given URL.
        url: String,
    },
    /// A line of the header file is not `Name: value`.
    #[error("line {line} is not a header, expected Name: value")]
    Header {
        /// The line, from 1.
        line: usize,
    },
    /// The HTTP client could not be created.
    #[error("failed to create an HTTP client")]
    Client(#[source] rustls::Error),
}

/// Why a request yields no pods.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("failed to fetch manifest")]
    Http(#[from] fetch::FetchError),
    #[error("timed out after {TIMEOUT:?}")]
    Timeout,
    #[error("stopped after {REDIRECTS} redirects")]
    Redirects,
    #[error("server returned {0}")]
    Status(StatusCode),
    #[error("response body is 10 MiB or larger")]
    TooLarge,
    #[error("response body is empty")]
    Empty,
    #[error("manifest is rejected: {0}")]
    Rejected(Rejected),
}

/// A source of the static pods at a URL.
pub struct UrlSource {
    /// The URL as given.
    text: String,
    url: Url,
    node_name: String,
    /// Whether its pods may refer to API objects (gate PreventStaticPodAPIReferences).
    may_refer: bool,
    client: Client,
    headers: HeaderMap,
    period: Duration,
    clock: Arc<dyn Clock>,
    /// The last response.
    data: Vec<u8>,
    merged: SourcePods,
    reported: Option<Arc<[Pod]>>,
    duplicates: Set<DuplicatePod>,
    /// See [`PodSource::take_ignored`].
    ignored: Vec<Pod>,
    failures: u32,
    started: bool,
}

impl UrlSource {
    /// Creates a source of the pods at `url`; `headers` has a line `Name: value` for each header of the requests.
    pub fn new(url: &str, headers: &str, node_name: String) -> Result<Self, UrlSourceError> {
        let text = url.to_owned();
        let url = Url::of_server(url).ok_or_else(|| UrlSourceError::Url { url: text.clone() })?;
        let headers = parse_headers(headers)?;
        let client = Client::new(Options::default()).map_err(UrlSourceError::Client)?;
        Ok(Self {
            text,
            url,
            node_name,
            may_refer: false,
            client,
            headers,
            period: PERIOD,
            clock: Arc::new(SystemClock),
            data: Vec::new(),
            merged: SourcePods::default(),
            reported: None,
            duplicates: Set::new(),
            ignored: Vec::new(),
            failures: 0,
            started: false,
        })
    }

    /// The same, whose pods may refer to API objects or not.
    #[must_use]
    pub fn with_references(self, may_refer: bool) -> Self {
        Self { may_refer, ..self }
    }

    /// Has the URL read so often.
    #[must_use]
    pub const fn read_each(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// The response, after all redirects.
    async fn request(&self) -> Result<Response, FetchError> {
        let (mut url, mut headers) = (self.url.clone(), self.headers.clone());
        for _ in 0..=REDIRECTS {
            let answer = self.client.send(Method::GET, &url, headers.clone(), Bytes::new()).await?;
            let Some(next) = answer.redirect() else {
                return Ok(answer);
            };
            if next.origin() != url.origin() {
                PRIVATE.iter().for_each(|name| drop(headers.remove(name)));
            }
            let referer =
                Some(&url).filter(|url| (url.scheme(), next.scheme()) != ("https", "http"));
            let referer = referer.and_then(|url| HeaderValue::from_str(&url.without_user()).ok());
            headers.remove(REFERER);
            headers.extend(referer.map(|url| (REFERER, url)));
            url = next;
        }
        Err(FetchError::Redirects)
    }

    async fn read(&self) -> Result<(StatusCode, Vec<u8>), FetchError> {
        let mut answer = self.request().await?;
        let mut data = Vec::new();
        while let Some(chunk) = answer.chunk().await? {
            if data.len() + chunk.len() >= MAX_BYTES {
                return Err(FetchError::TooLarge);
            }
            data.extend_from_slice(&chunk);
        }
        Ok((answer.status, data))
    }

    /// The pods of a new response; `None` if it is unchanged.
    async fn fetch(&mut self) -> Result<Option<Vec<Pod>>, FetchError> {
        let read = timeout(TIMEOUT, self.read()).await;
        let (status, data) = read.unwrap_or(Err(FetchError::Timeout))?;
        if status != StatusCode::OK {
            return Err(FetchError::Status(status));
        }
        if data.is_empty() {
            self.data = data;
            return Err(FetchError::Empty);
        }
        if data == self.data {
            return Ok(None);
        }
        self.data = data;
        let location = Location::Url(&self.text);
        let pods =
            static_pod::supported_pods(location, &self.node_name, self.may_refer, &self.data)
                .map_err(FetchError::Rejected)?;
        let origin = location.shown();
        let pods = pods.into_iter().map(|pod| Pod::new(pod).with_origin(&origin));
        Ok(Some(pods.collect()))
    }

    fn failed(&mut self, error: &FetchError) {
        self.failures = self.failures.saturating_add(1);
        if self.failures <= LOGGED_FAILURES {
            let error = error as &dyn std::error::Error;
            tracing::warn!(source = %self.name(), error, failures = self.failures, "failed to read pods from URL");
        }
    }

    /// Merges a full set. Returns the pods to run, unless they are unchanged and none is ignored.
    fn accept(&mut self, pods: Vec<Pod>) -> Option<Arc<[Pod]>> {
        self.ignored = repeated(&pods);
        let (updates, rejected) = self.merged.merge(SourceKind::Http, pods, self.clock.now());
        log_updates(&self.name(), &updates);
        log_duplicates(&new_duplicates(&mut self.duplicates, rejected));
        let pods = self.merged.pods();
        if self.reported.as_deref() == Some(&pods) && self.ignored.is_empty() {
            return None;
        }
        let pods = Arc::<[Pod]>::from(pods);
        self.reported = Some(Arc::clone(&pods));
        Some(pods)
    }
}

/// The pods with the namespace and name of a pod before.
fn repeated(pods: &[Pod]) -> Vec<Pod> {
    let mut names = Set::new();
    pods.iter().filter(|pod| !names.insert((pod.namespace(), pod.name()))).cloned().collect()
}

#[async_trait]
impl PodSource for UrlSource {
    fn name(&self) -> String {
        format!("url {}", Location::Url(&self.text).shown())
    }

    fn take_ignored(&mut self) -> Vec<Pod> {
        std::mem::take(&mut self.ignored)
    }

    async fn next(&mut self) -> Option<Arc<[Pod]>> {
        loop {
            if self.started {
                tokio::time::sleep(self.period).await;
            }
            self.started = true;
            let pods = match self.fetch().await {
                Ok(pods) => {
                    if self.failures > 0 {
                        tracing::info!(source = %self.name(), "read pods from URL again");
                    }
                    self.failures = 0;
                    pods
                }
                Err(error) => {
                    self.failed(&error);
                    // An empty response has no pods.
                    matches!(error, FetchError::Empty).then(Vec::new)
                }
            };
            if let Some(accepted) = pods.and_then(|pods| self.accept(pods)) {
                return Some(accepted);
            }
        }
    }
}

/// Reads lines `Name: value`; a name may occur several times.
fn parse_headers(text: &str) -> Result<HeaderMap, UrlSourceError> {
    let mut headers = HeaderMap::new();
    for (index, line) in text.lines().enumerate() {
        if line.trim().is_empty() {
            continue;
        }
        let refused = UrlSourceError::Header { line: index + 1 };
        let parsed = line.split_once(':').and_then(|(name, value)| {
            let name = HeaderName::from_bytes(name.trim().as_bytes()).ok()?;
            let mut value = HeaderValue::from_str(value.trim()).ok()?;
            value.set_sensitive(true);
            Some((name, value))
        });
        let Some((name, value)) = parsed else {
            return Err(refused);
        };
        headers.append(name, value);
    }
    Ok(headers)
}

#[cfg(test)]
mod tests;
