//! Errors of requests to the API server.

use std::time::Duration;

use fetch::FetchError;
use serde_json::Value;

/// A request that failed.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The server did not respond.
    #[error("failed to reach the API server")]
    Unreachable(#[source] FetchError),
    /// The server did not respond in time.
    #[error("the API server did not answer within {0:?}")]
    TimedOut(Duration),
    /// The token file cannot be used.
    #[error("failed to read token {path}: {problem}")]
    Token {
        /// The file's path.
        path: String,
        /// The problem.
        problem: String,
    },
    /// A credential plugin of the kubeconfig provided no credential.
    #[error("failed to get a credential from plugin {program}: {problem}")]
    Plugin {
        /// The program.
        program: String,
        /// The problem.
        problem: String,
    },
    /// A certificate cannot be used.
    #[error("failed to use the client certificate")]
    Certificate(#[source] fetch::TlsError),
    /// The server rejected the request.
    #[error("the API server answered {code} ({reason}): {message}")]
    Refused {
        /// The HTTP status code.
        code: u16,
        /// The reason in one CamelCase word; may be empty.
        reason: String,
        /// The server's message.
        message: String,
    },
    /// The response is not a valid API object.
    #[error("the API server's answer cannot be read: {0}")]
    Malformed(String),
}

impl ApiError {
    /// Parses an error response: a `Status` object, or any other body with this code.
    pub(crate) fn refused(code: u16, body: &[u8]) -> Self {
        match serde_json::from_slice::<Value>(body) {
            Ok(status) if status["kind"] == "Status" => Self::of_status(code, &status),
            Ok(_) | Err(_) => {
                let message = String::from_utf8_lossy(body).trim().chars().take(200).collect();
                Self::Refused { code, reason: String::new(), message }
            }
        }
    }

    /// Converts a `Status` object; `code` applies if the object has no code.
    pub(crate) fn of_status(code: u16, status: &Value) -> Self {
        let text = |field: &str| status[field].as_str().unwrap_or_default().to_owned();
        let own = status["code"].as_u64().and_then(|code| u16::try_from(code).ok());
        let (reason, message) = (text("reason"), text("message"));
        Self::Refused { code: own.unwrap_or(code), reason, message }
    }

    fn is(&self, wanted: u16) -> bool {
        matches!(self, Self::Refused { code, .. } if *code == wanted)
    }

    /// The object does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(404)
    }

    /// An object of this name already exists.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused { code: 409, reason, .. } if reason == "AlreadyExists")
    }

    /// The object does not match the request's precondition.
    #[must_use]
    pub fn is_conflict(&self) -> bool {
        self.is(409) && !self.is_already_exists()
    }

    /// The server does not accept the client's credentials.
    #[must_use]
    pub fn is_unauthorized(&self) -> bool {
        self.is(401)
    }

    /// The client lacks the permission.
    #[must_use]
    pub fn is_forbidden(&self) -> bool {
        self.is(403)
    }

    /// The server no longer has the requested resource version.
    #[must_use]
    pub fn is_expired(&self) -> bool {
        self.is(410)
    }

    /// The connection failed, or the server did not answer in time.
    #[must_use]
    pub fn has_no_response(&self) -> bool {
        matches!(self, Self::Unreachable(_) | Self::TimedOut(_))
    }

    /// Whether requests for other objects would fail as well: the server is unreachable or overloaded, or the client lacks usable
    /// credentials. Any other answer may concern one object only, such as that of an unavailable admission webhook (500).
    pub(crate) fn concerns_all_objects(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 429 | 502 | 503),
            Self::Malformed(_) => false,
            Self::Unreachable(_)
            | Self::TimedOut(_)
            | Self::Token { .. }
            | Self::Plugin { .. }
            | Self::Certificate(_) => true,
        }
    }

    /// Whether a repetition may soon succeed: the connection broke, or the server failed or is overloaded.
    pub(crate) fn is_transient(&self) -> bool {
        match self {
            Self::Refused { code, .. } => matches!(code, 429 | 500 | 504),
            Self::Unreachable(error) => {
                matches!(error, FetchError::Send(_) | FetchError::Body(_))
            }
            Self::TimedOut(_)
            | Self::Token { .. }
            | Self::Plugin { .. }
            | Self::Certificate(_)
            | Self::Malformed(_) => false,
        }
    }

    /// The server answered, and will answer the same again: nothing is gained by a repetition.
    #[must_use]
    pub fn is_final(&self) -> bool {
        matches!(self, Self::Refused { code: 400..=499, .. }) && !self.is(429)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_object_has_code_and_reason() {
        let body = br#"{"kind":"Status","reason":"AlreadyExists","message":"m","code":409}"#;
        let error = ApiError::refused(500, body);
        assert!(error.is_already_exists() && !error.is_conflict() && error.is_final());
        assert_eq!(error.to_string(), "the API server answered 409 (AlreadyExists): m");
        let conflict = ApiError::refused(409, br#"{"kind":"Status","reason":"Conflict"}"#);
        assert!(conflict.is_conflict() && !conflict.is_already_exists());
        let plain = ApiError::refused(502, b"bad gateway\n");
        assert_eq!(plain.to_string(), "the API server answered 502 (): bad gateway");
        assert!(!plain.is_final());
    }

    #[test]
    fn overload_and_server_failures_are_transient() {
        for (code, expected) in [(401, false), (403, false), (429, true), (500, true), (504, true)]
        {
            assert_eq!(ApiError::refused(code, b"no").is_transient(), expected, "{code}");
        }
        assert!(!ApiError::TimedOut(Duration::from_secs(10)).is_transient());
    }

    #[test]
    fn answer_about_one_object_does_not_concern_others() {
        for (code, expected) in
            [(409, false), (422, false), (429, true), (500, false), (503, true), (504, false)]
        {
            let error = ApiError::refused(code, b"no");
            assert_eq!(error.concerns_all_objects(), expected, "{code}");
        }
        assert!(!ApiError::Malformed("no".to_owned()).concerns_all_objects());
        assert!(ApiError::TimedOut(Duration::from_secs(60)).concerns_all_objects());
    }
}
