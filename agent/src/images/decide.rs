//! Decides whether to use an image, pull it or wait, from its name, the pull policy and earlier failures.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/images/image_manager.go.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;

use crate::clock::{after, until};

/// `imagePullPolicy`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PullPolicy {
    /// Pull on every start.
    Always,
    /// Pull if the image does not exist.
    IfNotPresent,
    /// Never pull.
    Never,
}

impl PullPolicy {
    /// Returns the policy of that name; defaulted manifests always have one.
    pub(crate) fn of(name: Option<&str>) -> Self {
        match name {
            Some("Always") => Self::Always,
            Some("Never") => Self::Never,
            Some(_) | None => Self::IfNotPresent,
        }
    }
}

/// Why a container has no image yet, as shown in its waiting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PullError {
    /// The waiting reason, for example `ErrImagePull`.
    pub(crate) reason: &'static str,
    /// The error text.
    pub(crate) message: String,
    /// The earliest time of the next attempt.
    pub(crate) until: Option<Timestamp>,
}

impl PullError {
    fn new(reason: &'static str, message: String) -> Self {
        Self {
            reason,
            message,
            until: None,
        }
    }
}

/// What to do about an image.
#[must_use]
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    /// Use the image with this reference.
    Use(String),
    /// Pull the image.
    Pull,
    /// Fail the start.
    Fail(PullError),
}

/// Back-off of failed pulls, by pod and image.
#[derive(Clone, Debug)]
pub(crate) struct PullBackoff {
    first: Duration,
    max: Duration,
    entries: BTreeMap<String, FailedPull>,
}

#[derive(Clone, Debug)]
struct FailedPull {
    delay: Duration,
    at: Timestamp,
    what: String,
}

impl PullBackoff {
    pub(crate) fn new(first: Duration, max: Duration) -> Self {
        Self {
            first,
            max,
            entries: BTreeMap::new(),
        }
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
        self.entries.insert(
            key.to_owned(),
            FailedPull {
                delay,
                at: now,
                what,
            },
        );
    }

    /// Returns the end of the running back-off and the last error, if a back-off is running.
    fn waiting(&self, key: &str, now: Timestamp) -> Option<(Timestamp, &str)> {
        let failure = self.entries.get(key)?;
        (until(failure.at, now) < failure.delay)
            .then(|| (after(failure.at, failure.delay), failure.what.as_str()))
    }

    /// The recorded delay; zero for none.
    #[cfg(test)]
    pub(crate) fn delay(&self, key: &str) -> Duration {
        self.entries
            .get(key)
            .map_or(Duration::ZERO, |failure| failure.delay)
    }

    /// Drops expired entries. Call it after a successful pull.
    pub(crate) fn forget_old(&mut self, now: Timestamp) {
        let limit = self.max * 2;
        self.entries
            .retain(|_, failure| until(failure.at, now) <= limit);
    }
}

