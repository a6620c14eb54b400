//! `crib update-runtime-config`: gives a runtime the addresses of its pods.

use crate::commands::prelude::*;

/// Set the pod CIDR of the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib update-runtime-config --pod-cidr 10.88.0.0/16"))]
pub(crate) struct UpdateRuntimeConfigArgs {
    /// Addresses of pods
    #[arg(short, long, value_name = "CIDR")]
    pod_cidr: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Sets them.
pub(crate) async fn run(args: &UpdateRuntimeConfigArgs) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(v1::RuntimeConfig {
            network_config: Some(v1::NetworkConfig { pod_cidr: args.pod_cidr.clone() }),
        }),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = client.update_runtime_config(request);
    cri.call("UpdateRuntimeConfig", answer).await?;
    say("runtime configuration updated");
    Ok(Exit::Success)
}
