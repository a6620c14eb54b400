//! Handles a request: the injected fault, then authentication, then the OCI distribution specification.

use std::convert::Infallible;
use std::sync::{Mutex, PoisonError};
use std::{fs, io};

use hyper::body::Incoming;
use hyper::header::{
    ACCEPT_RANGES, AUTHORIZATION, CONTENT_RANGE, ETAG, HeaderMap, HeaderName, LINK, LOCATION,
    RANGE, RETRY_AFTER, WWW_AUTHENTICATE,
};
use hyper::{Method, Request, Response, StatusCode};
use serde_json::json;

use super::auth::Authorizer;
use super::fault::{FaultKind, Faults};
use super::names::LookupError;
use super::request_log::{RecordedRequest, RequestLog};
use super::response::{Body, PendingResponse};
use super::route::{Digest, PathError, Route, field, fields, range};
use super::store::Store;

mod manifests;
mod uploads;

/// The header with the content's digest.
pub(super) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// The state that requests use.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) authorizer: Authorizer,
    pub(super) faults: Faults,
    pub(super) requests: Mutex<RequestLog>,
    /// `http://127.0.0.1:5000`.
    pub(super) url: String,
}

/// A request whose body has not been read.
#[derive(Debug)]
pub(super) struct ParsedRequest {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Incoming,
}

impl ParsedRequest {
    /// A header's value, if it is valid text.
    pub(super) fn header(&self, name: &HeaderName) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The original registry, if the client uses this server as a mirror.
    pub(super) fn registry(&self) -> Option<&str> {
        field(&self.fields, "ns").filter(|ns| !ns.is_empty())
    }
}

/// The error that makes hyper close the connection.
#[derive(Debug, thiserror::Error)]
#[error("connection closed by the registry")]
pub(super) struct ConnectionClosed;