/// Adds the tag `latest` to a name that has neither tag nor digest.
///
/// # Errors
/// Returns the kubelet's error for a malformed name.
pub(crate) fn normalized_reference(image: &str) -> Result<String, PullError> {
    let invalid = |why: &str| {
        let message = format!(
            "Failed to apply default image tag \"{image}\": couldn't parse image name \"{image}\": {why}"
        );
        PullError::new("InvalidImageName", message)
    };
    let (named, digest) = match image.split_once('@') {
        Some((named, digest)) => (named, Some(digest)),
        None => (image, None),
    };
    // A colon before the last slash belongs to the registry's port.
    let last = named.rfind('/').map_or(0, |slash| slash + 1);
    let (path, tag) = match named[last..].find(':') {
        Some(colon) => (&named[..last + colon], Some(&named[last + colon + 1..])),
        None => (named, None),
    };
    let (registry, repository) = match path.split_once('/') {
        Some((first, rest))
            if first.contains(['.', ':'])
                || first == "localhost"
                || first.contains(|c: char| c.is_ascii_uppercase()) =>
        {
            (Some(first), rest)
        }
        Some(_) | None => (None, path),
    };
    if repository.contains(|c: char| c.is_ascii_uppercase()) {
        return Err(invalid(&format!(
            "invalid reference format: repository name ({repository}) must be lowercase"
        )));
    }
    let word = |part: &str| {
        let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
        part.starts_with(edge)
            && part.ends_with(edge)
            && part
                .chars()
                .all(|c| edge(c) || matches!(c, '.' | '_' | '-'))
    };
    let tag_fits = |tag: &str| {
        tag.len() <= 128
            && tag.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
            && tag
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
    };
    let digest_fits = |digest: &str| {
        digest.split_once(':').is_some_and(|(algorithm, hex)| {
            !algorithm.is_empty() && hex.len() >= 32 && hex.chars().all(|c| c.is_ascii_hexdigit())
        })
    };
    let host_fits = |host: &str| {
        host.chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | ':' | '[' | ']'))
    };
    let fits = repository.split('/').all(word)
        && registry.is_none_or(host_fits)
        && tag.is_none_or(tag_fits)
        && digest.is_none_or(digest_fits);
    if !fits {
        return Err(invalid("invalid reference format"));
    }
    Ok(if tag.is_none() && digest.is_none() {
        format!("{image}:latest")
    } else {
        image.to_owned()
    })
}

/// Decides about an image. `present` is the result of ImageStatus, which [`PullPolicy::Always`] does not use.
pub(crate) fn decide(
    image: &str,
    policy: PullPolicy,
    present: Result<Option<String>, String>,
    failures: &PullBackoff,
    key: &str,
    now: Timestamp,
) -> Decision {
    if policy != PullPolicy::Always {
        match present {
            Ok(Some(reference)) => return Decision::Use(reference),
            Ok(None) if policy == PullPolicy::Never => {
                let message =
                    format!("Container image \"{image}\" is not present with pull policy of Never");
                return Decision::Fail(PullError::new("ErrImageNeverPull", message));
            }
            Ok(None) => {}
            Err(error) => {
                let message = format!("Failed to inspect image \"\": {error}");
                return Decision::Fail(PullError::new("ImageInspectError", message));
            }
        }
    }
    match failures.waiting(key, now) {
        Some((end, what)) => {
            let message = format!("Back-off pulling image \"{image}\": {what}");
            Decision::Fail(PullError {
                reason: "ImagePullBackOff",
                message,
                until: Some(end),
            })
        }
        None => Decision::Pull,
    }
}

