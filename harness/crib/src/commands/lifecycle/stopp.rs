//! `crib stopp`: stops pods.

use crate::commands::prelude::*;

/// Stop pods with their containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib stopp web
  crib stopp $(crib pods -q --state ready)"))]
pub(crate) struct StoppArgs {
    /// Pods: ids, id prefixes or names
    #[arg(required = true, value_name = "POD")]
    pods: Vec<String>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Stops them.
pub(crate) async fn run(args: &StoppArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    each(&args.pods, async |name: &String| {
        let (cri, pod) = find::pod(&all, name).await?;
        let id = pod.id;
        cri.call("StopPodSandbox", cri.runtime.stop_pod(&id)).await?;
        print(&format!("Stopped sandbox {id}"))
    })
    .await
}
