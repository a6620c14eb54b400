//! `crib logs`: prints the log files of containers.

use std::io::{self, Write as _};

use cri_log::Stream;
use cri_log::follower::{Follower, LogError};
use cri_log::reader::{Filter, Piece};
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crib_base::report::print_error;

use super::exec::join_all;
use crate::client::completion;
use crate::client::find::in_runs::{self, ObjectName, RunPod};
use crate::client::find::{ContainerNameArgs, Search, SelectedContainer};
use crate::commands::prelude::*;
use crate::objects::metadata;
use crate::objects::pod_containers::{default_container, previous_attempt, reason_for_no_log};
use crate::objects::selectors::Labels;
use crate::objects::workload_pods::Best;

/// The default of --tail with --selector.
const TAIL_OF_SELECTED: usize = 10;

/// Print the logs of containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib logs 3f1c
  crib logs -f --tail 10 web
  crib logs --since 5m --timestamps web
  crib logs --previous web
  crib logs deploy/web -c sidecar
  crib logs web sidecar
  crib logs -f -l app=web --all-containers --prefix

If a pod has several containers, the default is the container in its annotation kubectl.kubernetes.io/default-container, or \
else the first container. `crib logs` prints the container's standard error to its own standard error."))]
pub(crate) struct LogsArgs {
    /// Container: id, id prefix or name; or a pod: web, pod/web; or an object that has pods: deploy/web, job/migrate, svc/web
    #[arg(
        required_unless_present = "selector",
        conflicts_with = "selector",
        add = completion::pods_and_containers()
    )]
    container: Option<String>,
    /// Container of the pod, as with -c
    #[arg(
        value_name = "NAME",
        conflicts_with_all = ["container_name", "all_containers"],
        add = completion::containers()
    )]
    name: Option<String>,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// Select pods of `crib run` by labels: `app=web,tier!=db`; the default of --tail is then 10
    #[arg(short = 'l', long)]
    selector: Option<Labels>,
    /// Namespace of the pods [default: any; with -l: the namespace default]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Print the logs of all containers of the pods
    #[arg(long, conflicts_with = "container_name")]
    all_containers: bool,
    /// Print the logs of all pods of an object such as deploy/web; implies --prefix
    #[arg(long)]
    all_pods: bool,
    /// Prefix each line with its pod and container: [pod/web/main]
    #[arg(long)]
    prefix: bool,
    /// Follow the log until the container exits
    #[arg(short, long)]
    follow: bool,
    /// With --follow, the maximum number of logs to follow [default: no limit]
    #[arg(long, value_name = "N")]
    max_log_requests: Option<usize>,
    /// Exit with code 0 even if a log cannot be read
    #[arg(long)]
    ignore_errors: bool,
    /// Print only this many lines from the end of the log [default: all, as with -1]
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, conflicts_with = "stream")]
    tail: Option<i64>,
    /// Print only entries since this time: a timestamp (2026-01-02T15:04:05Z; without a time zone, in UTC), a duration before now
    /// (5m), or a Unix time; alias: --since-time
    #[arg(long, alias = "since-time", value_parser = since, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Print at most this many bytes [default: all, as with -1]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    limit_bytes: Option<i64>,
    /// Print only the output of this stream
    #[arg(short, long, value_enum)]
    stream: Option<StreamName>,
    /// First make the runtime reopen the log file (ReopenContainerLog), as after a rotation
    #[arg(short, long)]
    reopen: bool,
    /// Prefix each line with its timestamp
    #[arg(short, long)]
    timestamps: bool,
    /// Print the log of the container's previous attempt
    #[arg(short, long)]
    previous: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// An output stream of a container.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum StreamName {
    Stdout,
    Stderr,
}

fn since(text: &str) -> Result<Timestamp, String> {
    if let Ok(time) = text.parse() {
        return Ok(time);
    }
    if let Ok(time) = text.parse::<DateTime>() {
        return match TimeZone::UTC.to_timestamp(time) {
            Ok(time) => Ok(time),
            Err(_) => Err(format!("the time {text:?} is out of range")),
        };
    }
    // Unix times since 2001 have ten digits or more. Smaller numbers are seconds before now.
    if text.len() >= 10
        && let Ok(seconds) = text.parse()
    {
        return Timestamp::from_second(seconds).map_err(|_| format!("{text:?} is too late"));
    }
    let elapsed = duration(text).map_err(|_| {
        format!("{text:?} is neither a time (2026-01-02T15:04:05Z) nor how long ago (5m)")
    })?;
    Timestamp::now().checked_sub(elapsed).map_err(|_| format!("{text:?} is too long ago"))
}

