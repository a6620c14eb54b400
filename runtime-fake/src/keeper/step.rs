//! Errors of set-up, each with what was being done.

use std::{fmt::Display, io};

use super::protocol::{Failure, FailureKind};

/// The result of one step of a container's set-up.
pub(super) type Step<T = ()> = Result<T, Failure>;

/// Says what was being done when an error came.
pub(super) trait Doing<T> {
    /// The error as a failure of the box: `what` completes "failed to …".
    fn doing(self, what: impl Display) -> Step<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for Result<T, E> {
    fn doing(self, what: impl Display) -> Step<T> {
        self.map_err(|error| {
            let error: io::Error = error.into();
            Failure::new(
                FailureKind::System,
                format!("failed to {what}: {}", plain(&error)),
            )
        })
    }
}

/// An error's text without the number that the standard library puts behind it.
pub(crate) fn plain(error: &io::Error) -> String {
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
