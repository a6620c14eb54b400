//! `crib runp`: runs a pod sandbox from a configuration of the CRI.

use crate::client::config::{pod_config, set_uid};
use crate::commands::prelude::*;

/// Run a pod sandbox, without containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib runp pod.json
  crib runp --runtime strict pod.yaml

The file is a PodSandboxConfig of the CRI in JSON or YAML, as for crictl. Prints the pod's id. `crib run` runs manifests \
of Kubernetes."))]
pub(crate) struct RunpArgs {
    /// Configuration of the pod
    #[arg(value_name = "POD-CONFIG")]
    config: String,
    /// Runtime handler [default: the runtime's default]
    #[arg(short, long, default_value = "", hide_default_value = true)]
    runtime: String,
    /// Timeout of the call [default: --timeout]
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration)]
    cancel_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Runs it.
pub(crate) async fn run(args: &RunpArgs) -> Result<Exit, CallError> {
    let mut config = pod_config(&args.config)?;
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
