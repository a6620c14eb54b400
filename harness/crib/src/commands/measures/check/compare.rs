//! `crib check compare`: compares two reports.

use std::path::{Path, PathBuf};

use check::compare::{Saved, compare};
use check::report::{comparison, comparison_html};
use crib_base::named_text;

use crate::commands::prelude::*;
use crate::reported::write_file;

/// Compare two reports of crib check, and print new failures, rules that now pass, and slower calls
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib check compare old.json new.json
  crib check compare old.json new.json --html comparison.html

`crib check --report json=FILE` writes a report. A call, such as StopContainer, counts as slower if its median duration grew \
by more than half and by more than 5 ms. A call that occurs fewer than 5 times in either report never counts as slower.

Exit codes:
    0  no new failure
    1  a rule that did not fail in the earlier check fails in the later check
    2  bad usage, or a file is not a report")]
pub(super) struct CompareArgs {
    /// Report of the earlier check
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// Report of the later check
    #[arg(value_name = "NEW")]
    new: PathBuf,
    /// Also write the comparison to this file as HTML
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

/// Compares two reports and prints the differences.
pub(super) fn run(args: &CompareArgs) -> Result<Exit, CallError> {
    let found = compare(&saved(&args.old)?, &saved(&args.new)?);
    for line in comparison(&found).lines() {
        print(&escape_control(line))?;
    }
    if let Some(file) = &args.html {
        write_file(file, &comparison_html(&found))?;
    }
    Ok(match found.is_worse() {
        true => Exit::Failed,
        false => Exit::Success,
    })
}

fn saved(file: &Path) -> Result<Saved, CallError> {
    let usage = |error: &dyn std::error::Error| {
        let file = file.display();
        CallError::Usage(format!("{file} is not a report of --report json=FILE: {error}"))
    };
    let text = named_text::read_text(file)
        .map_err(|error| CallError::Usage(format!("failed to read {}: {error}", file.display())))?;
    serde_json::from_str(&text).map_err(|error| usage(&error))
}
