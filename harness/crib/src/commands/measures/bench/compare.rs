//! `crib bench compare`: what differs between two benchmarks.

use std::path::PathBuf;

use bench::compare::compare;
use bench::report::comparison;

use super::report::read;
use crate::commands::prelude::*;

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
pub(super) fn run(args: &CompareArgs) -> Result<Exit, CallError> {
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
