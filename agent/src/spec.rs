//! What the agent asks the runtime to make, in the agent's own words: sandbox, container, mounts, security.

mod container;
pub mod resources;
mod sandbox;
mod security;

use std::collections::BTreeMap;
use std::path::PathBuf;

pub use crate::dns::DnsConfig;
pub use crate::node::Node;
pub use container::{
    ContainerError, ContainerInputs, HostVolume, ImageUser, container, hosts_path,
    mounts_hosts_file,
};
pub use sandbox::{SandboxError, sandbox};
pub use security::UserError;

/// A sandbox to make: what RunPodSandbox gets.
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
    /// Where container logs go, absolute.
    pub log_directory: PathBuf,
    /// resolv.conf for the pod.
    pub dns: DnsConfig,
    /// Ports published on the node.
    pub port_mappings: Vec<PortMapping>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Cgroup to work below; empty: the runtime's choice.
    pub cgroup_parent: String,
    /// Kernel settings of the pod's namespaces.
    pub sysctls: BTreeMap<String, String>,
    /// Resources the sandbox itself costs.
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
    /// Which protocol.
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
    /// Further groups of every container.
    pub supplemental_groups: Vec<i64>,
    /// `true`: groups of the image's /etc/group do not count (policy Strict).
    pub strict_supplemental_groups: bool,
    /// Some container of the pod is privileged.
    pub privileged: bool,
    /// SELinux label.
    pub selinux: Option<Selinux>,
    /// seccomp profile.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile.
    pub apparmor: Option<SecurityProfile>,
}

/// Which namespaces are whose.
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

/// Whose namespace something is in.
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

/// A user namespace of the pod's own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UserNamespace {
    /// First id on the node.
    pub host_id: u32,
    /// First id in the pod.
    pub container_id: u32,
    /// How many ids.
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
    /// One of the node's: a file (seccomp, absolute) or a name (AppArmor).
    Localhost(String),
}

/// A container to make: what CreateContainer gets beside the sandbox.
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
    /// Environment, in order; names are unique.
    pub envs: Vec<(String, String)>,
    /// Mounts, in order.
    pub mounts: Vec<MountSpec>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Log file, relative to the sandbox's log directory.
    pub log_path: PathBuf,
    /// Keep a standard input open.
    pub stdin: bool,
    /// Close it when the first client leaves.
    pub stdin_once: bool,
    /// Give it a terminal.
    pub tty: bool,
    /// Limits.
    pub resources: Resources,
    /// Users, capabilities, profiles.
    pub security: ContainerSecurity,
}

/// An image to run or to pull.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageSpec {
    /// Reference or id by which the runtime knows it.
    pub image: String,
    /// As the pod's author wrote it.
    pub user_specified: String,
    /// Runtime handler it is for; empty: the default one.
    pub runtime_handler: String,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
}

/// One mount.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MountSpec {
    /// Path in the container.
    pub container_path: String,
    /// Path on the node; empty for an image volume.
    pub host_path: PathBuf,
    /// Not writable.
    pub readonly: bool,
    /// Not writable, mounts below it included.
    pub recursive_read_only: bool,
    /// The content may get the container's SELinux label.
    pub selinux_relabel: bool,
    /// How mounts below it spread.
    pub propagation: Propagation,
}

/// How mounts made below a mount spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// Not at all.
    #[default]
    Private,
    /// From the node to the container.
    HostToContainer,
    /// Both ways.
    Bidirectional,
}

/// Resource limits in the kernel's units; 0 or empty: not set.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resources {
    /// CFS period, microseconds.
    pub cpu_period: i64,
    /// CFS quota, microseconds a period.
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
    /// All of the node's powers.
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
    /// Further groups.
    pub supplemental_groups: Vec<i64>,
    /// `true`: groups of the image's /etc/group do not count (policy Strict).
    pub strict_supplemental_groups: bool,
    /// Set no_new_privs.
    pub no_new_privs: bool,
    /// Paths hidden from it.
    pub masked_paths: Vec<String>,
    /// Paths it may not write.
    pub readonly_paths: Vec<String>,
    /// seccomp profile.
    pub seccomp: Option<SecurityProfile>,
    /// AppArmor profile.
    pub apparmor: Option<SecurityProfile>,
}
