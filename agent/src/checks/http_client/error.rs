//! Why a request has no answer, in the words of Go's client.

use crate::checks::dialer::DialError;

/// A request without an answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No answer came.
    #[error("Get {url:?}: {problem}")]
    Get {
        /// What was asked for.
        url: String,
        /// Why there was no answer.
        problem: Problem,
    },
    /// The body of an answer is incomplete.
    #[error("{0}")]
    Body(String),
}

/// Why there was no answer.
#[derive(Debug, thiserror::Error)]
pub enum Problem {
    /// There is no connection.
    #[error(transparent)]
    Dial(#[from] DialError),
    /// The server answered TLS with plain HTTP.
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
    /// A header has no valid name.
    #[error("net/http: invalid header field name {0:?}")]
    HeaderName(String),
    /// A header of that name has no valid value.
    #[error("net/http: invalid header field value for {0:?}")]
    HeaderValue(String),
    /// A redirect leads to no URL.
    #[error("failed to parse Location header {location:?}: {problem}")]
    Location {
        /// What the Location header says.
        location: String,
        /// Why it is no URL.
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
    /// The server speaks no TLS.
    #[must_use]
    pub fn is_plain_http(&self) -> bool {
        matches!(self, Self::Get { problem: Problem::PlainHttp, .. })
    }
}
