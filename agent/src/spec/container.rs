//! Builds container specifications.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go generateContainerConfig,
//! pkg/kubelet/kubelet_pods.go makeMounts.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, VolumeMount};

use crate::env::{self, EnvError};
use crate::labels;
use crate::observed::ContainerId;
use crate::pod::Pod;
use crate::spec::security::UserError;
use crate::spec::{ContainerSpec, ImageSpec, MountSpec, Node, Propagation, resources, security};

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

/// A prepared volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostVolume {
    /// Its path on the node.
    pub host_path: PathBuf,
    /// Whether the volume itself is read-only.
    pub readonly: bool,
}

/// The inputs for a container specification beside the pod.
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
    /// The prepared volumes by name.
    pub volumes: BTreeMap<String, HostVolume>,
    /// The termination message file on the node; `None`: no such file.
    pub termination_log: Option<PathBuf>,
    /// The running container named by an ephemeral container's `targetContainerName`.
    pub target: Option<ContainerId>,
}

/// Why a container has no valid specification: the message of a waiting state with reason `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerError {
    /// Its environment is invalid.
    #[error(transparent)]
    Env(#[from] EnvError),
    /// Its user is not allowed.
    #[error(transparent)]
    User(#[from] UserError),
    /// A subPath mount, which the agent does not support yet.
    #[error("volume {volume:?} of container {container:?}: subPath is not supported yet")]
    SubPath {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
}

/// Whether to mount the pod's hosts file: the pod has an address or host network, and no volume is mounted at that path.
pub fn mounts_hosts_file(pod: &Pod, container: &Container, ips: &[String]) -> bool {
    let taken = container
        .volume_mounts
        .iter()
        .flatten()
        .any(|mount| mount.mount_path == "/etc/hosts");
    (pod.host_network() || !ips.is_empty()) && !taken
}

/// The path of the pod's hosts file on the node.
pub fn hosts_path(pod: &Pod, node: &Node) -> PathBuf {
    node.pod_dir(pod.uid()).join("etc-hosts")
}

/// Builds the specification of a container.
pub fn container(
    pod: &Pod,
    container: &Container,
    inputs: &ContainerInputs,
    node: &Node,
) -> Result<ContainerSpec, ContainerError> {
    let envs = env::environment(pod, container, &inputs.ips, node)?;
    let values: BTreeMap<&str, &str> = envs
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    let expanded = |words: &Option<Vec<String>>| -> Vec<String> {
        words
            .iter()
            .flatten()
            .map(|word| env::expand(word, |name| values.get(name).copied()))
            .collect()
    };
    let (command, args) = (expanded(&container.command), expanded(&container.args));
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
        mounts: mounts(pod, container, inputs, node)?,
        labels: labels::of_container(pod, container),
        annotations: labels::container_annotations(pod, container, inputs.restart_count),
        log_path: Path::new(&container.name).join(format!("{}.log", inputs.restart_count)),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        resources: resources::of_container(pod, container, node),
        security: security::of_container(
            pod,
            container,
            &inputs.image_user,
            inputs.target.as_ref(),
            node,
        )?,
        envs,
    })
}

fn mounts(
    pod: &Pod,
    container: &Container,
    inputs: &ContainerInputs,
    node: &Node,
) -> Result<Vec<MountSpec>, ContainerError> {
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        // Skip a volume that is not prepared, like the kubelet, which waits for volumes before this step.
        let Some(volume) = inputs.volumes.get(&mount.name) else {
            continue;
        };
        mounts.push(volume_mount(container, mount, volume)?);
    }
    if mounts_hosts_file(pod, container, &inputs.ips) {
        let host_path = hosts_path(pod, node);
        mounts.push(MountSpec {
            container_path: "/etc/hosts".to_owned(),
            host_path,
            ..MountSpec::default()
        });
    }
    let message_path = container
        .termination_message_path
        .as_deref()
        .filter(|path| !path.is_empty());
    if let (Some(path), Some(file)) = (message_path, &inputs.termination_log) {
        let (container_path, host_path) = (cleaned(path), file.clone());
        mounts.push(MountSpec {
            container_path,
            host_path,
            ..MountSpec::default()
        });
    }
    Ok(mounts)
}

fn volume_mount(
    container: &Container,
    mount: &VolumeMount,
    volume: &HostVolume,
) -> Result<MountSpec, ContainerError> {
    let part = |path: &Option<String>| path.as_deref().is_some_and(|path| !path.is_empty());
    if part(&mount.sub_path) || part(&mount.sub_path_expr) {
        let (volume, container) = (mount.name.clone(), container.name.clone());
        return Err(ContainerError::SubPath { volume, container });
    }
    let path = &mount.mount_path;
    Ok(MountSpec {
        container_path: if path.starts_with('/') {
            path.clone()
        } else {
            format!("/{path}")
        },
        host_path: volume.host_path.clone(),
        readonly: mount.read_only == Some(true) || volume.readonly,
        recursive_read_only: mount.recursive_read_only.as_deref() == Some("Enabled"),
        selinux_relabel: false,
        propagation: match mount.mount_propagation.as_deref() {
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            Some(_) | None => Propagation::Private,
        },
    })
}

/// Normalizes a path relative to the root: removes `.`, `..` and doubled slashes.
fn cleaned(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            name => parts.push(name),
        }
    }
    format!("/{}", parts.join("/"))
}
