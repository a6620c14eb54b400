//! criu dumps processes to files and restores them (<https://criu.org>). These modules define its requests, mounts and
//! error messages.

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod mounts;
mod rpc;

use std::path::Path;

pub use rpc::{Dump, DumpError, dump};

/// Errors that do not stop criu, and those that only say that it gave up.
const NO_REASON: [&str; 3] = ["rlimit: Can't setup", "Dumping FAILED", "Restoring FAILED"];

/// The first error in criu's log: later ones follow from it.
pub fn complaint(log: &str) -> Option<String> {
    // `(00.012345) Error (criu/mount.c:123): mnt: Can't …`: the source line helps when reporting a bug to criu.
    let errors = log.lines().filter_map(|line| {
        let (_, rest) = line.split_once("Error ")?;
        Some(rest.trim())
    });
    let mut reasons = errors.filter(|error| !NO_REASON.iter().any(|no| error.contains(no)));
    reasons.find(|error| !error.is_empty()).map(str::to_owned)
}

/// The first error in a log file of criu.
pub fn complaint_in(log: &Path) -> Option<String> {
    let bytes = std::fs::read(log).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(20)..].join("\n");
    tracing::info!(log = %last, "criu failed");
    complaint(&text)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::nothing("", None)]
    #[case::no_error("(00.1) Running pre-dump scripts\n", None)]
    #[case::the_first(
        "(00.1) Warn  (a.c:1): x\n(00.2)     1: Error (b.c:2): y\n(00.3) Error (c.c:3): z",
        Some("(b.c:2): y")
    )]
    #[case::one_that_matters(
        "Error (u.c:1): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not permitted\nError (d.c:2): tty: no\nError (d.c:3): Dumping FAILED.",
        Some("(d.c:2): tty: no")
    )]
    #[case::just_the_end("Error (d.c:3): Dumping FAILED.", None)]
    fn complaint_is_first_error_in_criu_log(#[case] log: &str, #[case] expected: Option<&str>) {
        assert_eq!(complaint(log).as_deref(), expected);
    }
}
