//! `crib rmp`: removes pods.

use crate::commands::prelude::*;

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
pub(crate) async fn run(args: &RmpArgs) -> Result<Exit, CallError> {
    let all = match args.all {
        true => vec![args.connection.open()?],
        false => args.connection.open_all()?,
    };
    let mut ids = args.pods.clone();
    if let Some(cri) = all.first().filter(|_| args.all) {
        let found = cri.runtime.pods(v1::PodSandboxFilter::default());
        let found = cri.call("ListPodSandbox", found).await?;
        ids.extend(found.into_iter().map(|pod| pod.id));
    }
    each(&ids, async |name: &String| remove(&all, name, args.force).await).await
}

async fn remove(all: &[Cri], name: &str, force: bool) -> Result<(), CallError> {
    let (cri, pod) = find::pod(all, name).await?;
    let id = pod.id;
    if cri.call("PodSandboxStatus", cri.runtime.pod_is_ready(&id)).await? {
        if !force {
            return Err(CallError::StillRunning { what: "pod", name: id });
        }
        cri.call("StopPodSandbox", cri.runtime.stop_pod(&id)).await?;
        print(&format!("Stopped sandbox {id}"))?;
    }
    cri.call("RemovePodSandbox", cri.runtime.remove_pod(&id)).await?;
    print(&format!("Removed sandbox {id}"))
}
