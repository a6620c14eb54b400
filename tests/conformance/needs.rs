//! The needs of tests that this machine or user does not meet.

use std::io::Write as _;

use crate::support::*;

/// Lists them in the log, past the test runner's capture, as lines `missing: NEED: REASON`.
#[test]
fn missing_needs_have_reasons_of_one_line() {
    for need in Need::ALL {
        let Some(reason) = need.missing() else { continue };
        let _ = writeln!(std::io::stderr(), "missing: {need:?}: {reason}");
        assert_eq!(reason.lines().count(), 1, "{need:?}: {reason:?}");
    }
    assert_ne!(Need::Cgroups.missing().is_some(), Need::NoCgroups.missing().is_some());
}
