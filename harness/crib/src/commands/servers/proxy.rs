//! `crib proxy`: forwards a client's calls to a runtime, records them, and injects faults.

mod ctl;
mod replay;
mod serve;

use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crib_base::named_text;
use crib_base::report::print_stderr;
use proxy::{RecordedCall, RecordingError};

use crate::client::CallError;
use crate::commands::prelude::*;

use serve::{ServeArgs, serve};

/// Forward a client's CRI calls to a runtime, and inject faults
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(after_help = "\
Examples:
  crib proxy --listen unix:///run/p.sock --upstream unix:///run/crib/crib.sock --trace calls.jsonl
  crib proxy --listen /tmp/p.sock --upstream /tmp/r.sock --fault 'StopContainer after 2 hang'
  crib proxy --listen /tmp/p.sock --upstream /tmp/r.sock --rules rules.txt --control /tmp/c.sock
  crib proxy ctl --control /tmp/c.sock on slow-stop

A rule is the value of --fault, or a line in the file of --rules. A rule has the form [off] [NAME:] CALLS [after N] [every \
N] [times N] [probability P] [message N[..M]] [if CONDITION] ACTION, where ACTION is one of:
  answer CODE [\"TEXT\"]         return this code; the runtime does not see the call
  swallow                       return an empty response; the runtime does not see the call
  stale                         return the runtime's last response to an identical request, if any
  fail CODE [\"TEXT\"]           return this code after the runtime has executed the call
  recode CODE CODE [\"TEXT\"]    return the second code if the runtime returns the first
  hang, delay SECONDS           never respond, or respond after a delay
  disconnect                    close the client's connection
  drop FIELD, set FIELD JSON    remove or set a response field; prefix `request` for a request field
  lose, repeat, swap            drop a stream message, send it twice, or send it after the next one
  late SECONDS                  delay a message of a stream, but not the messages after it
  truncate [CODE [\"TEXT\"]]     end the stream instead of sending a message
  throttle BYTES                limit responses to this many bytes per second

A CONDITION compares fields of the request or the response with JSON values: `request.container_id == \"c\" and not \
status.labels[\"app\"] in [\"a\", \"b\"]`. In the file of --rules, # begins a comment, and the line `seed N` sets the seed. \
docs/proxy.md describes rules in full.

When the proxy is ready, it prints `listening on unix://PATH`, and then serves until it receives a signal. Exit codes:
    0  a signal ended the proxy
    1  a socket cannot be created, the trace cannot be written, or --lint found a mistake
    2  bad usage, or a rule is invalid")]
pub(crate) struct ProxyArgs {
    #[command(subcommand)]
    command: Option<ProxyCommand>,
    /// Write each call to this file when the call ends, one JSON object per line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    #[command(flatten)]
    serve: Option<ServeArgs>,
}

/// The subcommands.
#[derive(Debug, Subcommand)]
enum ProxyCommand {
    Record(serve::RecordArgs),
    Replay(replay::ReplayArgs),
    Lint(replay::LintArgs),
    Ctl(ctl::CtlArgs),
}

/// Serves until a signal, or executes the subcommand.
pub(crate) async fn run(args: &ProxyArgs) -> Result<Exit, CallError> {
    match (&args.command, &args.serve) {
        (Some(ProxyCommand::Record(args)), _) => serve(&args.serve, Some(&args.file)).await,
        (Some(ProxyCommand::Replay(args)), _) => replay::run(args).await,
        (Some(ProxyCommand::Lint(args)), _) => replay::run_lint(args),
        (Some(ProxyCommand::Ctl(args)), _) => ctl::run(args).await,
        (None, Some(serving)) => serve(serving, args.trace.as_deref()).await,
        // The parser requires the arguments without a subcommand.
        (None, None) => Ok(Exit::BadInput),
    }
}

/// Reads the calls of a recording of at most `most` bytes. Warns if its last line is incomplete.
fn read_each(file: &Path, most: u64, take: impl FnMut(RecordedCall)) -> Result<(), CallError> {
    let shown = file.display();
    let unread = |error: io::Error| {
        CallError::Usage(format!("failed to read the recording {shown}: {error}"))
    };
    let opened = named_text::open(file).map_err(unread)?;
    let read = RecordedCall::read_each(BufReader::new(opened), most, take);
    let is_cut = read.map_err(|error| match error {
        RecordingError::Io(error) => unread(error),
        RecordingError::Line(error) => CallError::Usage(format!("{shown}: {error}")),
    })?;
    if is_cut {
        print_stderr(&format!("{shown}: ignored the last line, which is incomplete"));
    }
    Ok(())
}
