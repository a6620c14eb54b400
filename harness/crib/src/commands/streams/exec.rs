//! `crib exec`: runs a command in a container.

use std::io::{self, IsTerminal as _, Write as _};
use std::task::Poll;

use crib_base::report::print_error;

use crate::client::completion;
use crate::client::containers::{self, ContainerFilterArgs, FILTERS, Listed};
use crate::client::find::ContainerNameArgs;
use crate::client::{Endpoints, start_failure_exit_code};
use crate::commands::prelude::*;
use crate::objects::workload_pods::Best;
use crate::stream::{TransportArgs, join, standard};

/// Run a command in a container
#[derive(Debug, Args)]
#[command(mut_arg("state", |state| state.short(None)), mut_arg("container_name", |name| name.conflicts_with_all(FILTERS)), override_usage = "\
crib exec [OPTIONS] <CONTAINER> <COMMAND>...
       crib exec [OPTIONS] <FILTER>... <COMMAND>...", after_help = with_codes("\
Examples:
  crib exec -it 3f1c sh
  crib exec web cat /etc/hostname
  crib exec deploy/web -c sidecar -- env
  crib exec -n shop web -- env
  tar -c . | crib exec -i web tar -xC /srv
  crib exec --sync --timeout 5s web sh -c 'sleep 1; echo done'
  crib exec --label app=web nginx -s reload

If the value of -n is not a number, -n sets the namespace of the given pod, as with kubectl.

With filters such as --label, `crib exec` runs the command in each running container that matches all filters, one after \
another. `crib exec` prints each container's id before the output. The exit code is the exit code of the first command that \
fails.

