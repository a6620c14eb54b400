//! `crib proxy record`: a proxy whose calls are kept in a file.

use std::path::PathBuf;

use clap::Args;

use super::serve::ServeArgs;

/// Record a client's calls for `crib proxy replay` and `crib proxy lint`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy record session.jsonl --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock

Writes one JSON object a line as each call ends, with times in seconds; secrets are left out. Prints `listening on \
unix://PATH` when it is ready, and records until a signal. Exit codes:
    0  ended by a signal
    1  a socket or the recording cannot be written, or --lint found something
    2  bad usage, or a rule is invalid")]
pub(super) struct RecordArgs {
    /// File for the recording, which is overwritten
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}
