//! `crib bench report`: prints an earlier benchmark. `crib bench compare`: compares two.

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

/// Show the results of an earlier benchmark, or write them in another format
#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  crib bench report bench.json --report html=bench.html --report markdown=performance.md")]
pub(super) struct ReportArgs {
    /// Report of `crib bench`, written with --report json=FILE or --output json
    file: PathBuf,
    #[command(flatten)]
    results: Results,
}

/// Prints a report.
pub(super) fn run(args: &ReportArgs) -> Result<Exit, CallError> {
    show(&read(&args.file)?, &args.results)?;
    Ok(Exit::Success)
}

/// Reads a report of `crib bench`.
pub(super) fn read(file: &Path) -> Result<Report, CallError> {
    let text = named_text::read_text(file);
    let file = file.display();
    let text = text.map_err(|error| CallError::Usage(format!("failed to read {file}: {error}")))?;
    serde_json::from_str(&text).map_err(|error| {
        CallError::Usage(format!("{file} is not a report of `crib bench`: {error}"))
    })
}

/// Compare two benchmarks, and print what became faster or slower
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib bench --report json=old.json
  crib bench compare old.json new.json

If a report contains two runtimes (`crib bench --vs`), the comparison uses the first runtime. A row of the output, such as a \
call, is better or worse if its medians differ by a factor of more than 1.1, and their confidence intervals do not overlap. \
If either benchmark measured a row in fewer than 5 rounds, the medians must differ by a factor of more than 1.5. To show \
whether the machine itself was slower in one benchmark, the output compares the durations of a container's kernel \
operations, measured without a runtime. To compare two runtimes with each other, use `crib bench --vs`.

Exit codes:
    0  no row became worse
    1  a row became worse
    2  bad usage, or a file is not a report")]
pub(super) struct CompareArgs {
    /// Report of the earlier benchmark
    #[arg(value_name = "OLD")]
    old: PathBuf,
    /// Report of the later benchmark
    #[arg(value_name = "NEW")]
    new: PathBuf,
}

/// Compares two reports and prints the differences.
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
