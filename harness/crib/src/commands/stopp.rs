//! `crib stopp`: stops pods.

use clap::Args;

use crate::client::output::print;
use crate::client::{Connection, each, find, finish, with_codes};
use crate::exit::Exit;

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
pub(crate) fn run(args: &StoppArgs) -> Exit {
    finish(async {
        let all = args.connection.open_all()?;
        each(&args.pods, async |name: &String| {
            let (cri, pod) = find::pod(&all, name).await?;
            let id = pod.id;
            cri.call("StopPodSandbox", cri.runtime.stop_pod(&id))
                .await?;
            print(&format!("Stopped sandbox {id}"))
        })
        .await
    })
}
