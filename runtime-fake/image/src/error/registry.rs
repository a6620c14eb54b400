//! ◆ Errors of pulls from a registry: each message names the registry and what the user can do.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::ContentError;

/// Whether a request that failed is retried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Retryability {
    /// The request would fail again.
    Permanent,
    /// The connection broke, or the registry has a temporary error (5xx).
    Transient,
    /// Too many requests, or overload, with the delay from `Retry-After`.
    Throttled(Option<Duration>),
}

/// Why a pull from one registry failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    /// The registry is unreachable.
    #[error(
        "registry {host} is unreachable ({why}): check its name, that it is running, and that it serves {scheme}"
    )]
    Unreachable {
        /// The registry.
        host: String,
        /// http or https.
        scheme: &'static str,
        /// The connection's error.
        why: String,
    },
    /// The connection broke.
    #[error("connection to registry {host} was lost while {doing} ({why})")]
    Broken {
        /// The registry.
        host: String,
        /// The operation that failed.
        doing: String,
        /// The connection's error.
        why: String,
    },
    /// The registry has an error of its own, or limits requests.
    #[error("registry {host} answered {status} while {doing}: try again later{}", said(.text))]
    ServerError {
        /// The registry.
        host: String,
        /// The operation that failed.
        doing: String,
        /// The status code and its name.
        status: String,
        /// The registry's message.
        text: String,
        /// The delay from `Retry-After`.
        after: Option<Duration>,
    },
    /// The registry requires other credentials (401).
    #[error(
        "registry {host} requires other credentials for {repository} ({why}): check the image's name, and the \
         credentials of the pull (imagePullSecrets) or of the runtime's configuration{}", said(.text)
    )]
    Unauthenticated {
        /// The registry.
        host: String,
        /// The repository.
        repository: String,
        /// Which credentials were tried.
        why: &'static str,
        /// The registry's message.
        text: String,
    },
    /// The registry denied access (403).
    #[error("registry {host} does not allow {repository} to be pulled ({why}): ask its owner for the right to{}", said(.text))]
    Denied {
        /// The registry.
        host: String,
        /// The repository.
        repository: String,
        /// Which credentials were tried.
        why: &'static str,
        /// The registry's message.
        text: String,
    },
    /// The registry does not have the image or blob.
    #[error("registry {host} has no {what}: check the image's name and tag")]
    NotFound {
        /// The registry.
        host: String,
        /// `a/b:1`, or a blob.
        what: String,
    },
    /// Any other error status.
    #[error("registry {host} answered {status} while {doing}{}", said(.text))]
    Refused {
        /// The registry.
        host: String,
        /// The operation that failed.
        doing: String,
        /// The status code and its name.
        status: String,
        /// The registry's message.
        text: String,
    },
    /// The registry sent invalid content.
    #[error("registry {host} sent invalid content for {image}")]
    Content {
        /// The registry.
        host: String,
        /// The image.
        image: String,
        /// The reason.
        source: Arc<ContentError>,
    },
    /// The registry sent nothing until the timeout.
    #[error("registry {host} sent nothing for {} s while {doing}: the pull was aborted", .patience.as_secs_f32())]
    Stalled {
        /// The registry.
        host: String,
        /// The operation that failed.
        doing: String,
        /// The timeout.
        patience: Duration,
    },
    /// The registry sent too little until the timeout.
    #[error("registry {host} sent less than 1 KiB/s for {} s while {doing}: the pull was aborted", .patience.as_secs_f32())]
    Dripping {
        /// The registry.
        host: String,
        /// The operation that failed.
        doing: String,
        /// The timeout.
        patience: Duration,
    },
    /// The credentials could not be obtained.
    #[error("failed to get the credentials for registry {host}: {why}")]
    Credentials {
        /// The registry.
        host: String,
        /// The reason.
        why: String,
    },
    /// The settings for the host are invalid.
    #[error("invalid settings for registry {host}: {why}")]
    Settings {
        /// The registry.
        host: String,
        /// The reason.
        why: String,
    },
    /// An operation on this machine failed.
    #[error("failed to {doing}")]
    Io {
        /// The operation that failed.
        doing: &'static str,
        /// The operating system's error.
        source: Arc<io::Error>,
    },
    /// The caller cancelled the pull.
    #[error("the pull was cancelled")]
    Cancelled,
}

fn said(text: &str) -> String {
    if text.is_empty() { String::new() } else { format!(" (registry message: {text})") }
}

impl PullError {
    /// Whether a retry may succeed.
    pub(crate) fn retryability(&self) -> Retryability {
        match self {
            Self::Broken { .. } => Retryability::Transient,
            Self::ServerError { after, .. } => Retryability::Throttled(*after),
            Self::Unreachable { .. }
            | Self::Unauthenticated { .. }
            | Self::Denied { .. }
            | Self::NotFound { .. }
            | Self::Refused { .. }
            | Self::Content { .. }
            | Self::Stalled { .. }
            | Self::Dripping { .. }
            | Self::Credentials { .. }
            | Self::Settings { .. }
            | Self::Io { .. }
            | Self::Cancelled => Retryability::Permanent,
        }
    }

    /// Whether another registry that has the image may succeed.
    pub(crate) fn may_succeed_elsewhere(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Cancelled)
    }
}

/// Why every source of an image failed.
#[derive(Debug, thiserror::Error)]
#[error("image {reference} could not be pulled{}", also(.before))]
pub struct PullFailure {
    /// The full reference.
    pub reference: String,
    /// The errors of image archives and mirrors before.
    pub before: Vec<String>,
    /// The error of the last source: the registry itself, unless only mirrors are used.
    pub source: PullError,
}

fn also(before: &[String]) -> String {
    if before.is_empty() {
        String::new()
    } else {
        format!(" (earlier errors: {})", before.join("; "))
    }
}