impl From<Infallible> for ConnectionClosed {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Server {
    /// Responds to a request, and records it.
    pub(super) async fn respond(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, ConnectionClosed> {
        let (parts, body) = request.into_parts();
        let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let request = ParsedRequest {
            method: parts.method,
            headers: parts.headers,
            fields: fields(&query),
            body,
        };
        let range = request.header(&RANGE).map(str::to_owned);
        let authorized = request.headers.contains_key(AUTHORIZATION);
        // Recorded before the response is sent, so that a test that receives the response finds the record.
        let record = |status| {
            tracing::debug!(method, path, query, status, "answered");
            let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
            requests.push(RecordedRequest {
                method: method.clone(),
                path: path.clone(),
                query: query.clone(),
                range: range.clone(),
                authorized,
                status,
            });
        };
        let fault = self.faults.next(&method, &path);
        let mut response = match &fault {
            Some(FaultKind::Disconnect) => {
                record(0);
                return Err(ConnectionClosed);
            }
            Some(FaultKind::Status(code, after)) => {
                let status = StatusCode::from_u16(*code).unwrap_or(StatusCode::IM_A_TEAPOT);
                let code = match status {
                    StatusCode::TOO_MANY_REQUESTS => "TOOMANYREQUESTS",
                    StatusCode::UNAUTHORIZED => "UNAUTHORIZED",
                    StatusCode::FORBIDDEN => "DENIED",
                    _ => "UNKNOWN",
                };
                let response = PendingResponse::refusal(status, code, "status injected by a test");
                match after {
                    Some(seconds) => response.with(RETRY_AFTER, &seconds.to_string()),
                    None => response,
                }
            }
            Some(FaultKind::Redirect(to)) => {
                let to = match query.is_empty() {
                    true => format!("{to}{path}"),
                    false => format!("{to}{path}?{query}"),
                };
                PendingResponse::empty(StatusCode::TEMPORARY_REDIRECT).with(LOCATION, &to)
            }
            Some(FaultKind::Delay(time)) => {
                tokio::time::sleep(*time).await;
                self.dispatch(request, &path).await
            }
            Some(_) | None => self.dispatch(request, &path).await,
        };
        response.head = method == "HEAD";
        record(response.status.as_u16());
        let version = HeaderName::from_static("docker-distribution-api-version");
        Ok(response.with(version, "registry/2.0").send(fault.as_ref()))
    }

    async fn dispatch(&self, request: ParsedRequest, path: &str) -> PendingResponse {
        let route = match Route::parse(path) {
            Ok(route) => route,
            Err(bad) => return refuse_path(bad),
        };
        if route == Route::Token {
            return self.issue_token(request).await;
        }
        let header = request.header(&AUTHORIZATION);
        if let Err(challenge) =
            self.authorizer.check(header, request.method.as_str(), &route, &self.url)
        {
            let message = "authentication is missing or insufficient";
            return PendingResponse::refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
                .with(WWW_AUTHENTICATE, &challenge.0);
        }
        let response = match (route, request.method.as_str()) {
            (Route::Base, "GET" | "HEAD") => Ok(PendingResponse::json(&json!({}))),
            (Route::Catalog, "GET" | "HEAD") => Ok(self.catalog(&request)),
            (Route::Tags { name }, "GET" | "HEAD") => Ok(self.tags(&request, &name)),
            (Route::Manifest { name, reference }, "GET" | "HEAD") => {
                self.manifest(&request, &name, &reference)
            }
            (Route::Manifest { name, reference }, "PUT") => {
                self.put_manifest(request, &name, &reference).await
            }
            (Route::Manifest { name, reference }, "DELETE") => {
                self.delete_manifest(&request, &name, &reference)
            }
            (Route::Blob { digest, .. }, "GET" | "HEAD") => self.blob(&request, &digest).await,
            (Route::Blob { digest, .. }, "DELETE") => self.delete_blob(&digest),
            (Route::Uploads { name }, "POST") => self.start_upload(request, &name).await,
            (Route::Upload { name, id }, "GET" | "HEAD") => Ok(self.upload_status(&name, &id)),
            (Route::Upload { name, id }, "PATCH") => self.send_chunk(request, &name, &id).await,
            (Route::Upload { name, id }, "PUT") => self.end_upload(request, &name, &id).await,
            (Route::Upload { id, .. }, "DELETE") => self.cancel_upload(&id),
            (Route::Referrers { name, digest }, "GET" | "HEAD") => {
                Ok(self.referrers(&request, &name, &digest))
            }
            (_, _) => Ok(PendingResponse::refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "UNSUPPORTED",
                "method not allowed at this path",
            )),
        };
        response.unwrap_or_else(|error| storage_error(&error))
    }

    async fn issue_token(&self, request: ParsedRequest) -> PendingResponse {
        let header = request.header(&AUTHORIZATION).map(str::to_owned);
        let mut form = request.fields.clone();
        if request.method == Method::POST {
            match uploads::read_all(request.body, 64 * 1024).await {
                Ok(body) => form.extend(fields(&String::from_utf8_lossy(&body))),
                Err(refusal) => return refusal,
            }
        }
        match self.authorizer.token(header.as_deref(), &form) {
            Ok(Some(response)) => PendingResponse::json(&response),
            Ok(None) => {
                let message = "the name, the password or the token is wrong";
                PendingResponse::refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", message)
            }
            Err(error) => storage_error(&error),
        }
    }

    fn catalog(&self, request: &ParsedRequest) -> PendingResponse {
        let all = self.store.names(|names| names.0.keys().cloned().collect());
        let (page, more) = page(all, request);
        let response = PendingResponse::json(&json!({"repositories": page}));
        with_link(response, "/v2/_catalog", more)
    }

