//! `crib exec`: runs a command in a container.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;

use super::call::{CallError, Connection, Cri, find, finish, with_codes};
use crate::exit::Exit;

/// Run a command in a container
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib exec --sync 3f1c cat /etc/hostname
  crib exec --sync --timeout 5s web sh -c 'sleep 1; echo done'

The exit code is the command's own where it ran."))]
pub(crate) struct ExecArgs {
    /// The container: its id, the beginning of one, or its name
    container: String,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
    /// Print the output when the command has ended; --timeout then ends the command too
    #[arg(short, long, required = true)]
    sync: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs it.
pub(crate) fn run(args: &ExecArgs) -> Exit {
    finish(async {
        let cri = args.connection.open()?;
        let container = find::container(&cri, &args.container).await?;
        sync(&cri, &container.id, args).await
    })
}

async fn sync(cri: &Cri, id: &str, args: &ExecArgs) -> Result<Exit, CallError> {
    let whole_seconds = |time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        i64::try_from(seconds).unwrap_or(i64::MAX)
    };
    let timeout = args.connection.timeout.map_or(0, whole_seconds);
    // The runtime ends the command, and says so: that is not cut short here.
    let answer = cri.runtime.exec(id, args.command.clone(), timeout);
    let answer = cri.patient_call("ExecSync", answer).await?;
    let write = || -> io::Result<()> {
        io::stdout().write_all(&answer.stdout)?;
        io::stdout().flush()?;
        io::stderr().write_all(&answer.stderr)
    };
    write().map_err(CallError::Output)?;
    Ok(code(answer.exit_code))
}

/// What a command ended with, as the exit code of this one.
pub(crate) fn code(code: i32) -> Exit {
    Exit::Remote(u8::try_from(code).unwrap_or(255))
}
