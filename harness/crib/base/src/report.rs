//! Error messages on standard error: one line with the error and its causes.

use std::error::Error;
use std::fmt::Write as _;
use std::io::{self, IsTerminal as _, Write as _};

use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::{SignalKind, signal};

use crate::exit::Exit;
use crate::limits::ensure_threads;
use crate::terminal_text::plain;

/// Joins an error and its causes with `: `.
pub fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let cause_text = error.to_string();
        if !text.ends_with(&cause_text) {
            // Writing to a string cannot fail.
            let _ = write!(text, ": {cause_text}");
        }
        cause = error.source();
    }
    text
}

/// Prints `crib: …` on standard error; ignores a closed standard error. Uses a single write, because other processes may print
/// there too. On a terminal, escapes control sequences.
pub fn print_stderr(text: &str) {
    let mut stderr = io::stderr();
    let mut line = format!("crib: {text}\n");
    if stderr.is_terminal() {
        line = plain(&line);
    }
    let _ = stderr.write_all(line.as_bytes());
}

/// Prints an error with its causes.
pub fn print_error(error: &dyn Error) {
    print_stderr(&chain(error));
}

/// Returns the value; or prints the error with its causes, and returns `exit`.
pub fn error_to_exit<T>(result: Result<T, impl Error>, exit: Exit) -> Result<T, Exit> {
    message_to_exit(result.map_err(|error| chain(&error)), exit)
}

/// Returns the value; or prints the problem, and returns `exit`.
pub fn message_to_exit<T>(result: Result<T, String>, exit: Exit) -> Result<T, Exit> {
    result.map_err(|problem| {
        print_stderr(&problem);
        exit
    })
}

/// Returns the value; or prints `failed to …`, and returns [`Exit::NoRuntime`].
pub fn io_error_to_exit<T>(doing: &str, result: io::Result<T>) -> Result<T, Exit> {
    message_to_exit(result.map_err(|error| format!("failed to {doing}: {error}")), Exit::NoRuntime)
}

/// Builds the tokio runtime of a command that needs this number of threads and child processes at the same time.
pub fn event_loop(builder: &mut Builder, threads: usize) -> Result<Runtime, Exit> {
    message_to_exit(ensure_threads(threads), Exit::NoRuntime)?;
    let tokio = io_error_to_exit("start the event loop", builder.enable_all().build())?;
    // Without a handler for SIGXFSZ, the kernel kills a process whose file exceeds ulimit -f; with a handler, the write fails.
    let entered = tokio.enter();
    let handled = signal(SignalKind::from_raw(nix::libc::SIGXFSZ)).map(drop);
    io_error_to_exit("install the handler of SIGXFSZ", handled)?;
    drop(entered);
    Ok(tokio)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot do {what}")]
    struct Outer {
        what: &'static str,
        source: std::io::Error,
    }

    #[test]
    fn error_chain_is_joined_with_colons() {
        let error = Outer { what: "it", source: std::io::Error::other("the disk is full") };
        assert_eq!(chain(&error), "cannot do it: the disk is full");
    }
}
