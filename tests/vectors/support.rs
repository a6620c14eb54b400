//! Reads and compares the JSON of cases.

use serde_json::Value;

/// `Ok` if equal; otherwise both sides.
pub(crate) fn same(what: &str, ours: &Value, theirs: &Value) -> Result<(), String> {
    if ours == theirs { Ok(()) } else { Err(format!("{what}: ours {ours}, expected {theirs}")) }
}

pub(crate) fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

pub(crate) fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
