//! Pods: `crib runp` runs a pod sandbox from a CRI configuration, `crib stopp` stops pods, and `crib rmp` removes them.

use crate::client::config::{pod_config, set_uid};
use crate::commands::prelude::*;

/// Run a pod sandbox, without containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib runp pod.json
  crib runp --runtime strict pod.yaml

POD-CONFIG is a file with a PodSandboxConfig of the CRI in JSON or YAML, as with crictl. `crib runp` prints the pod's id. To \
run Kubernetes manifests, use `crib run`."))]
pub(crate) struct RunpArgs {
    /// Configuration of the pod
    #[arg(value_name = "POD-CONFIG")]
    config: String,
    /// Runtime handler [default: the runtime's default handler]
    #[arg(short, long, default_value = "", hide_default_value = true)]
    runtime: String,
    /// Timeout of RunPodSandbox [default: the value of --timeout]
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration)]
    cancel_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Runs the pod sandbox.
pub(crate) async fn run(args: &RunpArgs) -> Result<Exit, CallError> {
    let mut config = pod_config(&args.config).await?;
    set_uid(&mut config);
    let mut cri = args.connection.open()?;
    cri.set_timeout(args.cancel_timeout);
    let request =
        v1::RunPodSandboxRequest { config: Some(config), runtime_handler: args.runtime.clone() };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("RunPodSandbox", client.run_pod_sandbox(request));
    print(&answer.await?.into_inner().pod_sandbox_id)?;
    Ok(Exit::Success)
}

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

/// Stops the pods.
pub(crate) async fn stop(args: &StoppArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    each(&args.pods, async |name: &String| {
        let (cri, pod) = find::pod(&all, name).await?;
        let id = pod.id;
        cri.call("StopPodSandbox", cri.runtime.stop_pod(&id)).await?;
        print(&format!("Stopped sandbox {id}"))
    })
    .await
}

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

/// Removes the pods.
pub(crate) async fn remove_all(args: &RmpArgs) -> Result<Exit, CallError> {
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
