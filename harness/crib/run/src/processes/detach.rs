//! `crib run --name`: starts the run in the background, waits until its pods have started or are ready, and prints the next
//! commands.

use std::ffi::OsString;
use std::path::Path;
use std::process::{ExitStatus, Stdio};

use crib_base::exit::Exit;
use crib_base::limits::explained;
use crib_base::live::RunName;
use crib_base::report::{event_loop, print_stderr};
use crib_base::signals::Signals;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::runtime::Builder;

use crate::args::RunArgs;
use crate::processes::background::{FAILED, STARTED};

/// The hidden option of the background process.
const OPTION: &str = "--detached";

/// The result of starting the run.
enum StartOutcome {
    Started,
    /// A pod can never run or become ready; the others continue.
    Failed,
    Ended(ExitStatus),
    Interrupted,
}

/// Starts the run.
pub(crate) fn start(args: &RunArgs, name: &RunName) -> Exit {
    let tokio = match event_loop(&mut Builder::new_current_thread(), 2) {
        Ok(tokio) => tokio,
        Err(exit) => return exit,
    };
    match tokio.block_on(start_and_wait(args)) {
        Ok(StartOutcome::Started) => {
            if !args.quiet {
                print_stderr(&format!(
                    "run {name} is in the background: `crib ps` and `crib logs` show it, `crib down {name}` ends it"
                ));
            }
            Exit::Success
        }
        Ok(StartOutcome::Failed) => {
            let never = if args.wait { "be ready" } else { "run" };
            print_stderr(&format!(
                "a pod can never {never}; run {name} continues in the background: `crib ps` and `crib logs` show it, `crib down {name}` ends it"
            ));
            Exit::PodFailed
        }
        Ok(StartOutcome::Ended(status)) => {
            match status.code().and_then(|code| u8::try_from(code).ok()) {
                // The background process has printed the reason.
                Some(code) => Exit::Remote(code),
                None => {
                    print_stderr(&format!("run {name} was killed ({status})"));
                    Exit::NoRuntime
                }
            }
        }
        Ok(StartOutcome::Interrupted) => Exit::Interrupted,
        Err(error) => {
            print_stderr(&format!("failed to start run {name}: {}", explained(&error)));
            Exit::NoRuntime
        }
    }
}

async fn start_and_wait(args: &RunArgs) -> std::io::Result<StartOutcome> {
    let mut signals = Signals::listen()?.and_hang_up()?;
    let reads_stdin = args.manifests().iter().any(|path| path == Path::new("-"));
    let stdin = match reads_stdin {
        true => Stdio::inherit(),
        false => Stdio::null(),
    };
    let mut child = Command::new("/proc/self/exe")
        .arg0("crib")
        .args(words(std::env::args_os().skip(1)))
        .stdin(stdin)
        .stdout(Stdio::piped())
        .spawn()?;
    let Some(stdout) = child.stdout.take() else {
        return Err(std::io::Error::other("its standard output is not a pipe"));
    };
    let (mut stdout, mut line) = (BufReader::new(stdout), String::new());
    tokio::select! {
        read = stdout.read_line(&mut line) => {
            read?;
        }
        _ = signals.next() => {
            return end(child, signals).await;
        }
    }
    match line.as_str() {
        STARTED => Ok(StartOutcome::Started),
        FAILED => Ok(StartOutcome::Failed),
        _ => Ok(StartOutcome::Ended(child.wait().await?)),
    }
}

/// Ends a run that has not started yet. Forwards each signal: the second one kills the pods.
async fn end(mut child: Child, mut signals: Signals) -> std::io::Result<StartOutcome> {
    loop {
        // The child was not waited for, so its id is still valid.
        if let Some(pid) = child.id().and_then(|pid| i32::try_from(pid).ok()) {
            kill(Pid::from_raw(pid), Signal::SIGTERM)?;
        }
        tokio::select! {
            ended = child.wait() => {
                ended?;
                return Ok(StartOutcome::Interrupted);
            }
            _ = signals.next() => {}
        }
    }
}

/// The arguments of the background process: those of this process and [`OPTION`].
fn words(own: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = own.collect();
    // No flag before the command is accepted for `run`, so the first `run` is the command.
    let run = words.iter().position(|word| word == "run");
    words.insert(run.map_or(0, |at| at + 1), OPTION.into());
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn option_follows_the_command() {
        let own = ["run", "--name", "run", "--", "a.yaml"].map(OsString::from);
        let expected = ["run", OPTION, "--name", "run", "--", "a.yaml"].map(OsString::from);
        assert_eq!(words(own.into_iter()), expected);
    }
}
