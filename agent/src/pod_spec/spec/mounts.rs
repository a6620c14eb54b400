//! ◆ The mounts of a container.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go makeMounts and makeBlockVolumes.
//!
//! A kubelet bind-mounts each subPath to its own directory below the pod's, which the runtime then mounts. The agent makes no
//! mounts: at the same path it creates a link to the resolved subPath, and names volume and subPath to crib's runtime.

use std::path::{Component, Path, PathBuf};

use api::pod::Pod;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::{Container, VolumeDevice, VolumeMount};

use crate::node::Node;
use crate::pod_spec::env;
use crate::pod_spec::spec::{DeviceSpec, ImageSpec, MountSpec, Propagation};

/// The kernel accepts only shorter paths.
const PATH_MAX: usize = 4096;

/// A mounted volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostVolume {
    /// Its path on the node; empty for an image.
    pub host_path: PathBuf,
    /// Whether the volume itself is read-only.
    pub readonly: bool,
    /// Whether the agent created it, so that its content may get the container's SELinux label.
    pub relabel: bool,
    /// Whether the runtime keeps it in memory, and the path only identifies it.
    pub in_memory: bool,
    /// Whether it is a block device, and the path is a link to it.
    pub is_device: bool,
    /// The name of its persistent volume, if it is one.
    pub spec_name: Option<String>,
    /// The image, for a volume that is one.
    pub image: Option<ImageSpec>,
}

/// A part of a volume to mount: it is created if missing, and linked to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubPath {
    /// The volume's name in the pod.
    pub volume: String,
    /// The container.
    pub container: String,
    /// The path of the volume.
    pub volume_path: PathBuf,
    /// The part, relative to the volume.
    pub path: PathBuf,
    /// The path of the link.
    pub link: PathBuf,
}

/// Why a container's mounts are invalid; the message of a waiting state with reason `CreateContainerConfigError`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// The volume is not mounted.
    #[error("cannot find volume {volume:?} to mount into container {container:?}")]
    NoVolume {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// A device without an absolute path.
    #[error("error DevicePath `{path}` must be an absolute path")]
    DevicePath {
        /// The path.
        path: String,
    },
    /// The volume is not a block device.
    #[error("cannot find volume {volume:?} to pass into container {container:?}")]
    NoDevice {
        /// The volume.
        volume: String,
        /// The container.
        container: String,
    },
    /// Variables of a subPathExpr are missing or empty.
    #[error("missing value for {names}")]
    MissingValue {
        /// The variables.
        names: String,
    },
    /// The subPathExpr expands to more than a path can have.
    #[error(transparent)]
    TooLong(#[from] env::TooLong),
    /// The subPathExpr has a value that is no text.
    #[error(transparent)]
    NotUtf8(#[from] env::NotUtf8),
    /// The subPath is not relative.
    #[error("error SubPath `{path}` must not be an absolute path")]
    Absolute {
        /// The subPath.
        path: String,
    },
    /// The subPath leaves the volume.
    #[error("unable to provision SubPath `{path}`: must not contain '..'")]
    Backsteps {
        /// The subPath.
        path: String,
    },
    /// The mode of propagation does not exist.
    #[error("invalid MountPropagation mode: {mode:?}")]
    Propagation {
        /// The mode.
        mode: String,
    },
    /// The mount cannot be read-only recursively.
    #[error("failed to resolve recursive read-only mode: {problem}")]
    RecursiveReadOnly {
        /// The reason.
        problem: ReadOnlyProblem,
    },
}

/// Why a mount cannot be read-only recursively.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadOnlyProblem {
    /// It is not read-only at all.
    #[error("volume {volume:?} requested recursive read-only mode, but it is not read-only")]
    Writable {
        /// The volume.
        volume: String,
    },
    /// It has propagation.
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not compatible with propagation {propagation:?}"
    )]
    Propagation {
        /// The volume.
        volume: String,
        /// The propagation.
        propagation: String,
    },
    /// The runtime does not support it.
    #[error(
        "volume {volume:?} requested recursive read-only mode, but it is not supported by the runtime"
    )]
    Runtime {
        /// The volume.
        volume: String,
    },
    /// The mode does not exist.
    #[error("unknown recursive read-only mode {mode:?}")]
    Mode {
        /// The mode.
        mode: String,
    },
}

/// The mounts of a container, or why they are invalid, and the parts of volumes to create first in either case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPlan {
    /// The parts of volumes, in order.
    pub sub_paths: Vec<SubPath>,
    /// The mounts, in order.
    pub mounts: Result<Vec<MountSpec>, MountError>,
}

/// Whether to mount the pod's hosts file: the pod has an address or host network, and no volume is mounted at that path.
pub fn mounts_hosts_file(pod: &Pod, container: &Container, ips: &[String]) -> bool {
    let mut mounts = container.volume_mounts.iter().flatten();
    (pod.host_network() || !ips.is_empty()) && !mounts.any(|mount| mount.mount_path == HOSTS)
}