/// Maps the error of a pull to its reason. Runtimes mark two kinds with a prefix (cri-api, errors).
pub(crate) fn pull_error(image: &str, error: &str) -> PullError {
    let kinds = [
        ("RegistryUnavailable", "the registry is unavailable"),
        (
            "SignatureValidationFailed",
            "the signature validation failed",
        ),
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Read;

    use rstest::rstest;
    use serde_json::Value;

    use super::*;

    #[rstest]
    #[case("web", Some("web:latest"))]
    #[case("web:1", Some("web:1"))]
    #[case("localhost:5000/a/b", Some("localhost:5000/a/b:latest"))]
    #[case("crib.local/host", Some("crib.local/host:latest"))]
    #[case("a/b__c-d:V1.2_3", Some("a/b__c-d:V1.2_3"))]
    #[case("web:", None)]
    #[case("", None)]
    #[case("Web", None)]
    #[case("a//b", None)]
    #[case("-a", None)]
    #[case("a@sha256:12", None)]
    fn image_references_are_validated_and_tagged(
        #[case] image: &str,
        #[case] expected: Option<&str>,
    ) {
        assert_eq!(normalized_reference(image).ok().as_deref(), expected);
    }

    fn seconds(value: &Value) -> Duration {
        Duration::from_secs_f64(value.as_f64().unwrap())
    }

    /// One step of a vector.
    fn step(failures: &mut PullBackoff, step: &Value) -> Value {
        let text = |key: &str| {
            step.get(key)
                .map(|value| value.as_str().unwrap().to_owned())
        };
        let epoch = Timestamp::UNIX_EPOCH;
        let (image, key) = (
            text("image").unwrap(),
            format!("{}_{}", text("podUid").unwrap(), text("image").unwrap()),
        );
        let mut now = after(epoch, seconds(&step["at"]));
        let mut answer = serde_json::Map::new();
        let mut pulled = None;
        let present = text("inspectError").map_or(Ok(text("presentRef")), Err);
        let policy = PullPolicy::of(step["policy"].as_str());
        let decision = match normalized_reference(&image) {
            Ok(_) => decide(&image, policy, present, failures, &key, now),
            Err(error) => Decision::Fail(error),
        };
        let error = match decision {
            Decision::Use(reference) => {
                answer.insert("imageRef".to_owned(), reference.into());
                None
            }
            Decision::Fail(error) => Some(error),
            Decision::Pull => {
                pulled = normalized_reference(&image).ok();
                now = after(now, seconds(&step["pull"]["takes"]));
                match step["pull"].get("error") {
                    Some(error) => {
                        let error = pull_error(&image, error.as_str().unwrap());
                        failures.failed(&key, &error, now);
                        Some(error)
                    }
                    None => {
                        failures.forget_old(now);
                        answer.insert("imageRef".to_owned(), step["pull"]["ref"].clone());
                        None
                    }
                }
            }
        };
        if let Some(error) = error {
            answer.insert("reason".to_owned(), error.reason.into());
            answer.insert("message".to_owned(), error.message.into());
        }
        answer.insert("pullCalled".to_owned(), pulled.is_some().into());
        answer.extend(pulled.map(|name| ("pulledImage".to_owned(), name.into())));
        answer.insert(
            "backoffSeconds".to_owned(),
            failures.delay(&key).as_secs().into(),
        );
        answer.into()
    }

    #[test]
    fn pull_decisions_match_kubernetes() {
        let file = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../tests/vectors/image-backoff.jsonl.gz"
        );
        let mut text = String::new();
        flate2::read::GzDecoder::new(std::fs::File::open(file).unwrap())
            .read_to_string(&mut text)
            .unwrap();
        let (mut cases, mut differing) = (0, Vec::new());
        for line in text.lines() {
            let case: Value = serde_json::from_str(line).unwrap();
            let mut failures = PullBackoff::new(Duration::from_secs(10), Duration::from_secs(300));
            let expected = case["expected"].as_array().unwrap();
            for (input, expected) in case["input"]["steps"]
                .as_array()
                .unwrap()
                .iter()
                .zip(expected)
            {
                let mut expected = expected.as_object().unwrap().clone();
                expected.retain(|key, _| key != "events" && key != "finishedAt");
                if expected.get("imageRef").is_some() {
                    // The message of a success event is not part of the decision.
                    expected.remove("message");
                }
                let answer = step(&mut failures, input);
                if answer != Value::Object(expected.clone()) {
                    differing.push(format!(
                        "{}: {input}\n  {answer}\n  {}",
                        case["id"],
                        Value::Object(expected)
                    ));
                    break;
                }
            }
            cases += 1;
        }
        assert_eq!(cases, 700);
        assert!(
            differing.is_empty(),
            "{} of {cases} differ:\n{}",
            differing.len(),
            differing[..differing.len().min(5)].join("\n")
        );
    }

    #[test]
    fn old_pull_failures_are_forgotten() {
        let mut failures = PullBackoff::new(Duration::from_secs(10), Duration::from_secs(300));
        failures.failed(
            "k",
            &PullError::new("ErrImagePull", String::new()),
            Timestamp::UNIX_EPOCH,
        );
        failures.forget_old(after(Timestamp::UNIX_EPOCH, Duration::from_secs(600)));
        assert_eq!(failures.delay("k").as_secs(), 10);
        failures.forget_old(after(Timestamp::UNIX_EPOCH, Duration::from_secs(601)));
        assert_eq!(failures.delay("k").as_secs(), 0);
    }
}
