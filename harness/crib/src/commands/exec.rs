//! `crib exec`: runs a command in a container.

use std::io::{self, IsTerminal as _, Write as _};
use std::time::Duration;

use clap::Args;
use cri::v1;

use crate::args::duration;
use crate::client::find::ContainerNameArgs;
use crate::client::{CallError, Cri, Endpoints, find, finish, start_failure_exit_code, with_codes};
use crate::exit::Exit;
use crate::stream::{TransportArgs, join, standard};

/// Run a command in a container
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib exec -it 3f1c sh
  crib exec web cat /etc/hostname
  tar -c . | crib exec -i web tar -xC /srv
  crib exec --sync --timeout 5s web sh -c 'sleep 1; echo done'

Exits with the command's exit code, 127 if the program was not found, 126 if it is not executable. With --tty, Ctrl-C \
goes to the command; without, it ends crib exec, and the command ends when it next reads or writes, as with kubectl \
and crictl."))]
pub(crate) struct ExecArgs {
    /// Container: id, id prefix or name; or a pod: web, pod/web
    container: String,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// The command and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
    /// Pass standard input to it
    #[arg(short, long)]
    interactive: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// Print the output after the command has exited
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    sync: bool,
    #[command(flatten)]
    streaming: TransportArgs,
    /// With --sync, end the command after this time [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Runs it.
pub(crate) fn run(args: &ExecArgs) -> Exit {
    finish(async {
        if args.interactive && args.tty && !io::stdin().is_terminal() {
            let message =
                "standard input is not a terminal: leave out --tty, or run this in a terminal";
            return Err(CallError::Usage(message.to_owned()));
        }
        let all = args.connection.open_all()?;
        let (cri, container) =
            find::container_of(&all, &args.container, &args.container_name).await?;
        match args.sync {
            true => sync(cri, &container.id, args).await,
            false => stream(cri, &container.id, args).await,
        }
    })
}

async fn stream(cri: &Cri, id: &str, args: &ExecArgs) -> Result<Exit, CallError> {
    let streams = standard(args.interactive, args.tty);
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: args.command.clone(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("Exec", client.exec(request)).await?;
    join(
        &answer.into_inner().url,
        streams,
        args.streaming.transport(),
    )
    .await
}

async fn sync(cri: &Cri, id: &str, args: &ExecArgs) -> Result<Exit, CallError> {
    let whole_seconds = |time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        i64::try_from(seconds).unwrap_or(i64::MAX)
    };
    let timeout = args.timeout.map_or(0, whole_seconds);
    // The runtime enforces the timeout and reports it.
    let answer = cri.runtime.exec(id, args.command.clone(), timeout);
    let answer = match cri.call_without_timeout("ExecSync", answer).await {
        Err(CallError::Refused { status, .. })
            if start_failure_exit_code(status.message()).is_some() =>
        {
            return Err(CallError::NotRun(status.message().to_owned()));
        }
        answer => answer?,
    };
    let write = || -> io::Result<()> {
        io::stdout().write_all(&answer.stdout)?;
        io::stdout().flush()?;
        io::stderr().write_all(&answer.stderr)
    };
    write().map_err(CallError::Output)?;
    Ok(Exit::Remote(u8::try_from(answer.exit_code).unwrap_or(255)))
}
