//! `crib proxy lint`: what a recorded client does wrong.

use std::path::PathBuf;

use clap::builder::PossibleValuesParser;
use proxy::{LINT_RULES, SeenCall, lint};

use super::recording::read;
use crate::commands::prelude::*;

/// Check the client of a recording: deadlines, polling, the order of calls
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy record session.jsonl --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock
  crib proxy lint session.jsonl
  crib proxy lint session.jsonl --allow polled-too-often,stream-left-open

Prints a line for each finding: when, the number of the client's connection, the rule, and what the client did. \
docs/proxy.md has the rules.

Exit codes:
    0  nothing was found
    1  something was
    2  bad usage, or the file is no recording")]
pub(super) struct LintArgs {
    /// The recording
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// What the client may do
    #[arg(long, value_name = "RULE,…", value_delimiter = ',', value_parser = PossibleValuesParser::new(LINT_RULES))]
    allow: Vec<String>,
}

/// Judges, and prints what was found.
pub(super) fn run(args: &LintArgs) -> Result<Exit, CallError> {
    let calls = read(&args.file)?;
    let seen: Vec<_> = calls.iter().map(SeenCall::from).collect();
    show(&seen, &args.allow)
}

/// Judges the client of these calls, and prints what it does wrong by the rules that are not `allowed` to be broken. The exit code
/// says whether it does anything.
pub(super) fn show(calls: &[SeenCall], allowed: &[String]) -> Result<Exit, CallError> {
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
    print(&format!("{count} {calls}, nothing to complain about"))?;
    Ok(Exit::Success)
}
