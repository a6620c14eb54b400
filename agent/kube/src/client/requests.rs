//! A client of one API server. Objects are JSON values as the server sends them, so that unknown fields are preserved.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use fetch::{Identity, Pairs, Response, Url};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use jiff::Timestamp;
use serde_json::{Value, json};
use tokio::time::{sleep, timeout};

use super::counts::{Counter, RequestCounts};
use super::error::ApiError;
use super::exec_credential::Credential;
use super::kubeconfig::{Connection, Credentials};
use super::rate::{Limiter, Rate};
use super::shape;
use super::transport::Transport;
use super::watch::WatchStream;
use crate::certificates::validity::Validity;
use crate::chance::jittered;

/// The default timeout of a request. The server's own timeout is a minute.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The attempts of a review, the first delay, its growth and its jitter.
///
/// Source: Kubernetes 1.36, k8s.io/apiserver/pkg/server/options/authentication.go DefaultAuthWebhookRetryBackoff.
const REVIEW_TRIES: u32 = 5;
const REVIEW_RETRY: Duration = Duration::from_millis(500);
const REVIEW_RETRY_GROWTH: f64 = 1.5;
const REVIEW_RETRY_JITTER: f64 = 0.2;
/// The maximum size of a response.
const MAX_RESPONSE_BYTES: usize = 256 << 20;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// A client. Clones share its connections.
#[derive(Clone, Debug)]
pub struct ApiClient {
    transport: Arc<Transport>,
    /// The server's URL, without a slash at its end.
    server: Arc<str>,
    credentials: Credentials,
    counter: Arc<Counter>,
    request_timeout: Duration,
    rate: Limiter,
}

/// The format of a patch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// JSON merge patch.
    Merge,
    /// Strategic merge patch.
    StrategicMerge,
}

impl ApiClient {
    /// Creates a client of the server. It connects at the first request.
    ///
    /// # Errors
    ///
    /// If a certificate or the key cannot be used.
    pub fn new(connection: Connection) -> Result<Self, fetch::TlsError> {
        Self::with(connection, true)
    }

    /// Creates a client without credentials: requests wait for [`Self::set_credentials`], or until they time out.
    pub(crate) fn without_credentials(connection: Connection) -> Result<Self, fetch::TlsError> {
        let credentials = Credentials::Nothing;
        Self::with(Connection { identity: None, credentials, ..connection }, false)
    }

    fn with(mut connection: Connection, has_credentials: bool) -> Result<Self, fetch::TlsError> {
        let transport = Arc::new(Transport::new(&mut connection, has_credentials)?);
        let server = connection.server.without_user();
        let server = server.trim_end_matches('/').into();
        let (credentials, counter) = (connection.credentials, Arc::default());
        let rate = Limiter::new(Rate::UNLIMITED);
        Ok(Self { transport, server, credentials, counter, request_timeout: REQUEST_TIMEOUT, rate })
    }

    /// Returns the client with this timeout for each request.
    #[must_use]
    pub fn with_timeout(&self, request_timeout: Duration) -> Self {
        Self { request_timeout, ..self.clone() }
    }

    /// Returns the client with a rate limit.
    #[must_use]
    pub fn with_rate(&self, rate: Rate) -> Self {
        Self { rate: Limiter::new(rate), ..self.clone() }
    }

    /// The server's URL.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// Waits until the client has credentials.
    pub(crate) async fn wait_for_credentials(&self) {
        self.transport.wait_for_credentials().await;
    }

    /// Sets the credentials of another connection to the same server.
    pub(crate) fn set_credentials(
        &self,
        mut connection: Connection,
    ) -> Result<(), fetch::TlsError> {
        self.transport.set_credentials(&mut connection)
    }

    /// The counts of requests that this client and its clones have completed.
    #[must_use]
    pub fn counts(&self) -> RequestCounts {
        self.counter.counts()
    }

    /// The expiry of the client certificate, if there is one.
    #[must_use]
    pub fn certificate_expiry(&self) -> Option<Timestamp> {
        Some(self.certificate_validity()?.not_after)
    }

    /// The validity of the client certificate, if there is one.
    pub(crate) fn certificate_validity(&self) -> Option<Validity> {
        Validity::of(&self.transport.certificate()?)
    }

    /// Gets the object or list at a path.
    pub async fn get(&self, path: &str, query: &Pairs<'_>) -> Result<Value, ApiError> {
        self.request(Method::GET, path, query, None).await
    }

