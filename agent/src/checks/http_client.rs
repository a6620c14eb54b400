//! Sends the requests of probes and lifecycle hooks: HTTP/1.1, one connection each, certificates unverified.
//!
//! Source: Kubernetes 1.36, pkg/probe/http/http.go. The error messages are those of Go's net/http.

mod error;
mod redirect;
mod tls;

use std::pin::Pin;
use std::time::Duration;

use fetch::Url;
use http::header::{AUTHORIZATION, CONNECTION, HOST, HeaderName, HeaderValue, USER_AGENT};
use http::{Method, Request, Response};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::{Body as _, Bytes, Incoming};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::{Instant, timeout_at};

use crate::checks::dialer::{self, Connection, Dialer};
use crate::checks::http_action::HttpRequest;
pub use error::{HttpError, Problem};
use redirect::{Follow, follow};

/// The maximum number of bytes that are read from a body.
const MAX_BODY: usize = 10 * 1024;
/// Headers that the client derives from other parts of the request.
const DERIVED: [&str; 5] = ["Host", "User-Agent", "Content-Length", "Transfer-Encoding", "Trailer"];

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    /// Its status code.
    pub status: u16,
    /// The first 10 KiB of its body.
    pub body: Vec<u8>,
}

/// Sends a request and follows redirects on the same host; a redirect to another host is returned as the response. The timeout
/// covers all requests.
///
/// # Errors
///
/// If there is no response, or its body ends too early.
pub async fn send(
    dialer: &dyn Dialer,
    request: &HttpRequest,
    timeout: Option<Duration>,
) -> Result<HttpAnswer, HttpError> {
    let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let (response, mut driver) = respond(dialer, request, deadline).await?;
    let status = response.status().as_u16();
    let text =
        "context deadline exceeded (Client.Timeout or context cancellation while reading body)";
    let body = before(deadline, driven(&mut driver, body(response.into_body())))
        .await
        .unwrap_or_else(|| Err(HttpError::Body(text.to_owned())))?;
    Ok(HttpAnswer { status, body })
}

/// Sends a request of a lifecycle hook, and follows redirects as [`send`] does. Any response is a success. The first 10 KiB of its
/// body are read and discarded without a time limit, unless the server announces a longer body.
///
/// Source: Kubernetes 1.36, pkg/kubelet/lifecycle/handlers.go discardHTTPRespBody.
///
/// # Errors
///
/// If there is no response.
pub async fn send_hook(dialer: &dyn Dialer, request: &HttpRequest) -> Result<(), HttpError> {
    let (response, mut driver) = respond(dialer, request, None).await?;
    let length = response.body().size_hint().exact().map(usize::try_from);
    if length.is_none_or(|length| length.is_ok_and(|length| length <= MAX_BODY)) {
        let _ = driven(&mut driver, body(response.into_body())).await;
    }
    Ok(())
}

/// Sends a request, follows redirects, and reads the response up to the end of the headers.
async fn respond(
    dialer: &dyn Dialer,
    request: &HttpRequest,
    deadline: Option<Instant>,
) -> Result<Answered, HttpError> {
    let mut hop = request.clone();
    let mut hops = 1;
    loop {
        let url = hop.url.redacted();
        let failed = |problem| HttpError::Get { url: url.clone(), problem };
        let (response, driver) = before(deadline, exchange(dialer, &hop))
            .await
            .unwrap_or(Err(Problem::Timeout))
            .map_err(failed)?;
        match follow(request, &hop, &response, hops).map_err(failed)? {
            Follow::To(next) => hop = *next,
            Follow::TooMany(url) => {
                let problem = Problem::Redirects;
                return Err(HttpError::Get { url, problem });
            }
            Follow::Stop => return Ok((response, driver)),
        }
        hops += 1;
    }
}

/// The output of `work`; `None` if the deadline passes first.
async fn before<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => timeout_at(deadline, work).await.ok(),
        None => Some(work.await),
    }
}

/// A response whose body is not yet read, and its connection.
type Answered = (Response<Incoming>, Option<Driver>);

/// Reads and writes a connection until it ends, which it does after the response.
type Driver = Pin<Box<http1::Connection<TokioIo<Box<dyn Connection>>, Empty<Bytes>>>>;

