//! Error messages on standard error: one line with the error and its causes.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;

/// Joins an error and its causes with `: `.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let said = error.to_string();
        if !text.ends_with(&said) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {said}");
        }
        cause = error.source();
    }
    text
}

/// Prints `crib: …` on standard error; ignores a closed standard error. With one write, because other processes may print there
/// too.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().write_all(format!("crib: {text}\n").as_bytes());
}

/// Prints an error with its causes.
pub(crate) fn complain(error: &dyn Error) {
    say(&chain(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot do {what}")]
    struct Outer {
        what: &'static str,
        source: std::io::Error,
    }

    #[test]
    fn error_chain_is_joined_with_colons() {
        let error = Outer {
            what: "it",
            source: std::io::Error::other("the disk is full"),
        };
        assert_eq!(chain(&error), "cannot do it: the disk is full");
    }
}
