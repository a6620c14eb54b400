//! Lets a test that the host cannot run report that, with the reason.

use std::io::Write as _;

/// Returns from the calling test after writing `skipped: NAME: REASON` to standard error, bypassing the test runner's
/// capture. `REASON` is a format string with its arguments.
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
    // Not by a print macro: the test runner captures the output of those in tests that pass.
    let _ = writeln!(std::io::stderr(), "skipped: {name}: {reason}");
}
