//! A proxy that serves until a signal; `crib proxy record` writes its calls to a file.

use std::fs::File;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use clap::Args;
use crib_base::args::UnixEndpoint;
use crib_base::named_text;
use crib_base::signals::Signals;
use proxy::control::Control;
use proxy::{Call, CallFacts, Fault, Proxy, RecordedCall, RuleSet, SeenCalls};
use rustix::fs::{Mode, OFlags};

use super::replay::show;
use crate::commands::prelude::*;
use crate::endpoint;

/// The sockets and rules of the proxy.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    /// Socket that clients connect to
    #[arg(long, value_name = "unix:///PATH")]
    listen: UnixEndpoint,
    /// The runtime's socket, which need not exist yet
    #[arg(long, value_name = "unix:///PATH")]
    upstream: UnixEndpoint,
    /// Rule for a fault to inject; repeatable
    #[arg(long, value_name = "RULE")]
    fault: Vec<Fault>,
    /// File with one rule per line; these rules apply before the rules of --fault
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Seed for rules with `probability`; the same seed selects the same calls [default: the seed in the file of --rules, or 0]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Socket for `crib proxy ctl`, which lists and changes the rules
    #[arg(long, value_name = "unix:///PATH")]
    control: Option<UnixEndpoint>,
    /// When the proxy ends, print broken rules as `crib proxy lint` does; exit with code 1 if a rule was broken, or if there were
    /// too many calls to check
    #[arg(long)]
    lint: bool,
}

impl ServeArgs {
    fn rules(&self) -> Result<RuleSet, CallError> {
        let mut rules = match &self.rules {
            None => RuleSet::default(),
            Some(file) => read_rules(file)?,
        };
        rules.faults.extend(self.fault.iter().cloned());
        rules.seed = self.seed.unwrap_or(rules.seed);
        Ok(rules)
    }
}

fn read_rules(file: &Path) -> Result<RuleSet, CallError> {
    let shown = file.display();
    let text = named_text::read_text(file)
        .map_err(|error| CallError::Usage(format!("failed to read the rules {shown}: {error}")))?;
    text.parse().map_err(|error| CallError::Usage(format!("{shown}:{error}")))
}

fn io(doing: String) -> impl FnOnce(io::Error) -> CallError {
    |source| CallError::Io { doing, source }
}

/// Serves until a signal. Writes each call to the file when it ends.
pub(super) async fn serve(args: &ServeArgs, file: Option<&Path>) -> Result<Exit, CallError> {
    let rules = args.rules()?;
    let mut signals = Signals::listen().map_err(io("listen for signals".to_owned()))?;
    let (listen, upstream) = (args.listen.path(), args.upstream.path());
    let is_same =
        |one: &Path, other: &Path| std::path::absolute(one).ok() == std::path::absolute(other).ok();
    if is_same(listen, upstream) {
        let message = format!(
            "--listen and --upstream are the same socket, {}: the proxy would call itself",
            args.listen
        );
        return Err(CallError::Usage(message));
    }
    endpoint::check_shared(listen)?;
    endpoint::clear(listen)?;
    let proxy = Proxy::with_rules(listen, upstream, rules)
        .map_err(io(format!("listen on {}", args.listen)))?;
    let _control = match &args.control {
        None => None,
        Some(control) => {
            endpoint::check_shared(control.path())?;
            endpoint::clear(control.path())?;
            let listening = Control::listen(control.path(), proxy.rules());
            Some(listening.map_err(io(format!("listen on {control}")))?)
        }
    };
    let trace = file.map(Trace::create).transpose()?;
    let mut sink = Sink { trace, seen: args.lint.then(SeenCalls::default) };
    print(&format!("listening on {}", args.listen))?;
    loop {
        tokio::select! {
            // Ended calls are always removed, because the recording would grow otherwise.
            calls = proxy.recording().next_ended() => sink.take(&calls)?,
            _ = signals.next() => break,
        }
    }
    // Calls in progress are part of the session too.
    sink.take(&proxy.recording().calls())?;
    match sink.seen {
        None => Ok(Exit::Success),
        Some(seen) => {
            let (calls, left_out) = seen.finish();
            let exit = show(&calls, &[])?;
            if left_out == 0 {
                return Ok(exit);
            }
            print_stderr(&format!(
                "--lint did not check the last {left_out} calls, because it keeps at most {} MiB about calls; \
                 check shorter sessions",
                SeenCalls::LIMIT >> 20
            ));
            Ok(Exit::Failed)
        }
    }
}

/// The destinations of a client's calls.
struct Sink {
    trace: Option<Trace>,
    /// The data that `--lint` needs.
    seen: Option<SeenCalls>,
}

impl Sink {
    fn take(&mut self, calls: &[Call]) -> Result<(), CallError> {
        if let Some(seen) = &mut self.seen {
            let recorded = calls.iter().map(RecordedCall::from);
            recorded.for_each(|call| seen.add(CallFacts::from(&call)));
        }
        match &mut self.trace {
            None => Ok(()),
            Some(trace) => trace.write(calls),
        }
    }
}

/// A file of recorded calls.
struct Trace {
    file: File,
    path: PathBuf,
}

impl Trace {
    fn create(path: &Path) -> Result<Self, CallError> {
        let failed = io(format!("write {}", path.display()));
        // Opening a FIFO without a reader fails instead of blocking.
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::CLOEXEC;
        // The environment of containers may contain secrets, and the URL of a stream gives access to a container.
        let mode = Mode::RUSR | Mode::WUSR;
        let opened = rustix::fs::open(path, flags | OFlags::NONBLOCK, mode)
            .and_then(|file| rustix::fs::fcntl_setfl(&file, OFlags::empty()).map(|()| file));
        let file = File::from(opened.map_err(|errno| failed(errno.into()))?);
        Ok(Self { file, path: path.to_owned() })
    }

    fn write(&mut self, calls: &[Call]) -> Result<(), CallError> {
        for call in calls {
            writeln!(self.file, "{}", call.json())
                .map_err(io(format!("write {}", self.path.display())))?;
        }
        Ok(())
    }
}

/// Record a client's calls for `crib proxy replay` and `crib proxy lint`
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib proxy record session.jsonl --listen unix:///tmp/p.sock --upstream unix:///run/crib/crib.sock

When a call ends, the proxy writes the call to FILE as a line of JSON, with times in seconds and without the credentials of \
registries. Environment variables and commands are recorded: FILE may contain secrets. When the proxy is ready, it prints \
`listening on unix://PATH`, and then records until it receives a signal. Exit codes:
    0  a signal ended the proxy
    1  a socket cannot be created, the recording cannot be written, or --lint found a mistake
    2  bad usage, or a rule is invalid")]
pub(super) struct RecordArgs {
    /// File to write the recording to; an existing file is overwritten
    #[arg(value_name = "FILE")]
    pub(super) file: PathBuf,
    #[command(flatten)]
    pub(super) serve: ServeArgs,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn only_the_owner_of_a_new_recording_can_read_it() {
        let place = tempfile::tempdir().unwrap();
        let trace = Trace::create(&place.path().join("session.jsonl")).unwrap();
        assert_eq!(trace.file.metadata().unwrap().permissions().mode() & 0o077, 0);
    }
}
