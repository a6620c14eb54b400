//! Why the store rejects a read or a write, in an API server's words.

use thiserror::Error;

use crate::key::Key;

/// Why the store rejects a request. Messages are Kubernetes' own if it has them (1.36,
/// staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go), because its clients match them.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// The object does not exist.
    #[error("{} {:?} not found", .0.kind.resource(), .0.name)]
    NotFound(Key),
    /// An object with this name exists.
    #[error("{} {:?} already exists", .0.kind.resource(), .0.name)]
    AlreadyExists(Key),
    /// The object differs from what the write expects.
    #[error("Operation cannot be fulfilled on {} {:?}: {why}", .key.kind.resource(), .key.name)]
    Conflict {
        /// The object.
        key: Key,
        /// The difference.
        why: String,
    },
    /// The object would be invalid.
    #[error("{} {:?} is invalid: {why}", .key.kind, .key.name)]
    Invalid {
        /// The object.
        key: Key,
        /// The field, and its error.
        why: String,
    },
    /// The kind does not support this type of patch.
    #[error(
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )]
    UnsupportedMediaType,
    /// The request is invalid.
    #[error("{0}")]
    BadRequest(String),
    /// The history does not reach back to this version: list again.
    #[error("too old resource version: {requested} ({oldest})")]
    Expired {
        /// The requested version.
        requested: u64,
        /// The oldest version after which a watch can begin.
        oldest: u64,
    },
}

/// The message of a conflict with another write.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Error {
    /// The reason in a status, and the HTTP code.
    #[must_use]
    pub fn reason(&self) -> (&'static str, u16) {
        match self {
            Self::NotFound(_) => ("NotFound", 404),
            Self::AlreadyExists(_) => ("AlreadyExists", 409),
            Self::Conflict { .. } => ("Conflict", 409),
            Self::Invalid { .. } => ("Invalid", 422),
            Self::UnsupportedMediaType => ("UnsupportedMediaType", 415),
            Self::BadRequest(_) => ("BadRequest", 400),
            Self::Expired { .. } => ("Expired", 410),
        }
    }

    pub(crate) fn conflict(key: &Key, why: impl Into<String>) -> Self {
        Self::Conflict { key: key.clone(), why: why.into() }
    }

    pub(crate) fn invalid(key: &Key, why: impl Into<String>) -> Self {
        Self::Invalid { key: key.clone(), why: why.into() }
    }
}
