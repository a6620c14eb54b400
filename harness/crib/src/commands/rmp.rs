//! `crib rmp`: removes pods.

use clap::Args;
use cri::v1;

use crate::client::output::print;
use crate::client::{CallError, Connection, Cri, each, find, finish, with_codes};
use crate::exit::Exit;

/// Remove pods with their containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib rmp web
  crib rmp --all --force"))]
pub(crate) struct RmpArgs {
    /// Pods: ids, id prefixes or names
    #[arg(required_unless_present = "all", value_name = "POD")]
    pods: Vec<String>,
    /// Stop ready pods first
    #[arg(short, long)]
    force: bool,
    /// Remove all pods
    #[arg(short, long, conflicts_with = "pods")]
    all: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Removes them.
pub(crate) fn run(args: &RmpArgs) -> Exit {
    finish(async {
        let cri = args.connection.open()?;
        let mut ids = args.pods.clone();
        if args.all {
            let all = cri.runtime.pods(v1::PodSandboxFilter::default());
            let all = cri.call("ListPodSandbox", all).await?;
            ids.extend(all.into_iter().map(|pod| pod.id));
        }
        each(&ids, async |name: &String| {
            remove(&cri, name, args.force).await
        })
        .await
    })
}

async fn remove(cri: &Cri, name: &str, force: bool) -> Result<(), CallError> {
    let id = find::pod(cri, name).await?.id;
    if cri
        .call("PodSandboxStatus", cri.runtime.pod_is_ready(&id))
        .await?
    {
        if !force {
            return Err(CallError::StillRunning {
                what: "pod",
                name: id,
            });
        }
        cri.call("StopPodSandbox", cri.runtime.stop_pod(&id))
            .await?;
        print(&format!("Stopped sandbox {id}"))?;
    }
    cri.call("RemovePodSandbox", cri.runtime.remove_pod(&id))
        .await?;
    print(&format!("Removed sandbox {id}"))
}
