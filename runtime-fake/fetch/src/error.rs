//! Errors of requests without a complete response.

use std::error::Error;
use std::fmt;
use std::io;
use std::time::Duration;

use hyper_util::client::legacy;

use crate::connector::ConnectTimeout;

/// A request without a complete response.
#[derive(Debug)]
pub enum FetchError {
    /// The URL cannot be requested.
    Url(String),
    /// The server, or the proxy in front of it, cannot be reached, or its TLS cannot be verified.
    Connect(legacy::Error),
    /// The connection broke before the response.
    Send(legacy::Error),
    /// The connection broke within the response's body.
    Body(hyper::Error),
    /// No data arrived for this long.
    Silence(Duration),
}

impl FetchError {
    pub(crate) fn of_request(error: legacy::Error) -> Self {
        if error.is_connect() { Self::Connect(error) } else { Self::Send(error) }
    }

    /// Whether there was no connection.
    #[must_use]
    pub fn is_connect(&self) -> bool {
        matches!(self, Self::Connect(_))
    }

    /// Whether a timeout expired, this client's or the kernel's.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        if matches!(self, Self::Silence(_)) {
            return true;
        }
        let mut cause = self.source();
        while let Some(error) = cause {
            let io = error.downcast_ref::<io::Error>().map(io::Error::kind);
            if error.is::<ConnectTimeout>() || io == Some(io::ErrorKind::TimedOut) {
                return true;
            }
            cause = error.source();
        }
        false
    }
}

impl fmt::Display for FetchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Url(url) => write!(f, "{url} cannot be requested"),
            Self::Connect(_) => f.write_str("failed to connect"),
            Self::Send(_) => f.write_str("failed to send request"),
            Self::Body(_) => f.write_str("failed to read response"),
            Self::Silence(limit) => write!(f, "no response for {limit:?}"),
        }
    }
}

impl Error for FetchError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            Self::Url(_) | Self::Silence(_) => None,
            // Its own text adds no information.
            Self::Connect(error) | Self::Send(error) => error.source(),
            Self::Body(error) => Some(error),
        }
    }
}
