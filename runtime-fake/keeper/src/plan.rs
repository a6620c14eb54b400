//! What a keeper is told to do: plain data, complete, with no choices left in it.
//!
//! What the OCI runtime specification (1.2) has too is called as there; the records and messages keep the names of earlier
//! versions, which their keepers and daemons understand.

mod devices;
mod ids;
mod log;
mod mounts;
mod ports;

use std::{fmt, path::PathBuf};

use serde::{Deserialize, Serialize};

pub use devices::{DeviceKind, DeviceNode, DevicePlan, Found};
pub use ids::{IdMappings, LinuxIdMapping};
pub use log::LogPlan;
pub use mounts::{MountFlag, MountPlan, MountSource, Propagation};
pub use ports::{Forward, ForwardPlan, HostPort, Transport};

use crate::cgroup::CgroupPlan;

/// The isolation that the box allows; the keeper executes the same plan differently in each mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationMode {
    /// All namespaces, made by root.
    Root,
    /// All namespaces, inside a user namespace.
    Rootless,
    /// No namespaces: plain processes.
    Process,
}

/// A pod's own surroundings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodPlan {
    /// The isolation that the daemon runs with.
    #[serde(rename = "rung")]
    pub isolation: IsolationMode,
    /// The sandbox's directory: records of exits go there.
    pub directory: PathBuf,
    /// End, with every container, when the daemon's connection ends.
    pub ephemeral: bool,
    /// The host name to set; empty where the pod has the host's.
    pub hostname: String,
    /// A network namespace of its own.
    pub own_network: bool,
    /// That namespace is made already: the first descriptor that comes along.
    #[serde(default)]
    pub network_given: bool,
    /// An IPC namespace of its own, with its own `/dev/shm`.
    pub own_ipc: bool,
    /// One process namespace for all containers.
    pub shared_pids: bool,
    /// A user namespace of its own, with these ids.
    #[serde(default)]
    pub user_namespace: Option<IdMappings>,
    /// Kernel parameters of the pod's namespaces, by their dotted names.
    #[serde(rename = "sysctls")]
    pub sysctl: Vec<(String, String)>,
    /// The ports of the host that lead to the pod's; none in the host's network.
    pub host_ports: Vec<HostPort>,
    /// Its cgroup, where there can be one.
    #[serde(default)]
    pub cgroup: Option<CgroupPlan>,
    /// The SELinux label of its shared memory, where the box has labels.
    #[serde(rename = "label", default)]
    pub mount_label: Option<String>,
    /// The soft limit of open files of its processes, where it is another one than the keeper's.
    #[serde(default)]
    pub open_files: Option<u64>,
}

/// A container, from its root file system to the arguments of its first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// The isolation that the daemon runs with.
    #[serde(rename = "rung")]
    pub isolation: IsolationMode,
    /// The container's directory: its root is assembled below it.
    pub directory: PathBuf,
    /// Where its files come from.
    pub root: RootPlan,
    /// The ids of the pod's user namespace, if it has one of its own: a copy of the image is given to them.
    #[serde(default)]
    pub ids: Option<IdMappings>,
    /// No write to the root file system.
    #[serde(rename = "read_only_root")]
    pub readonly_root: bool,
    /// The mounts over it, in order.
    pub mounts: Vec<MountPlan>,
    /// The devices it has besides the usual ones.
    pub devices: Vec<devices::DevicePlan>,
    /// Paths that read as empty.
    pub masked_paths: Vec<String>,
    /// Paths that cannot be written.
    #[serde(rename = "read_only_paths")]
    pub readonly_paths: Vec<String>,
    /// Which process namespace it lives in.
    pub pids: Pids,
    /// The IPC namespace is the host's, and so is `/dev/shm`.
    pub host_ipc: bool,
    /// The network namespace is the host's, and so is `/sys`.
    pub host_network: bool,
    /// All devices and no masks.
    pub privileged: bool,
    /// Its log file; none when nothing is to be kept.
    pub log: Option<LogPlan>,
    /// A terminal for its standard streams.
    #[serde(rename = "tty")]
    pub terminal: bool,
    /// Keep an open standard input.
    pub stdin: bool,
    /// The first client that writes to the standard input ends it.
    pub stdin_once: bool,
    /// The adjustment of the out-of-memory score; clamped to what the box allows.
    pub oom_score_adj: Option<i32>,
    /// Its cgroup, where there can be one.
    #[serde(default)]
    pub cgroup: Option<CgroupPlan>,
    /// What is run.
    pub process: ProcessPlan,
    /// The processes that come back instead.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestorePlan>,
}

