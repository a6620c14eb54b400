//! Recordings of calls, as files.

use std::path::Path;

use harness::proxy::RecordedCall;

use crate::client::CallError;
use crate::report::chain;

/// Reads a recording, in the order in which its calls began.
pub(super) fn read(file: &Path) -> Result<Vec<RecordedCall>, CallError> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        CallError::Usage(format!("failed to read the recording {shown}: {error}"))
    })?;
    RecordedCall::parse_all(&text)
        .map_err(|error| CallError::Usage(format!("{shown}: {}", chain(&error))))
}
