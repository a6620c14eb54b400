//! Why a request failed, in the words of Go's client.

use crate::checks::dialer::DialError;

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// There was no response.
    #[error("Get {url:?}: {problem}")]
    Get {
        /// The URL of the request.
        url: String,
        /// Why there was no response.
        problem: Problem,
    },
    /// The body of the response is incomplete.
    #[error("{0}")]
    Body(String),
}

/// Why there was no response.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// The connection failed.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server answered the TLS handshake with plain HTTP.
    #[error("http: server gave HTTP response to HTTPS client")]
    PlainHttp,
    /// The TLS handshake failed.
    #[error("{0}")]
    Tls(String),
    /// The timeout passed.
    #[error("context deadline exceeded (Client.Timeout exceeded while awaiting headers)")]
    Timeout,
    /// The URL names no host.
    #[error("http: no Host in request URL")]
    NoHost,
    /// The scheme is neither http nor https.
    #[error("unsupported protocol scheme {0:?}")]
    Scheme(String),
    /// A header has an invalid name.
    #[error("net/http: invalid header field name {0:?}")]
    HeaderName(String),
    /// The header of this name has an invalid value.
    #[error("net/http: invalid header field value for {0:?}")]
    HeaderValue(String),
    /// A redirect's Location is not a valid URL.
    #[error("failed to parse Location header {location:?}: {problem}")]
    Location {
        /// The value of the Location header.
        location: String,
        /// Why it is invalid.
        problem: String,
    },
    /// There were too many redirects.
    #[error("stopped after 10 redirects")]
    Redirects,
    /// The server does not speak HTTP/1.
    #[error("{0}")]
    Protocol(String),
}

impl HttpError {
    /// Whether the server answered the TLS handshake with plain HTTP.
    #[must_use]
    pub fn is_plain_http(&self) -> bool {
        matches!(self, Self::Get { problem: Problem::PlainHttp, .. })
    }
}
