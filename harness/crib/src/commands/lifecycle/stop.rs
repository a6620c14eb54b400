//! `crib stop`: stops running containers.

use crate::client::{CALL_TIMEOUT, Endpoints};
use crate::commands::prelude::*;

/// Stop running containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib stop 3f1c
  crib stop --timeout 30 web
  crib stop --all

Prints the id of each container."))]
pub(crate) struct StopArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required_unless_present = "all", value_name = "CONTAINER")]
    containers: Vec<String>,
    /// Seconds until a container that ignores its stop signal is killed
    #[arg(short, long, value_name = "SECONDS", default_value_t = 0, value_parser = clap::value_parser!(i64).range(0..))]
    timeout: i64,
    /// Stop all running containers
    #[arg(short, long, conflicts_with = "containers")]
    all: bool,
    #[command(flatten)]
    pub(crate) connection: Endpoints,
}

/// Stops them.
pub(crate) async fn run(args: &StopArgs) -> Result<Exit, CallError> {
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
    // The runtime answers when the grace period is over at the latest.
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
