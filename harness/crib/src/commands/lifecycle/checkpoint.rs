//! `crib checkpoint`: checkpoints running containers.

use crate::commands::prelude::*;

/// Checkpoint running containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib checkpoint --export /var/tmp/web.tar web

The container continues. The runtime writes the archive, so its path must be absolute. Prints the id of each container."))]
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

/// Checkpoints them.
pub(crate) async fn run(args: &CheckpointArgs) -> Result<Exit, CallError> {
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
        // How long it takes depends on the container's memory.
        cri.call_with_user_timeout("CheckpointContainer", answer).await?;
        print(&id)
    })
    .await
}
