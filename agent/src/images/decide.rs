//! ◆ Decides whether to use an image, pull it or wait, from its name, the pull policy and earlier failures.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/images/image_manager.go.

use std::time::Duration;

use api::pod::PodUid;
use compact::Map;
use jiff::Timestamp;

use super::events::ImageEvent;
use super::reference;
use crate::clock::{after, until};
use crate::cri::{Code, CriError};

/// `imagePullPolicy`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PullPolicy {
    /// Pull on every start.
    Always,
    /// Pull if the image does not exist.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// Returns the policy of that name; defaulted manifests always have one.
    pub fn of(name: Option<&str>) -> Self {
        match name {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some(_) | None => Self::IfNotPresent,
        }
    }

    /// Its name in lower case, as in a kubelet's metrics.
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::IfNotPresent => "ifnotpresent",
            Self::Never => "never",
        }
    }
}

/// The reason of a pull that waits for the back-off of an earlier one.
pub(crate) const PULL_BACKOFF: &str = "ImagePullBackOff";

/// Why a container has no image yet, as shown in its waiting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PullError {
    /// The waiting reason: `ErrImagePull`, or in a few cases an error text, as in a kubelet.
    pub reason: Box<str>,
    /// The error text.
    pub message: String,
    /// The earliest time of the next attempt.
    pub until: Option<Timestamp>,
    /// Whether every retry fails too, because of the name itself.
    pub refused: bool,
}

impl PullError {
    fn new(reason: &'static str, message: String) -> Self {
        Self { reason: reason.into(), message, until: None, refused: false }
    }

    /// The same error with `refused` set.
    fn refused_if(self, refused: bool) -> Self {
        Self { refused, ..self }
    }

    /// A pull that could not begin: its error is the reason.
    pub(crate) fn unstarted(error: String, message: String) -> Self {
        Self { reason: error.into_boxed_str(), message, until: None, refused: false }
    }
}

/// An error and the event that reports it.
pub(crate) type Reported = (PullError, ImageEvent);

/// The key of an image's back-off. It contains pod and image, so that an updated pod does not wait for its previous image, and no
/// pod waits for another.
pub(crate) fn backoff_key(uid: &PodUid, image: &str) -> String {
    format!("{uid}_{image}")
}

/// Back-off of failed pulls, by [`backoff_key`].
#[derive(Clone, Debug)]
pub(crate) struct PullBackoff {
    first: Duration,
    max: Duration,
    entries: Map<String, FailedPull>,
}

#[derive(Clone, Debug)]
struct FailedPull {
    delay: Duration,
    at: Timestamp,
    what: String,
    refused: bool,
}

impl PullBackoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self { first, max, entries: Map::new() }
    }

    /// Records a failed pull: the delay starts at `first` and doubles with each further failure.
    pub(crate) fn failed(&mut self, key: &str, error: &PullError, now: Timestamp) {
        let delay = match self.entries.get(key) {
            Some(failure) if until(failure.at, now) <= self.max * 2 => {
                (failure.delay * 2).min(self.max)
            }
            Some(_) | None => self.first,
        };
        let what = format!("{}: {}", error.reason, error.message);
        self.entries
            .insert(key.to_owned(), FailedPull { delay, at: now, what, refused: error.refused });
    }

    /// The end of the running back-off and the last failure; `None` if none is running.
    fn waiting(&self, key: &str, now: Timestamp) -> Option<(Timestamp, &FailedPull)> {
        let failure = self.entries.get(key)?;
        (until(failure.at, now) < failure.delay)
            .then(|| (after(failure.at, failure.delay), failure))
    }

    /// The current delay; zero if there is none.
    pub(crate) fn delay(&self, key: &str) -> Duration {
        self.entries.get(key).map_or(Duration::ZERO, |failure| failure.delay)
    }

    /// Drops expired entries. Call it after a successful pull.
    pub(crate) fn forget_old(&mut self, now: Timestamp) {
        let limit = self.max * 2;
        self.entries.retain(|_, failure| until(failure.at, now) <= limit);
    }
}

/// The image's name as passed to the runtime.
pub(crate) fn name_for_runtime(image: &str) -> Result<String, Reported> {
    reference::with_default_tag(image).map_err(|message| {
        let event = ImageEvent::inspect_failed(message.clone());
        let error = PullError::new("InvalidImageName", message);
        (error.refused_if(true), event)
    })
}

/// The reference of a present image, from the response of ImageStatus; `None`: it is absent.
pub(crate) fn inspected<T>(answer: Result<Option<T>, CriError>) -> Result<Option<T>, Reported> {
    answer.map_err(|error| {
        let message = format!("Failed to inspect image \"\": {}", error.go_text());
        let event = ImageEvent::inspect_failed(message.clone());
        let refused = error.is_refusal();
        let error = PullError::new("ImageInspectError", message);
        (error.refused_if(refused), event)
    })
}

