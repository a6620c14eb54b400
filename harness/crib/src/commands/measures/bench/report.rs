//! `crib bench report`: shows the results of an earlier benchmark. `crib bench compare`: what differs between two.

use std::path::{Path, PathBuf};

use bench::Report;
use bench::compare::compare;
use bench::report::comparison;
use clap::Args;
use crib_base::exit::Exit;
use crib_base::named_text;

use super::{Results, show};
use crate::client::CallError;
use crate::commands::prelude::*;

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

/// Compare two benchmarks: what became faster, and what slower
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib bench --report json=old.json
  crib bench compare old.json new.json

The first runtime of each report is compared. A row is better or worse if the confidence intervals of its medians are apart and \
the medians differ by a tenth, or by half where one is of fewer than 5 rounds. Two benchmarks at different times compare the \
machine too: what the kernel alone took tells how much. To compare two runtimes, measure them in turns with --vs.

Exit codes:
    0  nothing became worse
    1  something did
    2  bad usage, or a file is no report")]
pub(super) struct CompareArgs {
    /// Report of the earlier benchmark
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// Report of the later benchmark
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

/// Compares, and prints what differs.
pub(super) fn compare_reports(args: &CompareArgs) -> Result<Exit, CallError> {
    let (before, after) = (read(&args.old)?, read(&args.new)?);
    let found = compare(&before, &after);
    for line in comparison(&before, &after, &found).lines() {
        print(&escape_control(line))?;
    }
    Ok(match found.is_worse() {
        true => Exit::Failed,
        false => Exit::Success,
    })
}