The exit code is the command's exit code, 127 if the program was not found, or 126 if the program is not executable. With \
--tty, Ctrl-C is sent to the command. Without --tty, Ctrl-C ends only `crib exec`: the command keeps running, but its \
standard input ends and its writes fail, as with kubectl and crictl."))]
pub(crate) struct ExecArgs {
    /// Container: id, id prefix or name; or a pod: web, pod/web; or an object that has pods: deploy/web, job/migrate, svc/web
    #[arg(add = completion::pods_and_containers())]
    container: String,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// The command and its arguments
    #[arg(
        required_unless_present_any = FILTERS,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    command: Vec<String>,
    /// Namespace of the given pod: the command line's `-n`, if its value is not a number
    #[arg(long, hide = true, conflicts_with_all = FILTERS)]
    pod_namespace: Option<String>,
    /// Pass crib's standard input to the command
    #[arg(short, long, alias = "stdin")]
    interactive: bool,
    /// Allocate a terminal
    #[arg(short, long)]
    tty: bool,
    /// Wait until the command exits, then print its output (ExecSync)
    #[arg(short, long, conflicts_with_all = ["interactive", "tty"])]
    sync: bool,
    #[command(flatten)]
    filter: ContainerFilterArgs,
    /// Print no container ids
    #[arg(short, long)]
    quiet: bool,
    /// Run the command in all matching containers in parallel, and print no container ids
    #[arg(short = 'x', long)]
    parallel: bool,
    /// Exit with code 0 even if commands fail
    #[arg(short = 'e', long)]
    ignore_errors: bool,
    #[command(flatten)]
    streaming: TransportArgs,
    /// With --sync, kill the command after this time [default: never]
    #[arg(long, value_name = "TIME", value_parser = duration)]
    timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Runs the command.
pub(crate) async fn run(args: &ExecArgs) -> Result<Exit, CallError> {
    if args.interactive && args.tty && !io::stdin().is_terminal() {
        let message =
            "standard input is not a terminal: leave out --tty, or run this in a terminal";
        return Err(CallError::Usage(message.to_owned()));
    }
    let all = args.connection.open_all()?;
    let exit = match args.filter.given() {
        true => in_selected(&all, args).await,
        false => {
            let (name, namespace) = (&args.container_name, args.pod_namespace.as_deref());
            let found = find::container_of(&all, &args.container, name, namespace, Best::ToConnect);
            let found = found.await?;
            in_one(found.cri, &found.container.id, &args.command, args).await
        }
    };
    match exit {
        Err(error) if args.ignore_errors => {
            print_error(&error);
            Ok(Exit::Success)
        }
        Ok(Exit::Remote(_)) if args.ignore_errors => Ok(Exit::Success),
        exit => exit,
    }
}

/// Runs the command in the containers that match the filters.
async fn in_selected(all: &[Cri], args: &ExecArgs) -> Result<Exit, CallError> {
    // With filters, there is no container argument: the first argument belongs to the command.
    let command: Vec<String> =
        std::iter::once(&args.container).chain(&args.command).cloned().collect();
    let (selected, _) = containers::list(all, &args.filter, Listed::Running, None).await?;
    if selected.is_empty() {
        return Err(CallError::NothingFits("container"));
    }
    if args.interactive && selected.len() > 1 {
        let message =
            format!("--interactive needs a single container, but {} match", selected.len());
        return Err(CallError::Usage(message));
    }
    let ids = selected.iter().map(|container| container.id.as_str());
    let run = async |id: &str| {
        if !args.quiet && !args.parallel {
            print(&format!("{id}:"))?;
        }
        let (cri, _) = find::container(all, id).await?;
        in_one(cri, id, &command, args).await
    };
    let mut ended = Vec::new();
    if args.parallel {
        ended = join_all(ids.map(run)).await;
    } else {
        for id in ids {
            let one = run(id).await;
            let over =
                matches!(one, Ok(Exit::Interrupted) | Err(CallError::Lost | CallError::Output(_)));
            ended.push(one);
            if over {
                break;
            }
        }
    }
    let failed =
        ended.into_iter().filter(|one| !matches!(one, Ok(Exit::Success | Exit::Remote(0))));
    let failed: Vec<_> = failed.collect();
    // The caller reports the first error.
    failed.iter().skip(1).filter_map(|one| one.as_ref().err()).for_each(|error| print_error(error));
    failed.into_iter().next().unwrap_or(Ok(Exit::Success))
}

/// Runs all futures concurrently; the results are in the order of the futures.
pub(super) async fn join_all<T>(all: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = all.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|context| {
        for (one, outcome) in running.iter_mut().filter(|(_, outcome)| outcome.is_none()) {
            if let Poll::Ready(ended) = one.as_mut().poll(context) {
                *outcome = Some(ended);
            }
        }
        match running.iter().all(|(_, outcome)| outcome.is_some()) {
            true => Poll::Ready(()),
            false => Poll::Pending,
        }
    })
    .await;
    running.into_iter().filter_map(|(_, outcome)| outcome).collect()
}

async fn in_one(
    cri: &Cri,
    id: &str,
    command: &[String],
    args: &ExecArgs,
) -> Result<Exit, CallError> {
    match args.sync {
        true => sync(cri, id, command, args).await,
        false => stream(cri, id, command, args).await,
    }
}

async fn stream(
    cri: &Cri,
    id: &str,
    command: &[String],
    args: &ExecArgs,
) -> Result<Exit, CallError> {
    let streams = standard(args.interactive, args.tty);
    let request = v1::ExecRequest {
        container_id: id.to_owned(),
        cmd: command.to_vec(),
        tty: streams.tty,
        stdin: streams.stdin,
        stdout: streams.stdout,
        stderr: streams.stderr,
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("Exec", client.exec(request)).await?;
    join(&answer.into_inner().url, streams, args.streaming.transport()).await
}

async fn sync(cri: &Cri, id: &str, command: &[String], args: &ExecArgs) -> Result<Exit, CallError> {
    let whole_seconds = |time: Duration| {
        let seconds = time.as_secs() + u64::from(time.subsec_nanos() > 0);
        i64::try_from(seconds).unwrap_or(i64::MAX)
    };
    let timeout = args.timeout.map_or(0, whole_seconds);
    // The runtime enforces the timeout and reports it.
    let answer = cri.runtime.exec(id, command.to_vec(), timeout);
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
