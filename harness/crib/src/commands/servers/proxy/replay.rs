//! Recordings: `crib proxy replay` serves one to a client, without a runtime; `crib proxy lint` checks the client's calls.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use crib_base::args::UnixEndpoint;
use crib_base::named_text;
use crib_base::signals::Signals;
use proxy::{CallFacts, LINT_RULES, Replay, ReplayError, lint};

use super::read_each;
use crate::commands::prelude::*;
use crate::endpoint;

/// The maximum size in bytes of a recording to serve: its requests and responses are kept in memory, where they need several times
/// as much space.
const MOST_REPLAYED: u64 = 256 << 20;

/// Serve a recording to a client, without a runtime
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy record session.jsonl --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock
  crib proxy replay session.jsonl --listen unix:///tmp/r.sock

A request gets the response that was recorded for an identical request. If several identical requests were recorded, their \
responses are returned in the recorded order, and then the last response is repeated. Streams send their recorded messages \
in order. A request that was not recorded fails with FAILED_PRECONDITION; standard error then shows the most similar \
recorded call and the first field that differs.

When the proxy is ready, it prints `listening on unix://PATH`, and then serves until it receives a signal. Exit codes:
    0  a signal ended the proxy
    1  the socket cannot be created
    2  bad usage, or the file is not a recording")]
pub(super) struct ReplayArgs {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Socket that clients connect to
    #[arg(long, value_name = "unix:///PATH")]
    listen: UnixEndpoint,
    /// Wait for the recorded duration before each response
    #[arg(long)]
    timed: bool,
}

/// Serves until a signal.
pub(super) async fn run(args: &ReplayArgs) -> Result<Exit, CallError> {
    let mut calls = Vec::new();
    read_each(&args.file, MOST_REPLAYED, |call| calls.push(call))?;
    // A recording contains calls in the order in which they ended.
    compact::sort_by(&mut calls, |a, b| a.t_start.total_cmp(&b.t_start));
    let mut signals = Signals::listen()
        .map_err(|source| CallError::Io { doing: "listen for signals".to_owned(), source })?;
    endpoint::clear(args.listen.path())?;
    let mut replay =
        Replay::start(args.listen.path(), calls, args.timed).map_err(|error| match error {
            ReplayError::Listen { source, .. } => {
                CallError::Io { doing: format!("listen on {}", args.listen), source }
            }
            bad @ ReplayError::BadCall { .. } => {
                CallError::Usage(format!("{}: {bad}", args.file.display()))
            }
        })?;
    print(&format!("listening on {}", args.listen))?;
    loop {
        tokio::select! {
            mismatch = replay.next_mismatch() => print_stderr(&escape_control(&mismatch)),
            _ = signals.next() => return Ok(Exit::Success),
        }
    }
}

/// Check the calls in a recording: their deadlines, their order, and how often the client polls
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy record session.jsonl --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock
  crib proxy lint session.jsonl
  crib proxy lint session.jsonl --allow polled-too-often,stream-left-open

The output has a line for each call that breaks a rule: the time, the number of the client's connection, the rule, and a \
description. docs/proxy.md lists the rules of `crib proxy lint`.

Exit codes:
    0  no rule was broken
    1  a rule was broken
    2  bad usage, or the file is not a recording")]
pub(super) struct LintArgs {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Rules that the client may break
    #[arg(long, value_name = "RULE,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(LINT_RULES))]
    allow: Vec<String>,
}

/// Checks the calls, and prints the findings.
pub(super) fn run_lint(args: &LintArgs) -> Result<Exit, CallError> {
    let mut seen = Vec::new();
    read_each(&args.file, named_text::MOST_WRITTEN, |call| seen.push(CallFacts::from(&call)))?;
    compact::sort_by(&mut seen, CallFacts::by_start);
    show(&seen, &args.allow)
}

/// Checks calls, and prints the findings of the rules that are not in `allowed`. The exit code shows whether there are any.
pub(super) fn show(calls: &[CallFacts], allowed: &[String]) -> Result<Exit, CallError> {
    let mut findings = lint(calls);
    findings.retain(|finding| !allowed.iter().any(|rule| rule == finding.rule));
    for finding in &findings {
        print(&escape_control(&finding.to_string()))?;
    }
    if !findings.is_empty() {
        return Ok(Exit::Failed);
    }
    let count = calls.len();
    let calls = if count == 1 { "call" } else { "calls" };
    print(&format!("{count} {calls}, no findings"))?;
    Ok(Exit::Success)
}