/// Sends one request on its own connection and reads the response up to the end of the headers.
async fn exchange(dialer: &dyn Dialer, request: &HttpRequest) -> Result<Answered, Problem> {
    let message = message(request)?;
    let url = &request.url;
    let (scheme, host) = (url.scheme(), url.hostname());
    let port = url.port().ok_or_else(|| Problem::Scheme(scheme.to_owned()))?;
    let plain = dialer::dial(dialer, &host, port).await?;
    let stream: Box<dyn Connection> =
        if scheme == "https" { tls::wrap(plain, &host).await? } else { plain };
    let (mut sender, connection) = http1::Builder::new()
        .title_case_headers(true)
        .handshake(TokioIo::new(stream))
        .await
        .map_err(|error| Problem::Protocol(error_text(&error)))?;
    let mut driver: Option<Driver> = Some(Box::pin(connection));
    let response = driven(&mut driver, sender.send_request(message)).await;
    let response = response.map_err(|error| Problem::Protocol(error_text(&error)))?;
    Ok((response, driver))
}

/// Runs `work` while driving the connection. An error of the connection is returned as an error of the work.
async fn driven<T>(driver: &mut Option<Driver>, work: impl Future<Output = T>) -> T {
    tokio::pin!(work);
    if let Some(connection) = driver {
        tokio::select! {
            biased;
            output = &mut work => return output,
            _ = connection => {}
        }
        *driver = None;
    }
    work.await
}

/// The request as it is sent: without the headers that the client derives.
fn message(request: &HttpRequest) -> Result<Request<Empty<Bytes>>, Problem> {
    let url = &request.url;
    if !matches!(url.scheme(), "http" | "https") {
        return Err(Problem::Scheme(url.scheme().to_owned()));
    }
    if url.authority().is_empty() {
        return Err(Problem::NoHost);
    }
    let mut message = Request::new(Empty::new());
    *message.method_mut() = Method::GET;
    *message.uri_mut() = uri(url)?;
    let headers = message.headers_mut();
    headers.insert(HOST, host_header(request));
    let value = |name: &str, value: &str| {
        HeaderValue::from_bytes(value.as_bytes()).map_err(|_| Problem::HeaderValue(name.to_owned()))
    };
    let agent = request.headers.get("User-Agent").and_then(|values| values.first());
    if let Some(agent) = agent.filter(|agent| !agent.is_empty()) {
        headers.insert(USER_AGENT, value("User-Agent", agent)?);
    }
    for (name, values) in &request.headers {
        if DERIVED.contains(&name.as_str()) {
            continue;
        }
        let parsed = HeaderName::from_bytes(name.as_bytes());
        let parsed = parsed.map_err(|_| Problem::HeaderName(name.clone()))?;
        for text in values {
            headers.append(parsed.clone(), value(name, text)?);
        }
    }
    if let Some((name, password)) = url.user()
        && !request.headers.contains_key("Authorization")
    {
        headers.insert(AUTHORIZATION, fetch::basic(name, password));
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(message)
}

/// The target of the request. Characters that the HTTP library rejects are escaped.
fn uri(url: &Url) -> Result<http::Uri, Problem> {
    let text = url.request_uri();
    let parsed = text.parse().or_else(|_| url.escaped_request_uri().parse());
    parsed.map_err(|error: http::uri::InvalidUri| Problem::Protocol(error.to_string()))
}

/// The Host header: the given one, or else the URL's; empty if it is not a valid host.
fn host_header(request: &HttpRequest) -> HeaderValue {
    let host = request.host_header.clone().unwrap_or_else(|| request.url.authority());
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"!$%&()*+,-.:;=[']_~".contains(&byte);
    let valid = Some(host).filter(|host| host.bytes().all(plain));
    let value = valid.and_then(|host| HeaderValue::from_str(&host).ok());
    value.unwrap_or_else(|| HeaderValue::from_static(""))
}

/// The first 10 KiB of a body.
async fn body(mut incoming: Incoming) -> Result<Vec<u8>, HttpError> {
    let mut bytes = Vec::new();
    while bytes.len() < MAX_BODY {
        let Some(frame) = incoming.frame().await else {
            break;
        };
        let frame = frame.map_err(|error| HttpError::Body(error_text(&error)))?;
        if let Some(data) = frame.data_ref() {
            bytes.extend_from_slice(data);
        }
    }
    bytes.truncate(MAX_BODY);
    Ok(bytes)
}

/// An error of the HTTP library, worded as by Go's.
fn error_text(error: &hyper::Error) -> String {
    use std::error::Error as _;

    if error.is_incomplete_message() {
        return "EOF".to_owned();
    }
    if error.is_parse() {
        return format!("malformed HTTP response: {error}");
    }
    let cause = error.source().and_then(|cause| cause.downcast_ref::<std::io::Error>());
    match cause {
        Some(cause) if cause.kind() == std::io::ErrorKind::UnexpectedEof => {
            "unexpected EOF".to_owned()
        }
        Some(cause) => dialer::go_error_text(cause),
        None => error.to_string(),
    }
}

#[cfg(test)]
mod tests;
