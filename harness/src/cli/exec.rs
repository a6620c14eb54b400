//! `crib exec`: runs a command in a container.

use std::io::{self, Write as _};
use std::time::Duration;

use clap::Args;
use cri::v1;

use super::call::{CallError, Connection, Cri, find, finish, with_codes};
use super::stream::{Ending, Streams, join};
use crate::exit::Exit;

/// Run a command in a container
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib exec -it 3f1c sh
  crib exec web cat /etc/hostname
  tar -c . | crib exec -i web tar -xC /srv
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
    /// Give it this command's standard input
    #[arg(short, long)]
    interactive: bool,
    /// Give it a terminal
    #[arg(short, long)]
    tty: bool,
    /// Print the output when the command has ended; --timeout then ends the command too
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    sync: bool,
    #[command(flatten)]
    connection: Connection,
}

/// Runs it.
pub(crate) fn run(args: &ExecArgs) -> Exit {
    finish(async {
        let cri = args.connection.open()?;
        let container = find::container(&cri, &args.container).await?;
        match args.sync {
            true => sync(&cri, &container.id, args).await,
            false => stream(&cri, &container.id, args).await,
        }
    })
}

async fn stream(cri: &Cri, id: &str, args: &ExecArgs) -> Result<Exit, CallError> {
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: args.command.clone(),
        tty: args.tty,
        stdin: args.interactive,
        stdout: true,
        stderr: !args.tty,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("Exec", client.exec(request)).await?;
    let streams = Streams {
        stdin: args.interactive,
        tty: args.tty,
    };
    exit(join(&answer.into_inner().url, streams).await?)
}

/// What a joined process ended with, as the exit code of this one.
pub(crate) fn exit(ending: Ending) -> Result<Exit, CallError> {
    match ending {
        Ending::Code(code) => Ok(Exit::Remote(u8::try_from(code).unwrap_or(255))),
        Ending::Interrupted => Ok(Exit::Interrupted),
    }
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
    exit(Ending::Code(answer.exit_code))
}