/// Prints the logs.
pub(crate) async fn run(args: &LogsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let search = Search::new(&all).await?;
    let mut containers = match meant(args, &all, &search) {
        Err(error @ (CallError::NotFound { .. } | CallError::NoSuchContainer { .. })) => {
            return Err(waiting(args, &all)?.map_or(error, CallError::Unmet));
        }
        containers => containers?,
    };
    if containers.is_empty() {
        let namespace = args.namespace.as_deref().unwrap_or("default");
        print_stderr(&format!("no resources found in {namespace} namespace"));
        return Ok(Exit::Success);
    }
    if let Some(max) = args.max_log_requests.filter(|_| args.follow)
        && containers.len() > max.max(1)
    {
        let count = containers.len();
        let problem = format!(
            "you are attempting to follow {count} log streams, but maximum allowed concurrency is {max}, use --max-log-requests \
             to increase the limit"
        );
        return Err(CallError::Usage(problem));
    }
    if let ([_], false) = (containers.as_slice(), args.ignore_errors) {
        return match containers.pop() {
            Some(one) => print_log(args, one).await.map(|()| Exit::Success),
            None => Ok(Exit::Success),
        };
    }
    let mut ended = Vec::new();
    if args.follow {
        ended = join_all(containers.into_iter().map(|one| print_log(args, one))).await;
    } else {
        for one in containers {
            ended.push(print_log(args, one).await);
        }
    }
    let mut failed = false;
    for one in ended {
        match one {
            Ok(()) => {}
            Err(error @ CallError::Output(_)) => return Err(error),
            Err(error) => {
                print_error(&error);
                failed = true;
            }
        }
    }
    if failed && !args.ignore_errors {
        return Err(CallError::AlreadyReported);
    }
    Ok(Exit::Success)
}

/// The containers that the arguments select.
fn meant<'a>(
    args: &LogsArgs,
    all: &'a [Cri],
    search: &Search<'a>,
) -> Result<Vec<SelectedContainer<'a>>, CallError> {
    let name = args.container_name.container_name.as_deref().or(args.name.as_deref());
    let namespace = args.namespace.as_deref();
    let text = args.container.as_deref().unwrap_or_default();
    let pods = match (&args.selector, ObjectName::parse(text)) {
        (Some(labels), _) => {
            let namespace = namespace.unwrap_or("default");
            in_runs::with_labels(all, labels, Some(namespace), Best::ForLogs)?
        }
        (None, Some(object)) if args.all_pods => object.pods(all, namespace, Best::ForLogs)?.pods,
        (None, Some(object)) => {
            let pods = object.pods(all, namespace, Best::ForLogs)?.pods;
            let best: Option<&RunPod<'_>> = pods.first();
            if let Some(best) = best.filter(|_| pods.len() > 1) {
                let (count, name) = (pods.len(), metadata(&best.object, "name"));
                print_stderr(&format!("Found {count} pods, using pod/{name}"));
            }
            vec![object.best_of(pods)?]
        }
        (None, None) if args.all_containers => return search.all_of_pod(text, namespace),
        (None, None) => {
            return Ok(vec![search.container(text, name, namespace, Best::ForLogs)?]);
        }
    };
    let mut found = Vec::new();
    for pod in pods {
        match args.all_containers {
            true => found.extend(search.all_in_run_pod(&pod)),
            false => found.push(search.in_run_pod(pod, name)?),
        }
    }
    Ok(found)
}

/// Why the container of the given pod was not created yet; `None` if there is no such container.
fn waiting(args: &LogsArgs, all: &[Cri]) -> Result<Option<String>, CallError> {
    let name = args.container_name.container_name.as_deref().or(args.name.as_deref());
    let namespace = args.namespace.as_deref();
    let text = args.container.as_deref().unwrap_or_default();
    let pods = match (&args.selector, ObjectName::parse(text)) {
        (Some(labels), _) => {
            let namespace = namespace.unwrap_or("default");
            in_runs::with_labels(all, labels, Some(namespace), Best::ForLogs)?
        }
        (None, Some(object)) => object.pods(all, namespace, Best::ForLogs)?.pods,
        (None, None) => {
            let (own, pod) = find::namespace_and_name(text);
            in_runs::pods_named(all, pod, own.or(namespace))?
        }
    };
    Ok(pods.iter().find_map(|pod| {
        let default = || Some(default_container(&pod.object).ok()?.name);
        let name = name.map(str::to_owned).or_else(default)?;
        reason_for_no_log(&pod.object, &name)
    }))
}

