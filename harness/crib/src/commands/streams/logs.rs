//! `crib logs`: prints the log file of a container.

use harness::cri_log::Stream;
use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

use crate::client::find::ContainerNameArgs;
use crate::commands::prelude::*;

mod follower;
mod reader;

use follower::Follower;
use reader::Filter;

/// Print the logs of a container
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib logs 3f1c
  crib logs -f --tail 10 web
  crib logs --since 5m --timestamps web
  crib logs --previous web

The container's standard error goes to standard error."))]
pub(crate) struct LogsArgs {
    /// Container: id, id prefix or name; or a pod: web, pod/web
    container: String,
    #[command(flatten)]
    container_name: ContainerNameArgs,
    /// Follow the log until the container exits
    #[arg(short, long)]
    follow: bool,
    /// Print only the last lines [default: all, as with -1]
    #[arg(long, value_name = "LINES", allow_negative_numbers = true, conflicts_with = "stream")]
    tail: Option<i64>,
    /// Print only entries since a time (2026-01-02T15:04:05Z; UTC without zone), a duration ago (5m), or a Unix time
    #[arg(long, value_parser = since, value_name = "TIME")]
    since: Option<Timestamp>,
    /// Print at most this many bytes [default: all, as with -1]
    #[arg(long, value_name = "BYTES", allow_negative_numbers = true)]
    limit_bytes: Option<i64>,
    /// Print only what was written to this stream
    #[arg(short, long, value_enum)]
    stream: Option<StreamName>,
    /// Have the runtime open the log file anew, after a rotation
    #[arg(short, long)]
    reopen: bool,
    /// Prefix each line with its timestamp
    #[arg(short, long)]
    timestamps: bool,
    /// Print the log of the previous attempt
    #[arg(short, long)]
    previous: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// An output of a container.
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
    // Seconds since 1970, of ten digits since 2001. Smaller numbers are how long ago.
    if text.len() >= 10
        && let Ok(seconds) = text.parse()
    {
        return Timestamp::from_second(seconds).map_err(|_| format!("{text:?} is too late"));
    }
    let gone = duration(text).map_err(|_| {
        format!("{text:?} is neither a time (2026-01-02T15:04:05Z) nor how long ago (5m)")
    })?;
    Timestamp::now().checked_sub(gone).map_err(|_| format!("{text:?} is too long ago"))
}

/// Prints them.
pub(crate) async fn run(args: &LogsArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let (cri, mut container) =
        find::container_of(&all, &args.container, &args.container_name).await?;
    if args.previous {
        container = previous(cri, &container).await?;
    }
    if args.reopen {
        let reopened = cri.runtime.reopen_log(&container.id);
        cri.call("ReopenContainerLog", reopened).await?;
    }
    let status = cri.runtime.container(&container.id);
    let status = cri.call("ContainerStatus", status).await?;
    if status.log_path.is_empty() {
        let said = format!(
            "container {} has no log: its pod was made without a log directory",
            container.id
        );
        return Err(CallError::Usage(said));
    }
    let filter = Filter {
        since: args.since,
        timestamps: args.timestamps,
        limit: args.limit_bytes.and_then(|limit| limit.try_into().ok()),
        stream: args.stream.map(|stream| match stream {
            StreamName::Stdout => Stream::Stdout,
            StreamName::Stderr => Stream::Stderr,
        }),
    };
    let tail = args.tail.and_then(|lines| lines.try_into().ok());
    let mut follower = Follower::open(status.log_path.as_ref(), tail, filter, args.follow)?;
    let mut more = follower.read()?;
    while args.follow && more {
        let ended = has_ended(cri, &container.id).await?;
        // What was written before the container was seen to have ended is in the file by now.
        more = follower.read()?;
        if ended {
            break;
        }
        if more {
            follower.changed().await?;
            more = follower.read()?;
        }
    }
    if more {
        follower.finish()?;
    }
    Ok(Exit::Success)
}

/// Prints what a container that has ended wrote.
pub(super) async fn print_all(cri: &Cri, id: &str) -> Result<(), CallError> {
    let status = cri.call("ContainerStatus", cri.runtime.container(id)).await?;
    let filter = Filter { since: None, timestamps: false, limit: None, stream: None };
    let mut follower = Follower::open(status.log_path.as_ref(), None, filter, false)?;
    if follower.read()? {
        follower.finish()?;
    }
    Ok(())
}

/// Whether nothing more will be written. A container that is gone has ended.
async fn has_ended(cri: &Cri, id: &str) -> Result<bool, CallError> {
    match cri.call("ContainerStatus", cri.runtime.container(id)).await {
        Ok(status) => Ok(matches!(
            status.state(),
            v1::ContainerState::ContainerExited | v1::ContainerState::ContainerUnknown
        )),
        Err(CallError::Refused { status, .. }) if status.code() == tonic::Code::NotFound => {
            Ok(true)
        }
        Err(error) => Err(error),
    }
}

/// The attempt before a container, in the same pod under the same name.
async fn previous(cri: &Cri, container: &v1::Container) -> Result<v1::Container, CallError> {
    let filter = v1::ContainerFilter {
        pod_sandbox_id: container.pod_sandbox_id.clone(),
        ..Default::default()
    };
    let all = cri.call("ListContainers", cri.runtime.containers(filter)).await?;
    let of = |container: &v1::Container| container.metadata.clone().unwrap_or_default();
    let now = of(container);
    let before = all.into_iter().filter(|other| {
        let other = of(other);
        other.name == now.name && other.attempt < now.attempt
    });
    let last = before.max_by_key(|other| of(other).attempt);
    last.ok_or_else(|| CallError::NotFound {
        what: "previous attempt of container",
        name: now.name,
    })
}
