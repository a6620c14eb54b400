//! Recordings of calls, as files.

use std::path::Path;

use crib_base::named_text;
use crib_base::report::say;
use proxy::{RecordedCall, finished_lines};

use crate::client::CallError;

/// Reads a recording, in the order in which its calls began, and says so if its last line is not whole.
pub(super) fn read(file: &Path) -> Result<Vec<RecordedCall>, CallError> {
    let shown = file.display();
    let text = named_text::read_text_of(file, named_text::MOST_WRITTEN).map_err(|error| {
        CallError::Usage(format!("failed to read the recording {shown}: {error}"))
    })?;
    let finished = finished_lines(&text);
    if finished.len() < text.len() {
        say(&format!("{shown}: the last line is left out, of which only a part was written"));
    }
    RecordedCall::parse_all(finished).map_err(|error| CallError::Usage(format!("{shown}: {error}")))
}
