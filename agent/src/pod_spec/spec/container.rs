//! ◆ Builds container specifications.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go generateContainerConfig.

use std::path::{Path, PathBuf};

use api::pod::Pod;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Container;

use crate::labels;
use crate::objects::ObjectMap;
use crate::observed::ContainerId;
use crate::pod_spec::env::{self, EnvError, EnvFiles, EnvInputs};
use crate::pod_spec::spec::mounts::{self, MountError};
use crate::pod_spec::spec::security::{self, SecurityError};
use crate::pod_spec::spec::{
    Assigned, ContainerSpec, DeviceSpec, HostVolume, ImageSpec, MountSpec, Node, PodGrants,
    SubPath, resources,
};

/// The user in an image's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ImageUser {
    /// Not set.
    #[default]
    Unset,
    /// A numeric id.
    Id(i64),
    /// A name in the image's /etc/passwd.
    Name(String),
}

/// The inputs of a container specification beside the pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerInputs {
    /// Restart count.
    pub restart_count: u32,
    /// The pod's addresses, the primary one first.
    pub ips: Vec<String>,
    /// The runtime's image reference.
    pub image_ref: String,
    /// The user in the image's configuration.
    pub image_user: ImageUser,
    /// The mounted volumes by name.
    pub volumes: Map<String, HostVolume>,
    /// Files of environment variables in these volumes.
    pub env_files: EnvFiles,
    /// The termination message file on the node; `None`: no such file.
    pub termination_log: Option<PathBuf>,
    /// The container named by an ephemeral container's `targetContainerName`.
    pub target: Option<ContainerId>,
    /// The agent's allocations for the pod.
    pub grants: PodGrants,
    /// The container's allocated resources.
    pub assigned: Assigned,
}

/// Why a container has no valid specification: the message of its waiting state.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// Its environment is invalid.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// Its mounts are wrong.
    #[error(transparent)]
    Mounts(#[from] MountError),
    /// Its security settings are wrong.
    #[error(transparent)]
    Security(#[from] SecurityError),
}

impl ContainerError {
    /// True if every retry fails with this manifest.
    pub(crate) fn is_of_manifest(&self) -> bool {
        match self {
            Self::Env(error) => error.is_of_manifest(),
            Self::Mounts(MountError::NotUtf8(_)) => false,
            Self::Mounts(_) | Self::Security(_) => true,
        }
    }

    /// The reason of the waiting state. A kubelet finds out that a value is no text when it sends CreateContainer.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Env(EnvError::NotUtf8(_)) | Self::Mounts(MountError::NotUtf8(_)) => {
                "CreateContainerError"
            }
            Self::Env(_) | Self::Mounts(_) | Self::Security(_) => "CreateContainerConfigError",
        }
    }
}

/// How to create a container.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerPlan {
    /// The subPaths to create in its volumes first, in order, even if there is no specification.
    pub sub_paths: Vec<SubPath>,
    /// Its specification.
    pub spec: Result<ContainerSpec, ContainerError>,
}

/// Builds the specification of a container. `objects` are those that its variables may refer to; `None` without an API server.
pub fn container(
    pod: &Pod,
    container: &Container,
    inputs: &ContainerInputs,
    objects: Option<&ObjectMap>,
    node: &Node,
) -> ContainerPlan {
    match mounted(pod, container, inputs, objects, node) {
        Err(error) => ContainerPlan { sub_paths: Vec::new(), spec: Err(error) },
        Ok((envs, devices, plan)) => ContainerPlan {
            sub_paths: plan.sub_paths,
            spec: plan.mounts.map_err(ContainerError::from).and_then(|mounts| {
                with_mounts(pod, container, inputs, envs, (devices, mounts), node)
            }),
        },
    }
}

type Envs = Vec<(String, Vec<u8>)>;

fn by_name(envs: &Envs) -> Map<&str, &[u8]> {
    let pairs = envs.iter();
    pairs.map(|(name, value)| (name.as_str(), value.as_slice())).collect()
}

/// The environment of assigned devices, and then the container's own, which takes precedence.
fn with_assigned(assigned: &Assigned, own: Envs) -> Envs {
    let names: Set<&str> = own.iter().map(|(name, _)| name.as_str()).collect();
    let is_kept = |(name, _): &&(String, String)| !names.contains(name.as_str());
    let kept = assigned.envs.iter().filter(is_kept);
    let mut envs: Envs =
        kept.map(|(name, value)| (name.clone(), value.clone().into_bytes())).collect();
    envs.extend(own);
    envs
}

/// The environment, the devices of volumes and, with the environment, the mounts.
fn mounted(
    pod: &Pod,
    container: &Container,
    inputs: &ContainerInputs,
    objects: Option<&ObjectMap>,
    node: &Node,
) -> Result<(Envs, Vec<DeviceSpec>, mounts::MountPlan), ContainerError> {
    let devices = mounts::devices(container, &inputs.volumes)?;
    let sources = EnvInputs { node, ips: &inputs.ips, objects, files: &inputs.env_files };
    let own = env::environment(pod, container, sources)?;
    let envs = with_assigned(&inputs.assigned, own);
    let plan = mounts::plan(pod, container, &by_name(&envs), &inputs.volumes, &inputs.ips, node);
    Ok((envs, devices, plan))
}

