//! `crib create`: creates a container from a CRI configuration.

use crate::client::config::{container_config, pod_config, set_uid};
use crate::client::credentials::CredentialArgs;
use crate::commands::prelude::*;

/// Create a container in a pod
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib create web container.json pod.json
  crib start $(crib create --with-pull web container.yaml pod.yaml)

CONTAINER-CONFIG is a file with a ContainerConfig of the CRI, and POD-CONFIG is a file with the pod's PodSandboxConfig, each \
in JSON or YAML, as with crictl. `crib create` prints the container's id."))]
pub(crate) struct CreateArgs {
    /// Pod: id, id prefix or name
    pod: String,
    /// Configuration of the container
    #[arg(value_name = "CONTAINER-CONFIG")]
    config: String,
    /// Configuration of the pod
    #[arg(value_name = "POD-CONFIG")]
    pod_config: String,
    /// First pull the container's image and the images that the container mounts
    #[arg(long)]
    with_pull: bool,
    /// Do not pull images, even if crictl's configuration file sets pull-image-on-create
    #[arg(long, conflicts_with = "with_pull")]
    no_pull: bool,
    #[command(flatten)]
    credentials: CredentialArgs,
    /// Timeout of the pull [default: none]
    #[arg(long, value_name = "TIME", value_parser = duration, env = "CRICTL_PULL_TIMEOUT", hide_env_values = true)]
    pull_timeout: Option<Duration>,
    /// Timeout of CreateContainer [default: the value of --timeout]
    #[arg(short = 'T', long, value_name = "TIME", value_parser = duration)]
    cancel_timeout: Option<Duration>,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Creates the container.
pub(crate) async fn run(args: &CreateArgs) -> Result<Exit, CallError> {
    let mut config = container_config(&args.config).await?;
    let mut pod_config = pod_config(&args.pod_config).await?;
    let auth = args.credentials.auth().await?;
    let settings = args.connection.endpoints.settings()?;
    let mut all = args.connection.open_all()?;
    for cri in &mut all {
        cri.set_timeout(args.cancel_timeout);
    }
    let (cri, pod) = find::pod(&all, &args.pod).await?;
    set_uid(&mut pod_config);
    if args.with_pull || (settings.pull_on_create && !args.no_pull) {
        pull(args, cri, &config, &pod_config, auth).await?;
    }
    let image = config.image.get_or_insert_default();
    if image.user_specified_image.is_empty() {
        image.user_specified_image.clone_from(&image.image);
    }
    let request = v1::CreateContainerRequest {
        pod_sandbox_id: pod.id,
        config: Some(config),
        sandbox_config: Some(pod_config),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("CreateContainer", client.create_container(request));
    print(&answer.await?.into_inner().container_id)?;
    Ok(Exit::Success)
}

/// Pulls the container's image and the images that it mounts.
async fn pull(
    args: &CreateArgs,
    cri: &Cri,
    config: &v1::ContainerConfig,
    pod_config: &v1::PodSandboxConfig,
    auth: Option<v1::AuthConfig>,
) -> Result<(), CallError> {
    let mounted = config.mounts.iter().filter_map(|mount| mount.image.clone());
    let images = config.image.clone().into_iter().chain(mounted);
    for image in images.filter(|image| !image.image.is_empty()) {
        let pulled = crate::commands::image_store::pull::Pull {
            image: v1::ImageSpec {
                image: image.image,
                annotations: image.annotations,
                ..Default::default()
            },
            auth: auth.clone(),
            pod_config: Some(pod_config.clone()),
            timeout: args.pull_timeout,
        };
        pulled.run(cri).await?;
    }
    Ok(())
}
