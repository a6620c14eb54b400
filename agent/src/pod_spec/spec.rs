//! ◆ Specifications of sandboxes and containers for the runtime, independent of the wire format.

mod amounts;
pub mod cgroup;
mod container;
pub mod cpu;
pub(crate) mod memory;
mod memory_qos;
pub mod mounts;
mod namespaces;
pub mod qos;
pub mod resources;
mod sandbox;
mod security;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use crate::node::{
    CgroupDriver, CgroupVersion, HandlerFeatures, Node, NodeAddress, SwapBehavior,
};
pub use crate::pod_spec::dns::DnsConfig;
pub use container::{ContainerError, ContainerInputs, ContainerPlan, ImageUser, container};
pub use mounts::{HostVolume, SubPath, hosts_path, mounts_hosts_file};
pub use namespaces::NamespaceError;
pub(crate) use resources::page_size_name;
pub use sandbox::{SandboxError, sandbox};
pub use security::{SecurityError, UserError};

/// The agent's allocations for the pod: an input of its sandbox and containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodGrants {
    /// The ids of its user namespace, if it has one.
    pub user_namespace: Option<UserNamespace>,
    /// Supplementary groups of its persistent volumes.
    pub supplemental_groups: Vec<i64>,
}

/// A container's allocated resources: CPUs, memory nodes and devices, and what containers need to use the devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assigned {
    /// Its CPUs, as `0-3,7`; empty: any.
    pub cpus: String,
    /// Whether no other container has them, so that the container has no CPU quota.
    pub cpus_are_exclusive: bool,
    /// The memory nodes of its memory, as `0,1`; empty: any.
    pub memory_nodes: String,
    /// Devices.
    pub devices: Vec<DeviceSpec>,
    /// The names of CDI devices, as `vendor.com/class=name`.
    pub cdi_devices: Vec<String>,
    /// Mounts, before those of its volumes.
    pub mounts: Vec<MountSpec>,
    /// Environment, before the container's own, which takes precedence.
    pub envs: Vec<(String, String)>,
    /// Annotations; those of the agent take precedence.
    pub annotations: BTreeMap<String, String>,
}

/// A device of the node in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node.
    pub host_path: String,
    /// The permitted access: `r`, `w`, `m`.
    pub permissions: String,
}

/// A sandbox to create: the input of RunPodSandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxSpec {
    /// Pod name.
    pub name: String,
    /// Pod namespace.
    pub namespace: String,
    /// Pod uid.
    pub uid: String,
    /// Attempt number, from 0.
    pub attempt: u32,
    /// Host name; empty with `hostNetwork`.
    pub hostname: String,
    /// Directory of container logs, absolute.
    pub log_directory: PathBuf,
    /// resolv.conf for the pod.
    pub dns: DnsConfig,
    /// Ports published on the node.
    pub port_mappings: Vec<PortMapping>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Parent cgroup; empty: the runtime's choice.
    pub cgroup_parent: String,
    /// Sysctls of the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Overhead of the sandbox itself.
    pub overhead: Resources,
    /// Sum of the containers' resources.
    pub resources: Resources,
    /// Namespaces, users, profiles.
    pub security: SandboxSecurity,
    /// Runtime handler; empty: the default one.
    pub runtime_handler: String,
}

/// One port published on the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PortMapping {
    /// Transport protocol.
    pub protocol: Protocol,
    /// Port in the pod.
    pub container_port: i32,
    /// Port on the node; 0: none.
    pub host_port: i32,
    /// Address on the node; empty: all.
    pub host_ip: String,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// SCTP.
    Sctp,
}

/// Security settings of a sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxSecurity {
    /// Shared namespaces.
    pub namespaces: Namespaces,
    /// User of the sandbox's own process.
    pub run_as_user: Option<i64>,
    /// Group of the sandbox's own process.
    pub run_as_group: Option<i64>,
    /// Supplementary groups of every container.
    pub supplemental_groups: Vec<i64>,
    /// `true`: ignore the groups of the image's /etc/group (policy Strict).
    pub strict_supplemental_groups: bool,
    /// Whether a container of the pod is privileged.
    pub privileged: bool,
    /// SELinux label.
    pub selinux: Option<Selinux>,
    /// seccomp profile.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile.
    pub apparmor: Option<SecurityProfile>,
}

/// Namespace modes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Network.
    pub network: NamespaceMode,
    /// Process ids.
    pub pid: NamespaceMode,
    /// IPC.
    pub ipc: NamespaceMode,
    /// The container whose process-id namespace is joined, with [`NamespaceMode::Target`].
    pub target_id: String,
    /// User namespace; `None`: the node's.
    pub user: Option<UserNamespace>,
}

/// The owner of a namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NamespaceMode {
    /// The pod's.
    #[default]
    Pod,
    /// The container's own.
    Container,
    /// The node's.
    Node,
    /// Another container's.
    Target,
}

/// The user namespace of a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserNamespace {
    /// First id on the node.
    pub host_id: u32,
    /// First id in the pod.
    pub container_id: u32,
    /// Number of ids.
    pub length: u32,
}