const HOSTS: &str = "/etc/hosts";

/// The path of the pod's hosts file on the node.
pub fn hosts_path(pod: &Pod, node: &Node) -> PathBuf {
    node.pod_dir(pod.uid()).join("etc-hosts")
}

/// A container's block devices from volumes. Kubernetes 1.36, pkg/kubelet/kubelet_pods.go makeBlockVolumes.
pub(super) fn devices(
    container: &Container,
    volumes: &Map<String, HostVolume>,
) -> Result<Vec<DeviceSpec>, MountError> {
    let devices = container.volume_devices.iter().flatten();
    let device = |VolumeDevice { device_path, name }: &VolumeDevice| {
        if !device_path.starts_with('/') {
            return Err(MountError::DevicePath { path: device_path.clone() });
        }
        let volume = volumes.get(name).filter(|volume| volume.is_device);
        let volume = volume.ok_or_else(|| MountError::NoDevice {
            volume: name.clone(),
            container: container.name.clone(),
        })?;
        Ok(DeviceSpec {
            container_path: device_path.clone(),
            host_path: volume.host_path.display().to_string(),
            permissions: if volume.readonly { "r" } else { "mrw" }.to_owned(),
        })
    };
    devices.map(device).collect()
}

/// Plans the mounts of volumes and of the hosts file. `envs` is the container's environment, `ips` are the pod's addresses.
pub fn plan(
    pod: &Pod,
    container: &Container,
    envs: &Map<&str, &[u8]>,
    volumes: &Map<String, HostVolume>,
    ips: &[String],
    node: &Node,
) -> MountPlan {
    let planner = Planner { pod, container, envs, volumes, node };
    let mut sub_paths = Vec::new();
    let mounts = container.volume_mounts.iter().flatten().enumerate();
    let mounts: Result<Vec<MountSpec>, MountError> =
        mounts.map(|(at, mount)| planner.mount(at, mount, &mut sub_paths)).collect();
    let mounts = mounts.map(|mut mounts| {
        if mounts_hosts_file(pod, container, ips) {
            mounts.push(MountSpec {
                name: "k8s-managed-etc-hosts".to_owned(),
                container_path: HOSTS.to_owned(),
                host_path: hosts_path(pod, node),
                selinux_relabel: node.selinux,
                ..MountSpec::default()
            });
        }
        mounts
    });
    MountPlan { sub_paths, mounts }
}

struct Planner<'a> {
    pod: &'a Pod,
    container: &'a Container,
    envs: &'a Map<&'a str, &'a [u8]>,
    volumes: &'a Map<String, HostVolume>,
    node: &'a Node,
}

