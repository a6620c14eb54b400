//! `crib start`: starts created containers.

use crate::commands::prelude::*;

/// Start created containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib start 3f1c

Prints the id of each container."))]
pub(crate) struct StartArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required = true, value_name = "CONTAINER")]
    containers: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Starts them.
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