/// A SELinux label.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selinux {
    /// User.
    pub user: String,
    /// Role.
    pub role: String,
    /// Type.
    pub kind: String,
    /// Level.
    pub level: String,
}

/// A seccomp or AppArmor profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SecurityProfile {
    /// The runtime's default.
    RuntimeDefault,
    /// None.
    Unconfined,
    /// A profile of the node: an absolute path (seccomp) or a name (AppArmor).
    Localhost(String),
}

/// A container to create: the input of CreateContainer in addition to the sandbox.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerSpec {
    /// Name in the pod spec.
    pub name: String,
    /// Attempt number = restart count.
    pub attempt: u32,
    /// The image.
    pub image: ImageSpec,
    /// Replaces the image's entry point, if not empty.
    pub command: Vec<String>,
    /// Replaces the image's arguments, if not empty.
    pub args: Vec<String>,
    /// Working directory; empty: the image's.
    pub working_dir: String,
    /// Environment, in order, with unique names; values of Secrets may be any bytes.
    pub envs: Vec<(String, Vec<u8>)>,
    /// Mounts, in order.
    pub mounts: Vec<MountSpec>,
    /// Devices.
    pub devices: Vec<DeviceSpec>,
    /// Names of CDI devices.
    pub cdi_devices: Vec<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Log file, relative to the sandbox's log directory.
    pub log_path: PathBuf,
    /// Keep standard input open.
    pub stdin: bool,
    /// Close standard input when the first client disconnects.
    pub stdin_once: bool,
    /// Allocate a terminal.
    pub tty: bool,
    /// Name of the signal that stops it, such as `SIGTERM`; empty: the image's.
    pub stop_signal: String,
    /// Resource limits.
    pub resources: Resources,
    /// Users, capabilities, profiles.
    pub security: ContainerSecurity,
}

/// An image to run or to pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// The runtime's reference or id.
    pub image: String,
    /// The reference in the pod spec.
    pub user_specified: String,
    /// Runtime handler it is for; empty: the default one.
    pub runtime_handler: String,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountSpec {
    /// Name of the volume; empty for a termination message. The runtime does not get it.
    pub name: String,
    /// Path in the container.
    pub container_path: String,
    /// Path on the node; empty for an image volume.
    pub host_path: PathBuf,
    /// Read-only.
    pub readonly: bool,
    /// Read-only, including submounts.
    pub recursive_read_only: bool,
    /// Relabel the content with the container's SELinux label.
    pub selinux_relabel: bool,
    /// Mount propagation.
    pub propagation: Propagation,
    /// The image to mount, instead of a path on the node.
    pub image: Option<ImageSpec>,
    /// The part of the image; empty: all of it.
    pub image_sub_path: String,
    /// The ids that the files' owners are mapped to.
    pub user_namespace: Option<UserNamespace>,
}

/// Mount propagation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// None (private).
    #[default]
    Private,
    /// From the node to the container (HostToContainer).
    HostToContainer,
    /// In both directions (Bidirectional).
    Bidirectional,
}

/// Resource limits in the kernel's units; 0 or empty: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CFS period, microseconds.
    pub cpu_period: i64,
    /// CFS quota, microseconds per period.
    pub cpu_quota: i64,
    /// CPU shares (cgroup v1 scale).
    pub cpu_shares: i64,
    /// Memory limit, bytes.
    pub memory_limit: i64,
    /// Memory and swap limit, bytes.
    pub memory_swap_limit: i64,
    /// oom_score_adj.
    pub oom_score_adj: i64,
    /// Huge page limits: page size (`2MB`) and bytes.
    pub hugepage_limits: Vec<(String, u64)>,
    /// The CPUs, as `0-3,7`.
    pub cpuset_cpus: String,
    /// The memory nodes, as `0,1`.
    pub cpuset_mems: String,
    /// cgroup v2 settings by file name.
    pub unified: BTreeMap<String, String>,
}

/// Security settings of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerSecurity {
    /// Capabilities added and dropped, without `CAP_`.
    pub add_capabilities: Vec<String>,
    /// Capabilities dropped.
    pub drop_capabilities: Vec<String>,
    /// Privileged: full access to the node.
    pub privileged: bool,
    /// Shared namespaces.
    pub namespaces: Namespaces,
    /// SELinux label.
    pub selinux: Option<Selinux>,
    /// User id; `None`: see `run_as_username`.
    pub run_as_user: Option<i64>,
    /// Group id.
    pub run_as_group: Option<i64>,
    /// User name, resolved in the image; empty: the image's user.
    pub run_as_username: String,
    /// The root file system is read-only.
    pub readonly_rootfs: bool,
    /// Supplementary groups.
    pub supplemental_groups: Vec<i64>,
    /// `true`: ignore the groups of the image's /etc/group (policy Strict).
    pub strict_supplemental_groups: bool,
    /// Set no_new_privs.
    pub no_new_privs: bool,
    /// Masked paths.
    pub masked_paths: Vec<String>,
    /// Read-only paths.
    pub readonly_paths: Vec<String>,
    /// seccomp profile.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile.
    pub apparmor: Option<SecurityProfile>,
}
