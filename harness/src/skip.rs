//! Tests that a box cannot run say so, with the reason.

use std::io::Write as _;

/// Ends the test that calls it, after `skipped: NAME: REASON` was written to standard error, where the test runner does not
/// swallow it. `REASON` is a format string with its arguments.
///
/// ```
/// # fn probe() -> Result<(), String> { Ok(()) }
/// fn needs_a_bridge() {
///     if let Err(why) = probe() {
///         harness::skip!("needs_a_bridge", "no bridge can be made: {why}");
///     }
/// }
/// ```
#[macro_export]
macro_rules! skip {
    ($name:expr, $($reason:tt)+) => {{
        $crate::skip::say($name, &::std::format!($($reason)+));
        return;
    }};
}

/// Writes the line of [`skip!`](crate::skip!).
pub fn say(name: &str, reason: &str) {
    // Not by a macro of the print family: the test runner keeps what those print of tests that pass.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}
