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

use super::answer::{Answer, Body};
use super::auth::Door;
use super::fault::{Faults, What};
use super::names::Missing;
use super::route::{BadPath, Digest, Route, field, fields, range};
use super::store::Store;

mod manifests;
mod uploads;

/// The header with the content's digest.
pub(super) const CONTENT_DIGEST: HeaderName = HeaderName::from_static("docker-content-digest");

/// An answered request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// `GET`, `HEAD`, `PUT` and so on.
    pub method: String,
    /// The path.
    pub path: String,
    /// The query, as it was sent.
    pub query: String,
    /// The header `Range`.
    pub range: Option<String>,
    /// Whether it had the header `Authorization`.
    pub authorized: bool,
    /// The status of the response; 0 if the connection was closed instead.
    pub status: u16,
}

/// The state that requests use.
#[derive(Debug)]
pub(super) struct Server {
    pub(super) store: Store,
    pub(super) door: Door,
    pub(super) faults: Faults,
    pub(super) seen: Mutex<Vec<Seen>>,
    /// `http://127.0.0.1:5000`.
    pub(super) url: String,
}

/// A request whose body has not been read.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) headers: HeaderMap,
    pub(super) fields: Vec<(String, String)>,
    pub(super) body: Incoming,
}

impl Ask {
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
pub(super) struct Hangup;

impl From<Infallible> for Hangup {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl Server {
    /// Responds to a request, and records it.
    pub(super) async fn answer(
        &self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, Hangup> {
        let (parts, body) = request.into_parts();
        let (method, path) = (parts.method.to_string(), parts.uri.path().to_owned());
        let query = parts.uri.query().unwrap_or_default().to_owned();
        let ask =
            Ask { method: parts.method, headers: parts.headers, fields: fields(&query), body };
        let range = ask.header(&RANGE).map(str::to_owned);
        let authorized = ask.headers.contains_key(AUTHORIZATION);
        // Recorded before the response is sent, so that a test that receives the response finds the record.
        let remember = |status| {
            tracing::debug!(method, path, query, status, "answered");
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push(Seen {
                method: method.clone(),
                path: path.clone(),
                query: query.clone(),
                range: range.clone(),
                authorized,
                status,
            });
        };
        let fault = self.faults.next(&method, &path);
        let mut answer = match &fault {
            Some(What::Disconnect) => {
                remember(0);
                return Err(Hangup);
            }
            Some(What::Status(code, after)) => {
                let status = StatusCode::from_u16(*code).unwrap_or(StatusCode::IM_A_TEAPOT);
                let code = match status {
                    StatusCode::TOO_MANY_REQUESTS => "TOOMANYREQUESTS",
                    StatusCode::UNAUTHORIZED => "UNAUTHORIZED",
                    StatusCode::FORBIDDEN => "DENIED",
                    _ => "UNKNOWN",
                };
                let answer = Answer::refusal(status, code, "a test asked for this status");
                match after {
                    Some(seconds) => answer.with(RETRY_AFTER, &seconds.to_string()),
                    None => answer,
                }
            }
            Some(What::Redirect(to)) => {
                let to = match query.is_empty() {
                    true => format!("{to}{path}"),
                    false => format!("{to}{path}?{query}"),
                };
                Answer::empty(StatusCode::TEMPORARY_REDIRECT).with(LOCATION, &to)
            }
            Some(What::Delay(time)) => {
                tokio::time::sleep(*time).await;
                self.dispatch(ask, &path).await
            }
            Some(_) | None => self.dispatch(ask, &path).await,
        };
        answer.head = method == "HEAD";
        remember(answer.status.as_u16());
        let version = HeaderName::from_static("docker-distribution-api-version");
        Ok(answer.with(version, "registry/2.0").send(fault.as_ref()))
    }

    async fn dispatch(&self, ask: Ask, path: &str) -> Answer {
        let route = match Route::parse(path) {
            Ok(route) => route,
            Err(bad) => return refuse_path(bad),
        };
        if route == Route::Token {
            return self.give_token(ask).await;
        }
        let header = ask.header(&AUTHORIZATION);
        if let Err(challenge) = self.door.check(header, ask.method.as_str(), &route, &self.url) {
            let said = "authentication is required, or what was given is not enough";
            return Answer::refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", said)
                .with(WWW_AUTHENTICATE, &challenge.0);
        }
        let answer = match (route, ask.method.as_str()) {
            (Route::Base, "GET" | "HEAD") => Ok(Answer::json(&json!({}))),
            (Route::Catalog, "GET" | "HEAD") => Ok(self.catalog(&ask)),
            (Route::Tags { name }, "GET" | "HEAD") => Ok(self.tags(&ask, &name)),
            (Route::Manifest { name, reference }, "GET" | "HEAD") => {
                self.manifest(&ask, &name, &reference)
            }
            (Route::Manifest { name, reference }, "PUT") => {
                self.put_manifest(ask, &name, &reference).await
            }
            (Route::Manifest { name, reference }, "DELETE") => {
                self.delete_manifest(&ask, &name, &reference)
            }
            (Route::Blob { digest, .. }, "GET" | "HEAD") => self.blob(&ask, &digest).await,
            (Route::Blob { digest, .. }, "DELETE") => self.delete_blob(&digest),
            (Route::Uploads { name }, "POST") => self.start_upload(ask, &name).await,
            (Route::Upload { name, id }, "GET" | "HEAD") => Ok(self.upload_status(&name, &id)),
            (Route::Upload { name, id }, "PATCH") => self.send_chunk(ask, &name, &id).await,
            (Route::Upload { name, id }, "PUT") => self.end_upload(ask, &name, &id).await,
            (Route::Upload { id, .. }, "DELETE") => self.cancel_upload(&id),
            (Route::Referrers { name, digest }, "GET" | "HEAD") => {
                Ok(self.referrers(&ask, &name, &digest))
            }
            (_, _) => Ok(Answer::refusal(
                StatusCode::METHOD_NOT_ALLOWED,
                "UNSUPPORTED",
                "method not allowed at this path",
            )),
        };
        answer.unwrap_or_else(|error| disk_trouble(&error))
    }

    async fn give_token(&self, ask: Ask) -> Answer {
        let header = ask.header(&AUTHORIZATION).map(str::to_owned);
        let mut asked = ask.fields.clone();
        if ask.method == Method::POST {
            match uploads::read_all(ask.body, 64 * 1024).await {
                Ok(body) => asked.extend(fields(&String::from_utf8_lossy(&body))),
                Err(refusal) => return refusal,
            }
        }
        match self.door.token(header.as_deref(), &asked) {
            Ok(Some(answer)) => Answer::json(&answer),
            Ok(None) => {
                let said = "the name, the password or the token is wrong";
                Answer::refusal(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", said)
            }
            Err(error) => disk_trouble(&error),
        }
    }

    fn catalog(&self, ask: &Ask) -> Answer {
        let all = self.store.names(|names| names.0.keys().cloned().collect());
        let (page, more) = page(all, ask);
        let answer = Answer::json(&json!({"repositories": page}));
        with_link(answer, "/v2/_catalog", more)
    }

    fn tags(&self, ask: &Ask, name: &str) -> Answer {
        let Some(all) = self.store.tags(name, ask.registry()) else {
            return refuse_missing(&Missing::Repository, name, "NAME_UNKNOWN");
        };
        let (page, more) = page(all, ask);
        let answer = Answer::json(&json!({"name": name, "tags": page}));
        with_link(answer, &format!("/v2/{name}/tags/list"), more)
    }
}

/// The requested page of a listing (`n` and `last`), and the query for the next page.
fn page(all: Vec<String>, ask: &Ask) -> (Vec<String>, Option<String>) {
    let last = field(&ask.fields, "last");
    let after = all.into_iter().filter(|item| last.is_none_or(|last| item.as_str() > last));
    let Some(n) = field(&ask.fields, "n").and_then(|n| n.parse::<usize>().ok()) else {
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

fn with_link(answer: Answer, path: &str, next: Option<String>) -> Answer {
    match next {
        Some(query) => answer.with(LINK, &format!("<{path}?{query}>; rel=\"next\"")),
        None => answer,
    }
}

fn refuse_path(bad: BadPath) -> Answer {
    match bad {
        BadPath::Unknown => Answer::refusal(StatusCode::NOT_FOUND, "UNSUPPORTED", "unknown path"),
        BadPath::Name => Answer::refusal(
            StatusCode::BAD_REQUEST,
            "NAME_INVALID",
            "the repository's name breaks the grammar",
        ),
        BadPath::Reference => Answer::refusal(
            StatusCode::BAD_REQUEST,
            "TAG_INVALID",
            "this is neither a tag nor a digest",
        ),
        BadPath::Digest => Answer::refusal(
            StatusCode::BAD_REQUEST,
            "DIGEST_INVALID",
            "a digest is sha256: or sha512: with its hexadecimal digits",
        ),
    }
}

/// The response for a missing repository or manifest. `unknown` is the error code for a missing repository.
fn refuse_missing(missing: &Missing, name: &str, unknown: &str) -> Answer {
    let (code, said) = match missing {
        Missing::Repository => (unknown, format!("repository {name} not found")),
        Missing::Manifest => {
            ("MANIFEST_UNKNOWN", format!("manifest not found in repository {name}"))
        }
        Missing::Several(all) => (
            "MANIFEST_UNKNOWN",
            format!("{name} may be any of {}: say which with ?ns=, or in the path", all.join(", ")),
        ),
    };
    Answer::refusal(StatusCode::NOT_FOUND, code, &said)
}

fn disk_trouble(error: &io::Error) -> Answer {
    tracing::warn!(%error, "cannot answer");
    Answer::refusal(
        StatusCode::INTERNAL_SERVER_ERROR,
        "UNKNOWN",
        &format!("the registry's disk: {error}"),
    )
}

impl Server {
    /// Serves any blob from any repository: repositories are not isolated from each other.
    async fn blob(&self, ask: &Ask, digest: &Digest) -> io::Result<Answer> {
        let file = match tokio::fs::File::open(self.store.blob_path(digest)).await {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(unknown(digest)),
            Err(error) => return Err(error),
        };
        let length = file.metadata().await?.len();
        let answer = match range(ask.header(&RANGE), length) {
            None => Answer::refusal(
                StatusCode::RANGE_NOT_SATISFIABLE,
                "SIZE_INVALID",
                &format!("the blob has {length} bytes"),
            )
            .with(CONTENT_RANGE, &format!("bytes */{length}")),
            Some(None) => Answer::file(file, 0, length),
            Some(Some((from, count))) => Answer::file(file, from, count)
                .status(StatusCode::PARTIAL_CONTENT)
                .with(CONTENT_RANGE, &format!("bytes {from}-{}/{length}", from + count - 1)),
        };
        Ok(answer
            .with(CONTENT_DIGEST, digest.as_str())
            .with(ETAG, &format!("\"{digest}\""))
            .with(ACCEPT_RANGES, "bytes"))
    }

    fn delete_blob(&self, digest: &Digest) -> io::Result<Answer> {
        match fs::remove_file(self.store.blob_path(digest)) {
            Ok(()) => Ok(Answer::empty(StatusCode::ACCEPTED)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(unknown(digest)),
            Err(error) => Err(error),
        }
    }
}

fn unknown(digest: &Digest) -> Answer {
    let said = format!("blob {digest} not found");
    Answer::refusal(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", &said)
}