fn with_mounts(
    pod: &Pod,
    container: &Container,
    inputs: &ContainerInputs,
    envs: Envs,
    (own_devices, own_mounts): (Vec<DeviceSpec>, Vec<MountSpec>),
    node: &Node,
) -> Result<ContainerSpec, ContainerError> {
    security::check_user(pod, container, &inputs.image_user).map_err(SecurityError::from)?;
    let assigned = &inputs.assigned;
    let mut mounts = [assigned.mounts.clone(), own_mounts].concat();
    let values = by_name(&envs);
    let expanded = |words: &Option<Vec<String>>| -> Result<Vec<String>, EnvError> {
        let words = words.as_deref().unwrap_or_default();
        let words = env::expand_words_of_bytes(words, |name| values.get(name).copied())?;
        let texts = words.into_iter().map(String::from_utf8);
        Ok(texts.collect::<Result<_, _>>().map_err(|_| env::NotUtf8)?)
    };
    let (command, args) = (expanded(&container.command)?, expanded(&container.args)?);
    let message_path =
        container.termination_message_path.as_deref().filter(|path| !path.is_empty());
    if let (Some(path), Some(file)) = (message_path, &inputs.termination_log) {
        mounts.push(mounts::termination_message(path, file, node));
    }
    let security = security::of_container(
        pod,
        container,
        &inputs.image_user,
        inputs.target.as_ref(),
        &inputs.grants,
        node,
    )?;
    for mount in &mut mounts {
        mount.user_namespace.clone_from(&security.namespaces.user);
    }
    let mut annotations = assigned.annotations.clone();
    annotations.extend(labels::container_annotations(pod, container, inputs.restart_count));
    let mut resources = resources::of_container(pod, container, node);
    resources.cpuset_cpus.clone_from(&assigned.cpus);
    resources.cpuset_mems.clone_from(&assigned.memory_nodes);
    // Kubernetes 1.36, gate DisableCPUQuotaWithExclusiveCPUs.
    if assigned.cpus_are_exclusive && node.cpu_quota {
        resources.cpu_quota = -1;
    }
    let lifecycle = container.lifecycle.as_ref();
    let stop_signal = lifecycle.and_then(|lifecycle| lifecycle.stop_signal.clone());
    Ok(ContainerSpec {
        name: container.name.clone(),
        attempt: inputs.restart_count,
        image: ImageSpec {
            image: inputs.image_ref.clone(),
            user_specified: container.image.clone().unwrap_or_default(),
            ..ImageSpec::default()
        },
        command,
        args,
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts,
        devices: [assigned.devices.clone(), own_devices].concat(),
        cdi_devices: assigned.cdi_devices.clone(),
        labels: labels::of_container(pod, container),
        annotations,
        log_path: Path::new(&container.name).join(format!("{}.log", inputs.restart_count)),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        stop_signal: stop_signal.filter(|_| node.container_stop_signals).unwrap_or_default(),
        resources,
        security,
        envs,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    #[rstest]
    #[case::argument("args", json!(["$(KEY)"]))]
    #[case::sub_path(
        "volumeMounts",
        json!([{"name": "v", "mountPath": "/v", "subPathExpr": "$(KEY)"}])
    )]
    fn values_that_are_no_text_are_rejected_outside_the_environment(
        #[case] field: &str,
        #[case] value: Value,
    ) {
        let secret = json!({
            "metadata": {"name": "s", "namespace": "default"},
            "data": {"KEY": "/4A="},
        });
        let key = json!({"secretKeyRef": {"name": "s", "key": "KEY"}});
        let mut app = json!({"name": "c", "env": [{"name": "KEY", "valueFrom": key}]});
        app[field] = value;
        let spec = json!({
            "enableServiceLinks": false,
            "containers": [app],
            "volumes": [{"name": "v", "emptyDir": {}}],
        });
        let pod = fixtures::pod_of("u", "p", spec);
        let mut objects = ObjectMap::default();
        objects.insert_secret(serde_json::from_value(secret).unwrap());
        let volumes = [("v".to_owned(), HostVolume::default())].into_iter().collect();
        let inputs = ContainerInputs { volumes, ..ContainerInputs::default() };
        let node = Node::new("n", "/r", "/l");
        let plan = container(&pod, &pod.spec().containers[0], &inputs, Some(&objects), &node);
        let error = plan.spec.unwrap_err();
        assert_eq!(error.reason(), "CreateContainerError");
        assert_eq!(
            error.to_string(),
            "grpc: error while marshaling: string field contains invalid UTF-8"
        );
        assert!(!error.is_of_manifest(), "the Secret may change");
    }
}
