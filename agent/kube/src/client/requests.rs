//! A client of one API server: objects are JSON values, as the server sends them, so that unknown fields stay.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use fetch::{Client, Options, Pairs, Response, Url};
use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, USER_AGENT};
use http::{HeaderMap, HeaderValue, Method};
use serde_json::{Value, json};
use tokio::time::timeout;

use super::error::ApiError;
use super::kubeconfig::{Connection, Credentials};
use super::watch::WatchStream;

/// The limit of a connection attempt (client-go's).
const CONNECT: Duration = Duration::from_secs(30);
/// How long a request may take, unless it is said. A server ends its own after a minute.
const PATIENCE: Duration = Duration::from_secs(60);
/// How large an answer may be.
const MOST_BYTES: usize = 256 << 20;

const JSON: &str = "application/json";
const MERGE: &str = "application/merge-patch+json";
const STRATEGIC_MERGE: &str = "application/strategic-merge-patch+json";

/// A client, whose clones share its connections.
#[derive(Clone, Debug)]
pub struct ApiClient {
    http: Client,
    /// The server's URL, without a slash at its end.
    server: Arc<str>,
    credentials: Credentials,
    limit: Duration,
}

/// How an object is to be patched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PatchKind {
    /// By a JSON merge patch.
    Merge,
    /// By a strategic merge patch.
    StrategicMerge,
}

impl ApiClient {
    /// A client of the server. It connects when it is asked for something.
    ///
    /// # Errors
    ///
    /// If a certificate or the key cannot be used.
    pub fn new(connection: Connection) -> Result<Self, fetch::TlsError> {
        let only_roots = connection.roots.is_some();
        let http = Client::new(Options {
            roots: connection.roots.unwrap_or_default(),
            only_roots,
            identity: connection.identity,
            server_name: connection.server_name,
            proxy: connection.proxy,
            connect_timeout: Some(CONNECT),
            read_timeout: None,
        })?;
        let server = connection.server.without_user();
        let server = server.trim_end_matches('/').into();
        Ok(Self { http, server, credentials: connection.credentials, limit: PATIENCE })
    }

    /// The same client, whose requests may take so long.
    #[must_use]
    pub fn with_limit(&self, limit: Duration) -> Self {
        Self { limit, ..self.clone() }
    }

    /// The server's URL.
    #[must_use]
    pub fn server(&self) -> &str {
        &self.server
    }

    /// The object or list at a path.
    pub async fn get(&self, path: &str, query: &Pairs<'_>) -> Result<Value, ApiError> {
        self.request(Method::GET, path, query, None).await
    }

    /// Creates an object in the collection at a path, or a subresource.
    pub async fn create(&self, path: &str, object: &Value) -> Result<Value, ApiError> {
        self.request(Method::POST, path, &[], Some((JSON, object))).await
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

    /// Deletes the object at a path at once, if it has this uid.
    pub async fn delete_now(&self, path: &str, uid: &str) -> Result<Value, ApiError> {
        let options = json!({
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "gracePeriodSeconds": 0,
            "preconditions": {"uid": uid},
        });
        self.request(Method::DELETE, path, &[], Some((JSON, &options))).await
    }

    /// Watches the collection at a path. The query says what of it, and since when.
    pub(crate) async fn watch(
        &self,
        path: &str,
        query: &Pairs<'_>,
    ) -> Result<WatchStream, ApiError> {
        let response = self.within(self.send(Method::GET, path, query, None)).await?;
        if response.status.is_success() {
            return Ok(WatchStream::new(response));
        }
        Err(self.within(refusal(response)).await?)
    }

    async fn request(
        &self,
        method: Method,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Value, ApiError> {
        let answering = async {
            let response = self.send(method, path, query, body).await?;
            if !response.status.is_success() {
                return Err(refusal(response).await?);
            }
            let body = collected(response).await?;
            serde_json::from_slice(&body).map_err(|error| ApiError::Malformed(error.to_string()))
        };
        self.within(answering).await
    }

    async fn within<T>(
        &self,
        work: impl Future<Output = Result<T, ApiError>>,
    ) -> Result<T, ApiError> {
        timeout(self.limit, work).await.unwrap_or(Err(ApiError::Slow(self.limit)))
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        query: &Pairs<'_>,
        body: Option<(&'static str, &Value)>,
    ) -> Result<Response, ApiError> {
        let url = format!("{}{path}", self.server);
        let url = Url::of_server(&url).ok_or_else(|| ApiError::Malformed(url))?.with_query(query);
        let mut headers = HeaderMap::new();
        headers.insert(ACCEPT, HeaderValue::from_static(JSON));
        headers.insert(USER_AGENT, user_agent());
        if let Some(authorization) = self.authorization()? {
            headers.insert(AUTHORIZATION, authorization);
        }
        let bytes = match body {
            Some((kind, value)) => {
                headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
                Bytes::from(value.to_string())
            }
            None => Bytes::new(),
        };
        self.http.send(method, &url, headers, bytes).await.map_err(ApiError::Unreachable)
    }

    fn authorization(&self) -> Result<Option<HeaderValue>, ApiError> {
        let path = match &self.credentials {
            Credentials::Nothing => return Ok(None),
            Credentials::Fixed(header) => return Ok(Some(header.clone())),
            Credentials::File(path) => path,
        };
        let problem = |problem: String| {
            let path = path.display().to_string();
            ApiError::Token { path, problem }
        };
        let token = std::fs::read_to_string(path).map_err(|error| problem(error.to_string()))?;
        let header = fetch::bearer(token.trim()).filter(|_| !token.trim().is_empty());
        header.map(Some).ok_or_else(|| problem("there is no token in it".to_owned()))
    }
}

fn user_agent() -> HeaderValue {
    HeaderValue::from_static(concat!("crib-agent/", env!("CARGO_PKG_VERSION")))
}

async fn refusal(response: Response) -> Result<ApiError, ApiError> {
    let code = response.status.as_u16();
    Ok(ApiError::refused(code, &collected(response).await?))
}

async fn collected(mut response: Response) -> Result<Vec<u8>, ApiError> {
    let mut body = Vec::new();
    while let Some(chunk) = response.chunk().await.map_err(ApiError::Unreachable)? {
        body.extend_from_slice(&chunk);
        if body.len() > MOST_BYTES {
            return Err(ApiError::Malformed(format!("it has more than {MOST_BYTES} bytes")));
        }
    }
    Ok(body)
}
