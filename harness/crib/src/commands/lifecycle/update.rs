//! `crib update`: changes the resource limits of containers. `crib update-runtime-config`: sets the pod CIDR of a runtime.

use crate::commands::prelude::*;

/// Change the resource limits of containers
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib update --memory 67108864 web
  crib update --cpu-period 100000 --cpu-quota 50000 web

A limit that is 0 or not given stays unchanged. `crib update` prints the id of each container."))]
pub(crate) struct UpdateArgs {
    /// Containers: ids, id prefixes or names
    #[arg(required = true, value_name = "CONTAINER")]
    containers: Vec<String>,
    /// CPU CFS period in microseconds
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    cpu_period: i64,
    /// CPU CFS quota in microseconds: CPU time per period
    #[arg(long, default_value_t = 0, hide_default_value = true, allow_negative_numbers = true)]
    cpu_quota: i64,
    /// CPU shares: weight relative to other containers
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    cpu_share: i64,
    /// Memory limit in bytes
    #[arg(long, default_value_t = 0, hide_default_value = true)]
    memory: i64,
    /// CPUs to use: 0-2,7
    #[arg(long, default_value = "", hide_default_value = true)]
    cpuset_cpus: String,
    /// NUMA memory nodes to use
    #[arg(long, default_value = "", hide_default_value = true)]
    cpuset_mems: String,
    /// Adjustment of the OOM score, from -1000 to 1000
    #[arg(long, default_value_t = 0, hide_default_value = true, allow_negative_numbers = true)]
    oom_score_adj: i64,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Updates the containers.
pub(crate) async fn run(args: &UpdateArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let limits = v1::LinuxContainerResources {
        cpu_period: args.cpu_period,
        cpu_quota: args.cpu_quota,
        cpu_shares: args.cpu_share,
        memory_limit_in_bytes: args.memory,
        cpuset_cpus: args.cpuset_cpus.clone(),
        cpuset_mems: args.cpuset_mems.clone(),
        oom_score_adj: args.oom_score_adj,
        ..Default::default()
    };
    each(&args.containers, async |name: &String| {
        let (cri, container) = find::container(&all, name).await?;
        let id = container.id;
        let request = v1::UpdateContainerResourcesRequest {
            container_id: id.clone(),
            linux: Some(limits.clone()),
            ..Default::default()
        };
        let mut client = cri.runtime.runtime.clone();
        let answer = client.update_container_resources(request);
        cri.call("UpdateContainerResources", answer).await?;
        print(&id)
    })
    .await
}

/// Set the pod CIDR of the runtime
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib update-runtime-config --pod-cidr 10.88.0.0/16"))]
pub(crate) struct UpdateRuntimeConfigArgs {
    /// Pod CIDR, such as 10.88.0.0/16
    #[arg(short, long, value_name = "CIDR")]
    pod_cidr: String,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Sets the pod CIDR.
pub(crate) async fn update_runtime_config(
    args: &UpdateRuntimeConfigArgs,
) -> Result<Exit, CallError> {
    let cri = args.connection.open()?;
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(v1::RuntimeConfig {
            network_config: Some(v1::NetworkConfig { pod_cidr: args.pod_cidr.clone() }),
        }),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = client.update_runtime_config(request);
    cri.call("UpdateRuntimeConfig", answer).await?;
    print_stderr("runtime configuration updated");
    Ok(Exit::Success)
}