    fn tags(&self, request: &ParsedRequest, name: &str) -> PendingResponse {
        let Some(all) = self.store.tags(name, request.registry()) else {
            return refuse_missing(&LookupError::Repository, name, "NAME_UNKNOWN");
        };
        let (page, more) = page(all, request);
        let response = PendingResponse::json(&json!({"name": name, "tags": page}));
        with_link(response, &format!("/v2/{name}/tags/list"), more)
    }
}

/// The requested page of a listing (`n` and `last`), and the query for the next page.
fn page(all: Vec<String>, request: &ParsedRequest) -> (Vec<String>, Option<String>) {
    let last = field(&request.fields, "last");
    let after = all.into_iter().filter(|item| last.is_none_or(|last| item.as_str() > last));
    let Some(n) = field(&request.fields, "n").and_then(|n| n.parse::<usize>().ok()) else {
        return (after.collect(), None);
    };
    let mut items: Vec<String> = after.take(n.saturating_add(1)).collect();
    if items.len() <= n {
        return (items, None);
    }
    items.truncate(n);
    let next = items.last().map(|last| format!("n={n}&last={last}"));
    (items, next)
}

fn with_link(response: PendingResponse, path: &str, next: Option<String>) -> PendingResponse {
    match next {
        Some(query) => response.with(LINK, &format!("<{path}?{query}>; rel=\"next\"")),
        None => response,
    }
}

fn refuse_path(bad: PathError) -> PendingResponse {
    match bad {
        PathError::Unknown => {
            PendingResponse::refusal(StatusCode::NOT_FOUND, "UNSUPPORTED", "unknown path")
        }
        PathError::Name => PendingResponse::refusal(
            StatusCode::BAD_REQUEST,
            "NAME_INVALID",
            "the repository's name breaks the grammar",
        ),
        PathError::Reference => PendingResponse::refusal(
            StatusCode::BAD_REQUEST,
            "TAG_INVALID",
            "this is neither a tag nor a digest",
        ),
        PathError::Digest => PendingResponse::refusal(
            StatusCode::BAD_REQUEST,
            "DIGEST_INVALID",
            "a digest is sha256: or sha512: with its hexadecimal digits",
        ),
    }
}

/// The response for a missing repository or manifest. `unknown` is the error code for a missing repository.
fn refuse_missing(missing: &LookupError, name: &str, unknown: &str) -> PendingResponse {
    let (code, message) = match missing {
        LookupError::Repository => (unknown, format!("repository {name} not found")),
        LookupError::Manifest => {
            ("MANIFEST_UNKNOWN", format!("manifest not found in repository {name}"))
        }
        LookupError::Several(all) => (
            "MANIFEST_UNKNOWN",
            format!(
                "{name} may be any of {}: choose one with ?ns=, or in the path",
                all.join(", ")
            ),
        ),
    };
    PendingResponse::refusal(StatusCode::NOT_FOUND, code, &message)
}

fn storage_error(error: &io::Error) -> PendingResponse {
    tracing::warn!(%error, "failed to handle a request");
    PendingResponse::refusal(
        StatusCode::INTERNAL_SERVER_ERROR,
        "UNKNOWN",
        &format!("registry storage: {error}"),
    )
}

impl Server {
    /// Serves any blob from any repository: repositories are not isolated from each other.
    async fn blob(&self, request: &ParsedRequest, digest: &Digest) -> io::Result<PendingResponse> {
        let file = match tokio::fs::File::open(self.store.blob_path(digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(unknown(digest)),
            Err(error) => return Err(error),
        };
        let length = file.metadata().await?.len();
        let response = match range(request.header(&RANGE), length) {
            None => PendingResponse::refusal(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "SIZE_INVALID",
                &format!("the blob has {length} bytes"),
            )
            .with(CONTENT_RANGE, &format!("bytes */{length}")),
            Some(None) => PendingResponse::file(file, 0, length),
            Some(Some((from, count))) => PendingResponse::file(file, from, count)
                .status(StatusCode::PARTIAL_CONTENT)
                .with(CONTENT_RANGE, &format!("bytes {from}-{}/{length}", from + count - 1)),
        };
        Ok(response
            .with(CONTENT_DIGEST, digest.as_str())
            .with(ETAG, &format!("\"{digest}\""))
            .with(ACCEPT_RANGES, "bytes"))
    }

    fn delete_blob(&self, digest: &Digest) -> io::Result<PendingResponse> {
        match fs::remove_file(self.store.blob_path(digest)) {
            Ok(()) => Ok(PendingResponse::empty(StatusCode::ACCEPTED)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(unknown(digest)),
            Err(error) => Err(error),
        }
    }
}

fn unknown(digest: &Digest) -> PendingResponse {
    let message = format!("blob {digest} not found");
    PendingResponse::refusal(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", &message)
}