impl Planner<'_> {
    fn mount(
        &self,
        at: usize,
        mount: &VolumeMount,
        sub_paths: &mut Vec<SubPath>,
    ) -> Result<MountSpec, MountError> {
        let (name, container) = (&mount.name, &self.container.name);
        let volume = self.volumes.get(name).ok_or_else(|| MountError::NoVolume {
            volume: name.clone(),
            container: container.clone(),
        })?;
        let sub_path = self.sub_path(mount)?;
        let mut host_path = volume.host_path.clone();
        if volume.in_memory {
            // The runtime resolves the part in the volume.
            host_path.extend(
                Path::new(&sub_path)
                    .components()
                    .skip_while(|part| matches!(part, Component::RootDir | Component::CurDir)),
            );
        } else if volume.image.is_none() && !sub_path.is_empty() {
            let of_volume = volume.spec_name.as_deref().unwrap_or(name);
            host_path = self
                .node
                .pod_dir(self.pod.uid())
                .join("volume-subpaths")
                .join(of_volume)
                .join(container)
                .join(at.to_string());
            sub_paths.push(SubPath {
                volume: name.clone(),
                container: container.clone(),
                volume_path: volume.host_path.clone(),
                path: sub_path.clone().into(),
                link: host_path.clone(),
            });
        }
        let propagation = match mount.mount_propagation.as_deref() {
            None | Some("None") => Propagation::Private,
            Some("HostToContainer") => Propagation::HostToContainer,
            Some("Bidirectional") => Propagation::Bidirectional,
            Some(mode) => {
                let mode = mode.to_owned();
                return Err(MountError::Propagation { mode });
            }
        };
        let recursive_read_only = self
            .recursive_read_only(mount)
            .map_err(|problem| MountError::RecursiveReadOnly { problem })?;
        Ok(MountSpec {
            name: name.clone(),
            container_path: absolute(&mount.mount_path),
            host_path,
            // A kubelet sets it for every volume of a pod that has image volumes.
            image_sub_path: if self.has_images() { sub_path } else { String::new() },
            image: volume.image.clone(),
            readonly: mount.read_only == Some(true) || volume.readonly,
            recursive_read_only,
            selinux_relabel: volume.relabel && self.node.selinux,
            propagation,
            user_namespace: None,
        })
    }

    fn has_images(&self) -> bool {
        let mut volumes = self.pod.spec().volumes.iter().flatten();
        volumes.any(|volume| volume.image.is_some())
    }

    /// The part of the volume to mount; empty for all of it.
    fn sub_path(&self, mount: &VolumeMount) -> Result<String, MountError> {
        let path = match mount.sub_path_expr.as_deref() {
            None | Some("") => mount.sub_path.clone().unwrap_or_default(),
            Some(expression) => self.expanded(expression)?,
        };
        if path.starts_with('/') {
            return Err(MountError::Absolute { path });
        }
        if path.split('/').any(|part| part == "..") {
            return Err(MountError::Backsteps { path });
        }
        Ok(path)
    }

    fn expanded(&self, expression: &str) -> Result<String, MountError> {
        let missing = std::cell::RefCell::new(Set::new());
        let path = env::expand_bytes(expression, PATH_MAX, |name| {
            let value = self.envs.get(name).copied().unwrap_or_default();
            if value.is_empty() {
                missing.borrow_mut().insert(name.to_owned());
            }
            Some(value)
        });
        let missing: Vec<String> = missing.into_inner().into_iter().collect();
        if missing.is_empty() {
            Ok(String::from_utf8(path?).map_err(|_| env::NotUtf8)?)
        } else {
            let names = missing.join(", ");
            Err(MountError::MissingValue { names })
        }
    }

    fn recursive_read_only(&self, mount: &VolumeMount) -> Result<bool, ReadOnlyProblem> {
        let mode = match mount.recursive_read_only.as_deref() {
            None | Some("Disabled") => return Ok(false),
            Some(mode) => mode,
        };
        let volume = mount.name.clone();
        if mount.read_only != Some(true) {
            return Err(ReadOnlyProblem::Writable { volume });
        }
        if let Some(propagation) = mount.mount_propagation.clone().filter(|mode| mode != "None") {
            return Err(ReadOnlyProblem::Propagation { volume, propagation });
        }
        match (mode, self.runtime_supports_recursion()) {
            ("IfPossible", supported) => Ok(supported),
            ("Enabled", true) => Ok(true),
            ("Enabled", false) => Err(ReadOnlyProblem::Runtime { volume }),
            (mode, _) => Err(ReadOnlyProblem::Mode { mode: mode.to_owned() }),
        }
    }

    fn runtime_supports_recursion(&self) -> bool {
        let class = self.pod.spec().runtime_class_name.as_deref();
        let handler = self.node.runtime_handler(class).ok();
        handler
            .and_then(|handler| self.node.runtime_handlers.as_ref()?.get(&handler).copied())
            .is_some_and(|features| features.recursive_read_only_mounts)
    }
}

/// Makes a path absolute. An absolute path is unchanged.
fn absolute(path: &str) -> String {
    if path.starts_with('/') { path.to_owned() } else { cleaned(path) }
}

/// The mount of a termination message file.
pub(super) fn termination_message(path: &str, file: &Path, node: &Node) -> MountSpec {
    MountSpec {
        container_path: cleaned(path),
        host_path: file.to_owned(),
        selinux_relabel: node.selinux,
        ..MountSpec::default()
    }
}

/// Normalizes a path relative to the root: removes `.`, `..` and doubled slashes.
pub(crate) fn cleaned(path: &str) -> String {
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::json;

    use super::*;

    #[test]
    fn container_gets_the_block_devices_of_its_volumes() {
        let volume = |is_device, readonly| HostVolume {
            host_path: PathBuf::from("/links/pv"),
            is_device,
            readonly,
            ..HostVolume::default()
        };
        let found = |path: &str, volume: Option<HostVolume>| {
            let named = json!([{"name": "v", "devicePath": path}]);
            let container = json!({"name": "app", "volumeDevices": named});
            let volumes = volume.into_iter().map(|volume| ("v".to_owned(), volume)).collect();
            devices(&serde_json::from_value(container).unwrap(), &volumes)
        };
        let device = |permissions: &str| {
            Ok(vec![DeviceSpec {
                container_path: "/dev/xvda".to_owned(),
                host_path: "/links/pv".to_owned(),
                permissions: permissions.to_owned(),
            }])
        };
        assert_eq!(found("/dev/xvda", Some(volume(true, false))), device("mrw"));
        assert_eq!(found("/dev/xvda", Some(volume(true, true))), device("r"));
        let (name, container) = ("v".to_owned(), "app".to_owned());
        let missing = Err(MountError::NoDevice { volume: name, container });
        assert_eq!(found("/dev/xvda", Some(volume(false, false))), missing);
        assert_eq!(found("/dev/xvda", None), missing);
        let relative = Err(MountError::DevicePath { path: "xvda".to_owned() });
        assert_eq!(found("xvda", Some(volume(true, false))), relative);
    }
}
