//! Errors as Go programs write them.

use std::fmt::Debug;

/// An error of a gRPC call.
pub(super) fn rpc_error(code: impl Debug, message: &str) -> String {
    let code = format!("{code:?}").replace("Cancelled", "Canceled");
    format!("rpc error: code = {code} desc = {message}")
}
