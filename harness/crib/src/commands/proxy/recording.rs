//! Recordings of calls, as files.

use std::path::Path;

use harness::proxy::{RecordedCall, finished_lines};

use crate::client::CallError;
use crate::report::say;

/// Reads a recording, in the order in which its calls began, and says so if its last line is not whole.
pub(super) fn read(file: &Path) -> Result<Vec<RecordedCall>, CallError> {
    let shown = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| {
        CallError::Usage(format!("failed to read the recording {shown}: {error}"))
    })?;
    let finished = finished_lines(&text);
    if finished.len() < text.len() {
        say(&format!(
            "{shown}: the last line is left out, of which only a part was written"
        ));
    }
    RecordedCall::parse_all(finished).map_err(|error| CallError::Usage(format!("{shown}: {error}")))
}
