//! Why the store refuses a read or a write, in an API server's words.

use thiserror::Error;

use crate::key::Key;

/// Why the store refuses something. Messages are Kubernetes' own where it has them
/// (1.36, staging/src/k8s.io/apimachinery/pkg/api/errors/errors.go), because its clients look for them.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum Error {
    /// There is no such object.
    #[error("{} {:?} not found", .0.kind.resource(), .0.name)]
    NotFound(Key),
    /// There is an object of that name.
    #[error("{} {:?} already exists", .0.kind.resource(), .0.name)]
    AlreadyExists(Key),
    /// The object is not as the write expects it.
    #[error("Operation cannot be fulfilled on {} {:?}: {why}", .key.kind.resource(), .key.name)]
    Conflict {
        /// The object.
        key: Key,
        /// What differs.
        why: String,
    },
    /// The object would not be valid.
    #[error("{} {:?} is invalid: {why}", .key.kind, .key.name)]
    Invalid {
        /// The object.
        key: Key,
        /// The field, and what is wrong with it.
        why: String,
    },
    /// The patch is not of a kind that the object's kind has.
    #[error(
        "the body of the request was in an unknown format - accepted media types include: application/json-patch+json, application/merge-patch+json, application/apply-patch+yaml"
    )]
    UnsupportedMediaType,
    /// The request makes no sense.
    #[error("{0}")]
    BadRequest(String),
    /// The history does not reach back that far: list again.
    #[error("too old resource version: {asked} ({oldest})")]
    Expired {
        /// The version asked for.
        asked: u64,
        /// The oldest one that a watch can begin after.
        oldest: u64,
    },
}

/// The message of a conflict with another write.
pub(crate) const MODIFIED: &str =
    "the object has been modified; please apply your changes to the latest version and try again";

impl Error {
    /// The reason in a status, and its HTTP code.
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
