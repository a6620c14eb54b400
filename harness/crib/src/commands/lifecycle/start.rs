//! Containers: `crib start` starts them, `crib stop` stops them, and `crib checkpoint` checkpoints them.

use crate::client::{CALL_TIMEOUT, Endpoints};
use crate::commands::prelude::*;

/// Start created containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib start 3f1c

`crib start` prints the id of each container."))]
pub(crate) struct StartArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required = true, value_name = "CONTAINER")]
    containers: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Starts the containers.
pub(crate) async fn run(args: &StartArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    each(&args.containers, async |name: &String| {
        let (cri, container) = find::container(&all, name).await?;
        let id = container.id;
        cri.call("StartContainer", cri.runtime.start(&id)).await?;
        print(&id)
    })
    .await
}

/// Stop running containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib stop 3f1c
  crib stop --timeout 30 web
  crib stop --all

`crib stop` prints the id of each container."))]
pub(crate) struct StopArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required_unless_present = "all", value_name = "CONTAINER")]
    containers: Vec<String>,
    /// Seconds after the stop signal until a container that still runs is killed
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    timeout: i64,
    /// Stop all running containers
    #[arg(short, long, conflicts_with = "containers")]
    all: bool,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Stops the containers.
pub(crate) async fn stop(args: &StopArgs) -> Result<Exit, CallError> {
    let mut all = match args.all {
        true => vec![args.connection.open()?],
        false => args.connection.open_all()?,
    };
    let mut ids = args.containers.clone();
    if let Some(cri) = all.first().filter(|_| args.all) {
        let running = cri.running_containers().await?;
        ids.extend(running.into_iter().map(|container| container.id));
        if ids.is_empty() {
            print("No running containers found.")?;
        }
    }
    // The runtime responds only after the container has exited, so the grace period is added to the timeout.
    let grace = Duration::from_secs(args.timeout.unsigned_abs());
    for cri in &mut all {
        let patience = cri.timeout().unwrap_or(CALL_TIMEOUT);
        cri.set_timeout(Some(grace.saturating_add(patience)));
    }
    each(&ids, async |name: &String| {
        let (cri, container) = find::container(&all, name).await?;
        let id = container.id;
        let stopped = cri.runtime.stop(&id, args.timeout);
        cri.call("StopContainer", stopped).await?;
        print(&id)
    })
    .await
}

/// Checkpoint running containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib checkpoint --export /var/tmp/web.tar web

A checkpointed container keeps running. The runtime writes the archive, so the path of --export must be absolute. `crib \
checkpoint` prints the id of each container."))]
pub(crate) struct CheckpointArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required = true, value_name = "CONTAINER")]
    containers: Vec<String>,
    /// Archive to write
    #[arg(short, long, value_name = "PATH")]
    export: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Checkpoints the containers.
pub(crate) async fn checkpoint(args: &CheckpointArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    each(&args.containers, async |name: &String| {
        let (cri, container) = find::container(&all, name).await?;
        let id = container.id;
        let request = v1::CheckpointContainerRequest {
            container_id: id.clone(),
            location: args.export.clone(),
            ..Default::default()
        };
        let mut client = cri.runtime.runtime.clone();
        let answer = client.checkpoint_container(request);
        // The duration depends on the container's memory.
        cri.call_with_user_timeout("CheckpointContainer", answer).await?;
        print(&id)
    })
    .await
}
