//! `crib bench report`: shows the results of an earlier benchmark.

use std::path::{Path, PathBuf};

use bench::Report;
use clap::Args;
use crib_base::exit::Exit;
use crib_base::named_text;

use super::{Results, show};
use crate::client::CallError;

/// Show the results of an earlier benchmark, or write them in another form
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  crib bench report bench.json --report html=bench.html --report markdown=performance.md")]
pub(super) struct ReportArgs {
    /// What `crib bench` wrote: a report json=FILE, or its output with --output json
    file: PathBuf,
    #[command(flatten)]
    results: Results,
}

/// Shows a report.
pub(super) fn run(args: &ReportArgs) -> Result<Exit, CallError> {
    show(&read(&args.file)?, &args.results)?;
    Ok(Exit::Success)
}

/// Reads what `crib bench` wrote.
pub(super) fn read(file: &Path) -> Result<Report, CallError> {
    let text = named_text::read_text(file);
    let file = file.display();
    let text = text.map_err(|error| CallError::Usage(format!("failed to read {file}: {error}")))?;
    serde_json::from_str(&text)
        .map_err(|error| CallError::Usage(format!("{file} is no report of `crib bench`: {error}")))
}
