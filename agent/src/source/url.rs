//! Manifests of an HTTP URL, fetched again periodically.
//!
//! As in Kubernetes 1.36, pkg/kubelet/config/http.go: a Pod or a PodList, every 20 s with a timeout of 10 s; unchanged bytes
//! are skipped, and a failure keeps the pods.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::StatusCode;
use reqwest::header::{HeaderMap, HeaderName, HeaderValue};

use super::PodSource;
use super::merge::{DuplicatePod, SourcePods, StaticSource, new_duplicates};
use super::{log_duplicates, log_updates};
use crate::clock::{Clock, SystemClock};
use crate::manifest::static_pod::{self, Location, MAX_BYTES, Rejected};
use crate::pod::Pod;

/// The time between two requests, unless it is said.
const PERIOD: Duration = Duration::from_secs(20);
/// The limit of a request, with its body.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The number of failures in a row that are logged.
const LOGGED_FAILURES: u32 = 4;

/// A URL source that cannot be created.
#[derive(Debug, thiserror::Error)]
pub enum UrlSourceError {
    /// The URL is malformed, or neither http nor https.
    #[error("{url:?} is not an http or https URL")]
    Url {
        /// What was given.
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
    Client(#[source] reqwest::Error),
}

/// Why a request yields no pods.
#[derive(Debug, thiserror::Error)]
enum FetchError {
    #[error("failed to fetch manifest")]
    Http(#[source] reqwest::Error),
    #[error("the server answered {0}")]
    Status(StatusCode),
    #[error("the answer has 10 MiB or more")]
    TooLarge,
    #[error("the answer is empty")]
    Empty,
    #[error("manifest is rejected: {0}")]
    Rejected(Rejected),
}

/// A source of the static pods at a URL.
pub struct UrlSource {
    url: reqwest::Url,
    node_name: String,
    client: reqwest::Client,
    headers: HeaderMap,
    period: Duration,
    clock: Arc<dyn Clock>,
    /// The last answer.
    data: Vec<u8>,
    merged: SourcePods,
    reported: Option<Arc<[Pod]>>,
    duplicates: BTreeSet<DuplicatePod>,
    failures: u32,
    started: bool,
}

impl UrlSource {
    /// A source of the pods at `url`; `headers` has a line `Name: value` for each header of the requests.
    pub fn new(url: &str, headers: &str, node_name: String) -> Result<Self, UrlSourceError> {
        let refused = || UrlSourceError::Url {
            url: url.to_owned(),
        };
        let parsed = reqwest::Url::parse(url).map_err(|_| refused())?;
        if !matches!(parsed.scheme(), "http" | "https") {
            return Err(refused());
        }
        let headers = parse_headers(headers)?;
        // rustls needs a default provider; a second installation fails and changes nothing.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .timeout(TIMEOUT)
            .build()
            .map_err(UrlSourceError::Client)?;
        Ok(Self {
            url: parsed,
            node_name,
            client,
            headers,
            period: PERIOD,
            clock: Arc::new(SystemClock),
            data: Vec::new(),
            merged: SourcePods::default(),
            reported: None,
            duplicates: BTreeSet::new(),
            failures: 0,
            started: false,
        })
    }

    /// Has the URL read so often.
    #[must_use]
    pub const fn read_each(mut self, period: Duration) -> Self {
        self.period = period;
        self
    }

    /// The pods of a new answer; `None` for one that did not change.
    async fn fetch(&mut self) -> Result<Option<Vec<Pod>>, FetchError> {
        let request = self.client.get(self.url.clone());
        let answer = request.headers(self.headers.clone()).send().await;
        let mut answer = answer.map_err(|error| FetchError::Http(error.without_url()))?;
        let mut data = Vec::new();
        while let Some(chunk) = answer
            .chunk()
            .await
            .map_err(|error| FetchError::Http(error.without_url()))?
        {
            if data.len() + chunk.len() >= MAX_BYTES {
                return Err(FetchError::TooLarge);
            }
            data.extend_from_slice(&chunk);
        }
        if answer.status() != StatusCode::OK {
            return Err(FetchError::Status(answer.status()));
        }
        if data.is_empty() {
            self.data = data;
            return Err(FetchError::Empty);
        }
        if data == self.data {
            return Ok(None);
        }
        self.data = data;
        let location = Location::Url(self.url.as_str());
        let pods = static_pod::supported_pods(location, &self.node_name, &self.data)
            .map_err(FetchError::Rejected)?;
        let origin = location.shown();
        let pods = pods
            .into_iter()
            .map(|pod| Pod::new(pod).with_origin(&origin));
        Ok(Some(pods.collect()))
    }

    fn failed(&mut self, error: &FetchError) {
        self.failures = self.failures.saturating_add(1);
        if self.failures <= LOGGED_FAILURES {
            let error = error as &dyn std::error::Error;
            tracing::warn!(source = %self.name(), error, failures = self.failures, "failed to read pods from URL");
        }
    }

    /// Takes a full set. Returns the pods to run, unless they are those of before.
    fn accept(&mut self, pods: Vec<Pod>) -> Option<Arc<[Pod]>> {
        let (updates, rejected) = self
            .merged
            .merge(StaticSource::Http, pods, self.clock.now());
        log_updates(&self.name(), &updates);
        log_duplicates(&new_duplicates(&mut self.duplicates, rejected));
        let pods = self.merged.pods();
        if self.reported.as_deref() == Some(&pods) {
            return None;
        }
        let pods = Arc::<[Pod]>::from(pods);
        self.reported = Some(Arc::clone(&pods));
        Some(pods)
    }
}

#[async_trait]
impl PodSource for UrlSource {
    fn name(&self) -> String {
        format!("url {}", Location::Url(self.url.as_str()).shown())
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
                    // An empty answer has no pods.
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