/// Processes that come back from a checkpoint, in a process namespace of their own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RestorePlan {
    /// criu.
    pub program: PathBuf,
    /// Has criu's images, below `checkpoint`; its log and its word on how it went come here.
    pub directory: PathBuf,
    /// Where there were mounts that are made here, not by criu, by the numbers that criu knows them by.
    pub mounts: Vec<String>,
    /// What their first one had as standard input, output and error.
    pub streams: Vec<String>,
    /// The user that it was started as.
    pub user: UserIds,
}

/// Where a root file system comes from.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootPlan {
    /// The host's own root below a private writable layer.
    Host,
    /// Unpacked layers, topmost first, below a private writable layer.
    Layers(Vec<PathBuf>),
    /// A private copy of the image, in the container's directory already.
    Copied,
}

/// A container's process namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pids {
    /// Its own.
    Own,
    /// The pod's.
    Pod,
    /// The host's.
    Host,
    /// That of another container in the pod, which has to run.
    Target {
        /// Its id.
        container: String,
    },
}

/// A process to be run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessPlan {
    /// The program and its arguments. A program without a slash is looked for in the container's `PATH`.
    #[serde(rename = "argv")]
    pub args: Vec<String>,
    /// `NAME=value`, later ones win.
    pub env: Vec<String>,
    /// The working directory, made if it is not there; empty is where the process is: its root, or without a mount
    /// namespace the container's own directory.
    pub cwd: String,
    /// The user that runs it.
    pub user: UserPlan,
    /// The capabilities in all sets but the ambient one, by their numbers.
    pub capabilities: Vec<u8>,
    /// The capabilities in the ambient set too.
    pub ambient: Vec<u8>,
    /// `execve` grants no privileges.
    #[serde(rename = "no_new_privs")]
    pub no_new_privileges: bool,
    /// The file of the filter for its system calls, as [`crate::seccomp::Filter`] writes it.
    #[serde(default)]
    pub seccomp: Option<PathBuf>,
    /// What the kernel's security modules are told.
    #[serde(default)]
    pub confinement: Confinement,
}

/// How the kernel's security modules confine a container: decided when it is created, for all of its processes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Confinement {
    /// The AppArmor profile.
    #[serde(rename = "apparmor")]
    pub apparmor_profile: Option<String>,
    /// The SELinux label of the processes.
    #[serde(rename = "selinux")]
    pub selinux_label: Option<String>,
    /// The SELinux label of the files.
    #[serde(rename = "files")]
    pub mount_label: Option<String>,
    /// Where the kernel's files are, if not below `/`.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self
            .apparmor_profile
            .iter()
            .map(|p| format!("AppArmor profile {p}"));
        let label = self
            .selinux_label
            .iter()
            .map(|l| format!("SELinux label {l}"));
        f.write_str(&profile.chain(label).collect::<Vec<_>>().join(", "))
    }
}

/// A user, to be looked up in the container's own files.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPlan {
    /// A number or a name; empty is user 0.
    pub user: String,
    /// A number or a name; none is the user's own group.
    pub group: Option<String>,
    /// Further groups.
    #[serde(rename = "groups")]
    pub additional_gids: Vec<u32>,
    /// Also the groups that `/etc/group` gives the user.
    pub merge_groups: bool,
}

/// A further process in a running container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecPlan {
    /// What is run.
    pub process: ProcessPlan,
    /// The user that the container's first process runs as: nothing is looked up in a running container.
    pub user: UserIds,
    /// A terminal for its standard streams.
    #[serde(rename = "tty")]
    pub terminal: bool,
}

/// Numeric ids of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The supplementary groups.
    #[serde(rename = "groups")]
    pub additional_gids: Vec<u32>,
    /// The home directory; empty where it was not looked up.
    #[serde(default)]
    pub home: String,
}

/// Whether a kernel parameter is of the network namespace.
pub fn of_network(name: &str) -> bool {
    name.starts_with("net.") || name.starts_with("net/")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
