//! Durations and errors as Go programs write them.

use std::fmt::Debug;
use std::time::Duration;

use jiff::SignedDuration;

use crate::plan::go_duration;

/// A duration: `1s`, `1m30s`.
pub(super) fn seconds(duration: Duration) -> String {
    go_duration(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

/// An error of a gRPC call.
pub(super) fn rpc_error(code: impl Debug, message: &str) -> String {
    let code = format!("{code:?}").replace("Cancelled", "Canceled");
    format!("rpc error: code = {code} desc = {message}")
}
