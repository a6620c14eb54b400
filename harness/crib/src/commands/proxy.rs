//! `crib proxy`: stands between a client and a runtime, records the calls, and makes the runtime faulty.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::Args;
use harness::Proxy;
use harness::proxy::{Call, Fault};

use crate::args::UnixEndpoint;
use crate::client::output::print;
use crate::client::{CallError, finish};
use crate::exit::Exit;
use crate::signals::Signals;

/// Pass a client's calls on to a runtime, with faults
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy --listen unix:///run/p.sock --upstream unix:///run/crib/crib.sock --trace calls.jsonl
  crib proxy --listen /tmp/p.sock --upstream /tmp/r.sock --fault 'StopContainer after 2 hang'
  crib proxy --listen /tmp/p.sock --upstream /tmp/r.sock --fault 'ListImages answer UNAVAILABLE'

A fault is CALL [after N] [if [request|response] FIELD.FIELD = JSON] and one of:
  answer CODE           answer that code; the runtime does not see the call
  swallow               answer an empty success; the runtime does not see the call
  fail CODE             answer that code after the runtime has done its work
  recode CODE CODE      answer the second code where the runtime answers the first
  hang                  answer nothing
  delay SECONDS         answer later
  [request] drop FIELD  take a field out of the response, or of the request
  [request] set FIELD JSON
  lose, repeat          a message of a stream, not at all or twice
  late SECONDS          a message of a stream after those that follow it

Prints `listening on unix://PATH` when it is ready, and serves until a signal. Exit codes:
    0  ended by a signal
    1  the socket or the trace cannot be written
    2  bad usage")]
pub(crate) struct ProxyArgs {
    /// Socket for the clients
    #[arg(long, value_name = "unix:///PATH")]
    listen: UnixEndpoint,
    /// The runtime's socket, which need not exist yet
    #[arg(long, value_name = "unix:///PATH")]
    upstream: UnixEndpoint,
    /// What the runtime does wrong; repeatable
    #[arg(long, value_name = "FAULT")]
    fault: Vec<Fault>,
    /// Write the calls as they end, one JSON object a line
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
}

/// Serves until a signal.
pub(crate) fn run(args: &ProxyArgs) -> Exit {
    finish(serve(args))
}

async fn serve(args: &ProxyArgs) -> Result<Exit, CallError> {
    let io = |doing: String| |source| CallError::Io { doing, source };
    let mut signals = Signals::listen().map_err(io("listen for signals".to_owned()))?;
    let (listen, upstream) = (args.listen.path(), args.upstream.path());
    let proxy = Proxy::with_faults(listen, upstream, args.fault.clone())
        .map_err(io(format!("listen on {}", args.listen)))?;
    print(&format!("listening on {}", args.listen))?;
    let mut file = match &args.trace {
        None => None,
        Some(path) => {
            let file = File::create(path).map_err(io(format!("write {}", path.display())))?;
            Some((file, path.as_path()))
        }
    };
    loop {
        // Taken out also without a trace: the recording grows otherwise.
        let ended = proxy.recording().until(|_| {
            let calls = proxy.recording().take_ended();
            (!calls.is_empty()).then_some(calls)
        });
        tokio::select! {
            calls = ended => write(&mut file, &calls)?,
            _ = signals.next() => break,
        }
    }
    write(&mut file, &proxy.recording().take_ended())?;
    Ok(Exit::Success)
}

fn write(file: &mut Option<(File, &Path)>, calls: &[Call]) -> Result<(), CallError> {
    let Some((file, path)) = file else {
        return Ok(());
    };
    for call in calls {
        writeln!(file, "{}", call.json()).map_err(|source| CallError::Io {
            doing: format!("write {}", path.display()),
            source,
        })?;
    }
    Ok(())
}
