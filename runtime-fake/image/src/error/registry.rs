//! ◆ Why an image could not be pulled from a registry, in sentences that name it and say what to do.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use super::Problem;

/// What a failure says about trying again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The answer would be the same.
    Final,
    /// The connection broke, or the registry has trouble (5xx).
    Passing,
    /// Too many requests, or overload, with the pause that the registry asks for.
    Busy(Option<Duration>),
}

/// What went wrong between this runtime and one registry, or here.
#[derive(Debug, Clone, thiserror::Error)]
pub enum PullError {
    /// Nobody answers there.
    #[error(
        "registry {host} cannot be reached ({why}): check its name, that it runs, and whether it speaks {scheme}"
    )]
    Unreachable {
        /// Which.
        host: String,
        /// http or https.
        scheme: &'static str,
        /// The connection's word.
        why: String,
    },
    /// It broke off.
    #[error("registry {host} broke off ({why}) and did not recover while {doing}")]
    Broken {
        /// Which.
        host: String,
        /// What was being done.
        doing: String,
        /// The connection's word.
        why: String,
    },
    /// It has trouble, or wants to be left alone.
    #[error("registry {host} answered {status} while {doing}: try again later{}", said(.text))]
    ServerError {
        /// Which.
        host: String,
        /// What was being done.
        doing: String,
        /// The code and its name.
        status: String,
        /// What it said besides.
        text: String,
        /// How long it wants to be left alone.
        after: Option<Duration>,
    },
    /// Who are you?
    #[error(
        "registry {host} gives {repository} to nobody it does not know ({why}): check the image's name, and the \
         credentials of the pull (imagePullSecrets) or of the runtime's configuration{}", said(.text)
    )]
    Unauthenticated {
        /// Which.
        host: String,
        /// The repository.
        repository: String,
        /// Which credentials were tried.
        why: &'static str,
        /// What it said besides.
        text: String,
    },
    /// You may not.
    #[error("registry {host} does not allow {repository} to be pulled ({why}): ask its owner for the right to{}", said(.text))]
    Denied {
        /// Which.
        host: String,
        /// The repository.
        repository: String,
        /// Which credentials were tried.
        why: &'static str,
        /// What it said besides.
        text: String,
    },
    /// It has no such thing.
    #[error("registry {host} has no {what}: check the image's name and tag")]
    NotFound {
        /// Which.
        host: String,
        /// `a/b:1`, or a blob.
        what: String,
    },
    /// Another refusal.
    #[error("registry {host} answered {status} while {doing}{}", said(.text))]
    Refused {
        /// Which.
        host: String,
        /// What was being done.
        doing: String,
        /// The code and its name.
        status: String,
        /// What it said besides.
        text: String,
    },
    /// What it sent is not what it should be.
    #[error("what registry {host} sent for {image} was refused")]
    Content {
        /// Which.
        host: String,
        /// The image.
        image: String,
        /// Why.
        source: Arc<Problem>,
    },
    /// Nothing came for too long.
    #[error("registry {host} sent nothing for {} s while {doing}: the pull was given up", .patience.as_secs_f32())]
    Stalled {
        /// Which.
        host: String,
        /// What was being done.
        doing: String,
        /// How long it was waited for.
        patience: Duration,
    },
    /// The credentials cannot be had.
    #[error("the credentials for registry {host} cannot be had: {why}")]
    Credentials {
        /// Which.
        host: String,
        /// What is wrong with them.
        why: String,
    },
    /// The settings for the host cannot be used.
    #[error("the settings for registry {host} cannot be used: {why}")]
    Settings {
        /// Which.
        host: String,
        /// What is wrong with them.
        why: String,
    },
    /// This machine could not keep what came.
    #[error("could not {doing}")]
    Io {
        /// What was being done.
        doing: &'static str,
        /// The system's word.
        source: Arc<io::Error>,
    },
    /// Nobody waits for it any longer.
    #[error("the pull was cancelled")]
    Cancelled,
}

fn said(text: &str) -> String {
    if text.is_empty() {
        String::new()
    } else {
        format!(" (it says: {text})")
    }
}

impl PullError {
    /// Whether it is worth another try.
    pub(crate) fn fault(&self) -> Fault {
        match self {
            Self::Broken { .. } => Fault::Passing,
            Self::ServerError { after, .. } => Fault::Busy(*after),
            Self::Unreachable { .. }
            | Self::Unauthenticated { .. }
            | Self::Denied { .. }
            | Self::NotFound { .. }
            | Self::Refused { .. }
            | Self::Content { .. }
            | Self::Stalled { .. }
            | Self::Credentials { .. }
            | Self::Settings { .. }
            | Self::Io { .. }
            | Self::Cancelled => Fault::Final,
        }
    }

    /// Whether another registry that has the image could do better.
    pub(crate) fn is_the_registrys(&self) -> bool {
        !matches!(self, Self::Io { .. } | Self::Cancelled)
    }
}

/// Why an image could not be had from any place.
#[derive(Debug, thiserror::Error)]
#[error("image {reference} could not be pulled{}", also(.before))]
pub struct PullFailure {
    /// The full reference.
    pub reference: String,
    /// What image archives and mirrors said before.
    pub before: Vec<String>,
    /// The place asked last: the registry itself, unless only mirrors are asked.
    pub source: PullError,
}

fn also(before: &[String]) -> String {
    if before.is_empty() {
        String::new()
    } else {
        format!(" (before that: {})", before.join("; "))
    }
}