/// Prints the log of a container; with --follow, until the container exits.
async fn print_log(args: &LogsArgs, meant: SelectedContainer<'_>) -> Result<(), CallError> {
    let (cri, pod) = (meant.cri, meant.pod.name.clone());
    let container = match args.previous {
        true => previous(&meant).await?,
        false => meant.container,
    };
    if args.reopen {
        let reopened = cri.runtime.reopen_log(&container.id);
        cri.call("ReopenContainerLog", reopened).await?;
    }
    let status = cri.runtime.container(&container.id);
    let status = cri.call("ContainerStatus", status).await?;
    if status.log_path.is_empty() {
        let message = format!(
            "container {} has no log: its pod was created without a log directory",
            container.id
        );
        return Err(CallError::Usage(message));
    }
    let name = container.metadata.unwrap_or_default().name;
    let prefix = match args.prefix || args.all_pods {
        true => format!("[pod/{pod}/{name}] "),
        false => String::new(),
    };
    let filter = Filter {
        prefix,
        since: args.since,
        timestamps: args.timestamps,
        limit: args.limit_bytes.and_then(|limit| limit.try_into().ok()),
        stream: args.stream.map(|stream| match stream {
            StreamName::Stdout => Stream::Stdout,
            StreamName::Stderr => Stream::Stderr,
        }),
    };
    let tail = match args.tail {
        // With --stream, the default is all lines, because finding the last lines of one stream is not supported.
        None => (args.selector.is_some() && args.stream.is_none()).then_some(TAIL_OF_SELECTED),
        Some(lines) => lines.try_into().ok(),
    };
    let follower = Follower::open(status.log_path.as_ref(), tail, filter, args.follow);
    let mut follower = follower.map_err(unreadable)?;
    let mut more = print(&mut follower)?;
    while args.follow && more {
        let ended = has_ended(cri, &container.id).await?;
        // All output from before the exit of the container is in the file now.
        more = print(&mut follower)?;
        if ended {
            break;
        }
        if more {
            follower.changed().await.map_err(unreadable)?;
            more = print(&mut follower)?;
        }
    }
    if let Some(piece) = follower.finish().filter(|_| more) {
        write(&piece).map_err(CallError::Output)?;
    }
    Ok(())
}

/// Prints the whole log of a container that has exited.
pub(super) async fn print_all(cri: &Cri, id: &str) -> Result<(), CallError> {
    let status = cri.call("ContainerStatus", cri.runtime.container(id)).await?;
    let follower = Follower::open(status.log_path.as_ref(), None, Filter::default(), false);
    let mut follower = follower.map_err(unreadable)?;
    let more = print(&mut follower)?;
    if let Some(piece) = follower.finish().filter(|_| more) {
        write(&piece).map_err(CallError::Output)?;
    }
    Ok(())
}

/// Prints the available log; returns whether more is needed.
fn print(follower: &mut Follower) -> Result<bool, CallError> {
    while let Some(pieces) = follower.read().map_err(unreadable)? {
        for piece in pieces {
            write(&piece).map_err(CallError::Output)?;
        }
    }
    Ok(!follower.is_done())
}

fn write(piece: &Piece) -> io::Result<()> {
    match piece.stream {
        Stream::Stdout => {
            let mut stdout = io::stdout().lock();
            stdout.write_all(&piece.bytes)?;
            stdout.flush()
        }
        Stream::Stderr => io::stderr().lock().write_all(&piece.bytes),
    }
}

fn unreadable(LogError { path, source }: LogError) -> CallError {
    let doing =
        format!("read the log {}; check that it is on this machine and readable", path.display());
    CallError::Io { doing, source }
}

/// Whether the log is complete. A container that does not exist has ended, and so have the containers of a run that has ended.
async fn has_ended(cri: &Cri, id: &str) -> Result<bool, CallError> {
    match cri.call("ContainerStatus", cri.runtime.container(id)).await {
        Err(CallError::Refused { status, .. }) if status.code() == tonic::Code::NotFound => {
            Ok(true)
        }
        answer => Ok(cri.unless_ended(answer)?.is_none_or(|status| {
            matches!(
                status.state(),
                v1::ContainerState::ContainerExited | v1::ContainerState::ContainerUnknown
            )
        })),
    }
}

/// The previous attempt of a container: from its pod's status, or else the latest earlier attempt in the same sandbox.
async fn previous(meant: &SelectedContainer<'_>) -> Result<v1::Container, CallError> {
    let cri = meant.cri;
    let all = cri.runtime.containers(v1::ContainerFilter::default());
    let all = cri.call("ListContainers", all).await?;
    let of = |container: &v1::Container| container.metadata.clone().unwrap_or_default();
    let now = of(&meant.container);
    let object = in_runs::pod_object(cri, &meant.pod.uid)?;
    // If a container waits for a restart, its latest attempt counts as the previous one.
    let in_status = object.as_ref().and_then(|pod| previous_attempt(pod, &now.name));
    if let Some(found) = in_status.and_then(|id| all.iter().find(|other| other.id == id)) {
        return Ok(found.clone());
    }
    let before = all.into_iter().filter(|other| {
        let (name, attempt) = (of(other).name, of(other).attempt);
        let in_pod = other.pod_sandbox_id == meant.container.pod_sandbox_id;
        in_pod && name == now.name && attempt < now.attempt
    });
    let last = before.max_by_key(|other| of(other).attempt);
    last.ok_or_else(|| CallError::NotFound {
        what: "previous attempt of container",
        name: now.name,
    })
}
