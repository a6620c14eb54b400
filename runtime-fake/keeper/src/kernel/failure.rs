//! Why a keeper's call fails, with the operation that failed.

use std::{fmt::Display, io};

use serde::{Deserialize, Serialize};

/// Why a call failed.
#[derive(Debug, Clone, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The kind of failure.
    pub kind: FailureKind,
    /// The message, a sentence.
    pub message: String,
}

/// The kinds of failure that the daemon treats differently.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// The request does not fit the container: a wrong user, path or capability.
    Invalid,
    /// The request names something that the host does not have yet: the same request can succeed later.
    NotInstalled,
    /// The keeper has no such container.
    NotFound,
    /// The container is in another state.
    WrongState,
    /// The host does not support overlayfs on the image: it has to be copied.
    NoOverlay,
    /// mount(2) has no room for the layers of the image: it has to be copied for this container.
    TooManyLayers,
    /// The host does not support idmapped mounts of the image: it has to be copied for this container.
    NoIdMap,
    /// criu failed to restore the processes.
    NotRestored,
    /// The keeper did not answer in time.
    Silent,
    /// The connection failed. The keeper may still live.
    Disconnected,
    /// Any other error of the host.
    System,
}

impl Failure {
    /// Makes a failure of this kind; the message is a sentence fragment.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// Whether the keeper tried the call and will not try again. Otherwise it has not tried, or the outcome is unknown.
    pub fn is_final(&self) -> bool {
        !matches!(
            self.kind,
            FailureKind::WrongState
                | FailureKind::NotFound
                | FailureKind::Silent
                | FailureKind::Disconnected
        )
    }
}

/// The result of one step of a container's set-up.
pub type Step<T = ()> = Result<T, Failure>;

/// Adds the failed operation to an error, like anyhow's `Context`.
pub trait Context<T> {
    /// Turns the error into [`FailureKind::System`]; `what` completes "failed to …".
    fn context(self, what: impl Display) -> Step<T>;
}

impl<T, E: Into<io::Error>> Context<T> for Result<T, E> {
    fn context(self, what: impl Display) -> Step<T> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            Failure::new(FailureKind::System, format!("failed to {what}: {}", plain(&error)))
        })
    }
}

/// An error's text without the number that the standard library appends.
pub fn plain(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(number) => {
            let errno = nix::errno::Errno::from_raw(number);
            lower_first(errno.desc())
        }
        None => error.to_string(),
    }
}

fn lower_first(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// An error with its causes, on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}