/// Decides about an image that is absent, or present but not usable by this pod without a pull. The error for `Never` is the same
/// in both cases, so that it does not reveal which images are present.
pub(crate) fn may_pull(image: &str, policy: PullPolicy) -> Result<(), Reported> {
    match policy {
        PullPolicy::Never => {
            let message =
                format!("Container image \"{image}\" is not present with pull policy of Never");
            let event = ImageEvent::never_pull(message.clone());
            Err((PullError::new("ErrImageNeverPull", message), event))
        }
        PullPolicy::Always | PullPolicy::IfNotPresent => Ok(()),
    }
}

/// Fails while an earlier failure's back-off runs.
pub(crate) fn backed_off(
    image: &str,
    backoff: &PullBackoff,
    key: &str,
    now: Timestamp,
) -> Result<(), Reported> {
    let Some((end, failure)) = backoff.waiting(key, now) else {
        return Ok(());
    };
    let what = &failure.what;
    let error = PullError {
        reason: PULL_BACKOFF.into(),
        message: format!("Back-off pulling image \"{image}\": {what}"),
        until: Some(end),
        refused: failure.refused,
    };
    Err((error, ImageEvent::back_off(image)))
}

/// The error of a pull whose attempts, one for each credential, all failed. `refused`: no credential could succeed.
pub(crate) fn pull_failed(image: &str, attempts: &[String], refused: bool) -> Reported {
    let mut different: Vec<&str> = Vec::new();
    for attempt in attempts {
        if !different.contains(&attempt.as_str()) {
            different.push(attempt);
        }
    }
    let text = match different[..] {
        [one] => one.to_owned(),
        _ => format!("[{}]", different.join(", ")),
    };
    (pull_error(image, &text).refused_if(refused), ImageEvent::pull_failed(image, &text))
}

/// Maps the error of a pull to its reason. Runtimes mark two kinds with a prefix (cri-api, errors).
fn pull_error(image: &str, error: &str) -> PullError {
    let kinds = [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ];
    for (reason, phrase) in kinds {
        if let Some(rest) = error.strip_prefix(reason) {
            return PullError::new(
                reason,
                format!("image pull failed for {image} because {phrase}{rest}"),
            );
        }
    }
    PullError::new("ErrImagePull", error.to_owned())
}

/// The error of PullImage as a kubelet shows it: without an uninformative code.
pub(crate) fn pull_error_text(error: &CriError) -> String {
    match error.code {
        Code::Unknown => error.message.clone(),
        Code::NotFound
        | Code::Unimplemented
        | Code::DeadlineExceeded
        | Code::Unavailable
        | Code::InvalidArgument
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::PermissionDenied
        | Code::ResourceExhausted
        | Code::Cancelled
        | Code::Unauthenticated
        | Code::Aborted
        | Code::OutOfRange
        | Code::DataLoss
        | Code::Internal
        | Code::InvalidResponse => error.go_text(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn refused_name_is_refused_while_its_back_off_runs_too() {
        let mut failures = PullBackoff::new(Duration::from_secs(10), Duration::from_secs(300));
        for refused in [true, false] {
            let (error, _) = pull_failed("i", &["no such script".to_owned()], refused);
            assert_eq!((error.reason.as_ref(), error.refused), ("ErrImagePull", refused));
            failures.failed("k", &error, Timestamp::UNIX_EPOCH);
            let (error, _) = backed_off("i", &failures, "k", Timestamp::UNIX_EPOCH).unwrap_err();
            assert_eq!((error.reason.as_ref(), error.refused), ("ImagePullBackOff", refused));
        }
        assert!(name_for_runtime("Not An Image").unwrap_err().0.refused);
    }

    #[test]
    fn old_pull_failures_are_forgotten() {
        let mut failures = PullBackoff::new(Duration::from_secs(10), Duration::from_secs(300));
        let error = PullError::unstarted(String::new(), String::new());
        failures.failed("k", &error, Timestamp::UNIX_EPOCH);
        failures.forget_old(after(Timestamp::UNIX_EPOCH, Duration::from_secs(600)));
        assert_eq!(failures.delay("k").as_secs(), 10);
        failures.forget_old(after(Timestamp::UNIX_EPOCH, Duration::from_secs(601)));
        assert_eq!(failures.delay("k").as_secs(), 0);
    }

    #[test]
    fn different_errors_of_credentials_are_listed_once() {
        let attempts = ["a", "b", "a"].map(str::to_owned);
        assert_eq!(pull_failed("x", &attempts, false).0.message, "[a, b]");
        assert_eq!(pull_failed("x", &attempts[..1], false).0.message, "a");
        let same = ["RegistryUnavailable", "RegistryUnavailable"].map(str::to_owned);
        assert_eq!(&*pull_failed("x", &same, false).0.reason, "RegistryUnavailable");
    }
}
