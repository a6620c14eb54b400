//! The results of rules, and the comparisons that produce them.

use std::fmt::Debug;

use harness::debug_text::{difference, plain};
use harness::eventually::WaitError;
use tokio::task::JoinError;
use tonic::{Code, Status};

/// The result of a rule that does not pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The runtime violates the rule.
    Fail {
        /// The checked value.
        what: String,
        /// The expected value.
        expected: String,
        /// The actual value.
        seen: String,
    },
    /// The runtime refused a call that the rule needs.
    Refused {
        /// The code.
        code: Code,
        /// The runtime's message.
        message: String,
    },
    /// Runtimes differ here: a description of this runtime's behaviour.
    Diverges(String),
    /// The runtime does not support this: its message.
    Unsupported(String),
    /// The machine or the endpoint's configuration does not allow this: the reason.
    Skipped(String),
}

/// The return value of a rule's body.
pub type Verdict<T = ()> = Result<T, Outcome>;

/// The word for a result in reports.
#[must_use]
pub fn word(result: &Verdict) -> &'static str {
    match result {
        Ok(()) => "pass",
        Err(Outcome::Fail { .. } | Outcome::Refused { .. }) => "fail",
        Err(Outcome::Diverges(_)) => "diverges",
        Err(Outcome::Unsupported(_)) => "unsupported",
        Err(Outcome::Skipped(_)) => "skipped",
    }
}

impl From<Status> for Outcome {
    fn from(status: Status) -> Self {
        Self::Refused { code: status.code(), message: status.message().to_owned() }
    }
}

impl From<WaitError> for Outcome {
    fn from(error: WaitError) -> Self {
        Self::Fail {
            what: error.condition,
            expected: format!("within {} s", error.limit.as_secs_f64()),
            seen: error.last,
        }
    }
}

/// A failure that [`equal`] cannot express.
pub fn failed<T>(
    what: impl Into<String>,
    expected: impl Into<String>,
    seen: impl Into<String>,
) -> Verdict<T> {
    Err(Outcome::Fail { what: what.into(), expected: expected.into(), seen: seen.into() })
}

/// Ends a rule that the machine or the endpoint's configuration does not allow.
pub fn skipped<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Outcome::Skipped(reason.into()))
}

/// Ends a rule in whose subject runtimes differ.
pub fn diverges<T>(how: impl Into<String>) -> Verdict<T> {
    Err(Outcome::Diverges(how.into()))
}

/// Ends a rule about a feature that the runtime does not support.
pub fn unsupported<T>(reason: impl Into<String>) -> Verdict<T> {
    Err(Outcome::Unsupported(reason.into()))
}

/// The value, or a failure if there is none.
pub fn present<T>(
    value: Option<T>,
    what: impl Into<String>,
    expected: impl Into<String>,
    seen: impl Into<String>,
) -> Verdict<T> {
    value.map_or_else(|| failed(what, expected, seen), Ok)
}

/// The result of a task; `what` names its call.
pub(crate) fn joined<T>(what: &str, ended: Result<T, JoinError>) -> Verdict<T> {
    ended.or_else(|error| failed(what, "to end", error.to_string()))
}

/// Fails unless both values are equal.
pub fn equal<T, U>(what: &str, seen: &T, expected: &U) -> Verdict
where
    T: PartialEq<U> + Debug + ?Sized,
    U: Debug + ?Sized,
{
    match seen == expected {
        true => Ok(()),
        false => {
            let (expected, seen) = difference(expected, seen);
            failed(what, expected, seen)
        }
    }
}

/// Fails unless both outputs are equal.
pub fn equal_output(what: &str, seen: &[u8], expected: &[u8]) -> Verdict {
    let shown = |output: &[u8]| format!("\"{}\"", output.escape_ascii());
    match seen == expected {
        true => Ok(()),
        false => failed(what, shown(expected), shown(seen)),
    }
}

/// Fails unless the condition holds; `expected` describes it.
pub fn ensure(holds: bool, what: &str, expected: &str, seen: impl Debug) -> Verdict {
    match holds {
        true => Ok(()),
        false => failed(what, expected, plain(&seen)),
    }
}

/// Fails unless the runtime refused the call with a message. A runtime that is unavailable or does not implement the call does not
/// count as refusing. Returns the error.
pub fn refused<T: Debug>(what: &str, answer: Result<T, Status>) -> Verdict<Status> {
    match answer {
        Err(status) if !matches!(status.code(), Code::Unavailable | Code::Unimplemented) => {
            has_message(what, &status)?;
            Ok(status)
        }
        Err(status) => Err(status.into()),
        Ok(answer) => failed(what, "an error", format!("success: {}", plain(&answer))),
    }
}

/// Fails if an error message has no letters: users see the message in the events of a pod.
pub(crate) fn has_message(what: &str, status: &Status) -> Verdict {
    match status.message().contains(char::is_alphabetic) {
        true => Ok(()),
        false => {
            let seen = format!("{:?}: {:?}", status.code(), status.message());
            failed(what, "an error whose message has words", seen)
        }
    }
}

/// Fails unless the runtime refused the call with this code.
pub fn refused_with<T: Debug>(what: &str, answer: Result<T, Status>, code: Code) -> Verdict {
    let status = refused(what, answer)?;
    match status.code() == code {
        true => Ok(()),
        false => failed(
            what,
            format!("the code {code:?}"),
            format!("{:?}: {}", status.code(), status.message()),
        ),
    }
}

/// Fails unless every entry of `expected` is in `seen`.
pub fn includes(
    what: &str,
    seen: &std::collections::HashMap<String, String>,
    expected: &std::collections::HashMap<String, String>,
) -> Verdict {
    let missing = expected.iter().find(|(key, value)| seen.get(*key) != Some(*value));
    match missing {
        None => Ok(()),
        Some((key, value)) => failed(what, format!("{key:?}: {value:?}"), plain(seen)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusal_of_absent_runtime_or_call_is_no_refusal() {
        assert!(refused("x", Err::<(), _>(Status::not_found("no"))).is_ok());
        for status in [Status::unavailable("gone"), Status::unimplemented("no such call")] {
            let outcome = refused("x", Err::<(), _>(status));
            assert!(matches!(outcome, Err(Outcome::Refused { .. })));
        }
        assert!(matches!(refused("x", Ok(1)), Err(Outcome::Fail { .. })));
    }

    #[test]
    fn refusal_without_message_fails() {
        for message in ["", " \n", "17"] {
            let outcome = refused("x", Err::<(), _>(Status::not_found(message)));
            assert!(matches!(outcome, Err(Outcome::Fail { .. })), "{outcome:?}");
        }
    }

    #[test]
    fn other_code_fails_with_both_codes() {
        let seen = refused_with("x", Err::<(), _>(Status::internal("broken")), Code::NotFound);
        let expected = failed("x", "the code NotFound", "Internal: broken");
        assert_eq!(seen, expected);
    }
}