    /// Creates an object in the collection at a path, or a subresource.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.request(Method::POST, path, &[], Some((JSON, object))).await
    }

    /// Creates a review of a token or of access. Reviews are not stored, so it repeats them after transient errors.
    ///
    /// Source: Kubernetes 1.36, k8s.io/apiserver/pkg/util/webhook/webhook.go WithExponentialBackoff, DefaultShouldRetry.
    pub async fn review(&self, path: &str, review: &Value) -> Result<Value, ApiError> {
        let mut wait = REVIEW_RETRY;
        for _ in 1..REVIEW_TRIES {
            match self.create(path, review).await {
                Err(error) if error.is_transient() => {
                    let error = &error as &dyn std::error::Error;
                    tracing::debug!(path, error, "failed to create a review; will retry");
                }
                answer => return answer,
            }
            sleep(jittered(wait, REVIEW_RETRY_JITTER)).await;
            wait = wait.mul_f64(REVIEW_RETRY_GROWTH);
        }
        self.create(path, review).await
    }

    /// Replaces the object at a path.
    pub async fn replace(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.request(Method::PUT, path, &[], Some((JSON, object))).await
    }

    /// Patches the object at a path.
    pub async fn patch(
        &self,
        path: &str,
        kind: PatchKind,
        patch: &Value,
    ) -> Result<Value, ApiError> {
        let kind = match kind {
            PatchKind::Merge => MERGE,
            PatchKind::StrategicMerge => STRATEGIC_MERGE,
        };
        self.request(Method::PATCH, path, &[], Some((kind, patch))).await
    }

    /// Deletes the object at a path without a grace period, if it has this uid.
    pub async fn delete_now(&self, path: &str, uid: &str) -> Result<(), ApiError> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        self.delete(path, &[], Some((JSON, &options))).await
    }

    /// Deletes the objects of the collection at a path that the query selects.
    pub async fn delete_all(&self, path: &str, query: &Pairs<'_>) -> Result<(), ApiError> {
        self.delete(path, query, None).await
    }

    /// The server answers with the object, or with a `Status`, whose `status` is a string.
    async fn delete(
        &self,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<(), ApiError> {
        self.request_json(Method::DELETE, path, query, body).await.map(drop)
    }

    /// Whether the server reports that it is healthy.
    pub(crate) async fn is_healthy(&self) -> Result<(), ApiError> {
        let response = self.within(self.send(Method::GET, "/healthz", &[], None)).await?;
        if response.status.is_success() {
            return Ok(());
        }
        Err(self.within(error_response(response)).await?)
    }

    /// Sets another client certificate.
    pub(crate) fn set_identity(&self, identity: &Identity) -> Result<(), ApiError> {
        self.transport.set_identity(identity).map_err(ApiError::Certificate)
    }

    /// Closes the idle connections of this client and its clones, and ends their watches. A request under way keeps its connection, but
    /// no longer than the timeout of a request.
    pub(crate) fn reconnect(&self) {
        self.transport.reconnect();
        tracing::info!(server = %self.server, "closed connections to the API server");
    }

    /// Watches the collection at a path. The query has the selectors and the resource version.
    pub(crate) async fn watch(
        &self,
        path: &str,
        query: &Pairs<'_>,
    ) -> Result<WatchStream, ApiError> {
        self.rate.pass().await;
        let client = self.transport.changes();
        let response = self.within(self.send(Method::GET, path, query, None)).await?;
        if response.status.is_success() {
            return Ok(WatchStream::new(response, client));
        }
        Err(self.within(error_response(response)).await?)
    }

    /// Sends a request that is answered with an object or a list.
    async fn request(
        &self,
        method: Method,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Value, ApiError> {
        shape::answer(self.request_json(method, path, query, body).await?)
    }

    async fn request_json(
        &self,
        method: Method,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Value, ApiError> {
        let answering = async {
            let response = self.send(method, path, query, body).await?;
            if !response.status.is_success() {
                return Err(error_response(response).await?);
            }
            let body = read_body(response).await?;
            serde_json::from_slice(&body).map_err(|error| ApiError::Malformed(error.to_string()))
        };
        self.rate.pass().await;
        self.within(answering).await
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        timeout(self.request_timeout, work)
            .await
            .unwrap_or(Err(ApiError::TimedOut(self.request_timeout)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Response, ApiError> {
        self.wait_for_credentials().await;
        let url = format!("{}{path}", self.server);
        let url = Url::of_server(&url).ok_or_else(|| ApiError::Malformed(url))?.with_query(query);
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(JSON));
        headers.insert(USER_AGENT, user_agent());
        let bytes = match body {
            Some((kind, value)) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                Bytes::from(value.to_string())
            }
            None => Bytes::new(),
        };
        let send = async |authorization: Option<HeaderValue>| {
            let mut headers = headers.clone();
            headers.extend(authorization.map(|value| (AUTHORIZATION, value)));
            let (http, since) = (self.transport.http(), Instant::now());
            let sent = http.send(method.clone(), &url, headers, bytes.clone()).await;
            let status = sent.as_ref().ok().map(|response| response.status);
            self.counter.count(&method, status, since.elapsed());
            sent.map_err(ApiError::Unreachable)
        };
        let file = match &self.credentials {
            Credentials::Nothing => return send(None).await,
            Credentials::Fixed(header) => return send(Some(header.clone())).await,
            Credentials::Plugin(plugin) => {
                let credential = plugin.credential().await?;
                let response = send(self.use_plugin_credential(&credential)?).await?;
                if response.status != StatusCode::UNAUTHORIZED {
                    return Ok(response);
                }
                let other = plugin.replacement_for(&credential).await?;
                return send(self.use_plugin_credential(&other)?).await;
            }
            Credentials::File(file) => file,
        };
        let response = send(Some(file.header()?)).await?;
        if response.status == StatusCode::UNAUTHORIZED {
            file.forget();
        }
        Ok(response)
    }

    /// Sets the certificate of a plugin's credential. Returns the credential's header.
    fn use_plugin_credential(
        &self,
        credential: &Arc<Credential>,
    ) -> Result<Option<HeaderValue>, ApiError> {
        self.transport.set_plugin_credential(credential).map_err(ApiError::Certificate)?;
        Ok(credential.header.clone())
    }
}

fn user_agent() -> HeaderValue {
    HeaderValue::from_static(concat!("crib-agent/", env!("CARGO_PKG_VERSION")))
}

async fn error_response(response: Response) -> Result<ApiError, ApiError> {
    let code = response.status.as_u16();
    Ok(ApiError::refused(code, &read_body(response).await?))
}

async fn read_body(mut response: Response) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ApiError::Unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > MAX_RESPONSE_BYTES {
            return Err(ApiError::Malformed(format!("larger than {MAX_RESPONSE_BYTES} bytes")));
        }
    }
    Ok(body)
}
