//! The plans that the daemon sends to a keeper: plain data, complete, with no choices left in it.
//!
//! Fields that the OCI runtime specification (1.2) also has are named as there. Records and messages keep the names of earlier
//! versions, so that keepers and daemons of earlier versions understand them.

mod act;
mod mounts;
mod ports;

use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::kernel::cgroup::CgroupPlan;
pub use crate::kernel::cgroup::device::DeviceKind;

pub use act::{Act, ActPlan, ChildrenPlan, ExitPlan, LinesPlan, MemoryPlan, OnTerm};
pub use mounts::{MemoryVolume, MountFlag, MountPlan, MountSource, Propagation};
pub use ports::{Forward, ForwardPlan, HostPort, Transport};

/// The isolation mode of the daemon; the keeper executes the same plan differently in each mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IsolationMode {
    /// All namespaces, created by root.
    Root,
    /// All namespaces, inside a user namespace.
    Rootless,
    /// No namespaces: plain processes.
    Process,
}

/// A pod's namespaces and their settings.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct PodPlan {
    /// The isolation that the daemon runs with.
    #[serde(rename = "rung")]
    pub isolation: IsolationMode,
    /// The sandbox's directory, where the keeper writes exit records.
    pub directory: PathBuf,
    /// Kill every container and exit when the connection to the daemon ends.
    pub ephemeral: bool,
    /// The host name to set; empty if the pod uses the host's.
    pub hostname: String,
    /// A network namespace of its own.
    pub own_network: bool,
    /// The network namespace exists already; its descriptor is the first one sent with the call.
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
    /// Default kernel parameters of its network namespace. Errors are ignored: the kernel may not allow them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub default_sysctl: Vec<(String, String)>,
    /// The host ports to forward to the pod; none in the host's network.
    pub host_ports: Vec<HostPort>,
    /// Its cgroup, if the host allows one.
    #[serde(default)]
    pub cgroup: Option<CgroupPlan>,
    /// The SELinux label of its shared memory, on a host with SELinux.
    #[serde(rename = "label", default)]
    pub mount_label: Option<String>,
    /// The soft limit of open files of its processes, if it differs from the keeper's.
    #[serde(default)]
    pub open_files: Option<u64>,
    /// Its volumes in memory.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub memory_volumes: Vec<MemoryVolume>,
}

/// A container, from its root file system to the arguments of its first process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LaunchPlan {
    /// The isolation that the daemon runs with.
    #[serde(rename = "rung")]
    pub isolation: IsolationMode,
    /// The container's directory: its root is assembled below it.
    pub directory: PathBuf,
    /// The source of its root file system.
    pub root: RootPlan,
    /// The id mappings of the pod's user namespace, if it has its own. A copied image is chowned to them.
    #[serde(default)]
    pub ids: Option<IdMappings>,
    /// The root file system is read-only.
    #[serde(rename = "read_only_root")]
    pub readonly_root: bool,
    /// The mounts over it, in order.
    pub mounts: Vec<MountPlan>,
    /// Its devices, in addition to the default ones.
    pub devices: Vec<DevicePlan>,
    /// Paths that the keeper masks, so that they read as empty.
    pub masked_paths: Vec<String>,
    /// Paths that the keeper makes read-only.
    #[serde(rename = "read_only_paths")]
    pub readonly_paths: Vec<String>,
    /// Its process namespace.
    pub pids: Pids,
    /// It uses the host's IPC namespace and `/dev/shm`.
    pub host_ipc: bool,
    /// It uses the host's network namespace and `/sys`.
    pub host_network: bool,
    /// It has all devices and no masked paths.
    pub privileged: bool,
    /// Its log file; none if the output is not logged.
    pub log: Option<LogPlan>,
    /// Its standard streams are a terminal.
    #[serde(rename = "tty")]
    pub terminal: bool,
    /// Keep its standard input open.
    pub stdin: bool,
    /// Its standard input is closed when the first client's is.
    pub stdin_once: bool,
    /// The oom_score_adj; without CAP_SYS_RESOURCE the kernel rejects a lower value than the current one.
    pub oom_score_adj: Option<i32>,
    /// Its cgroup, if the host allows one.
    #[serde(default)]
    pub cgroup: Option<CgroupPlan>,
    /// The process to run.
    pub process: ProcessPlan,
    /// The checkpointed processes to restore instead of running it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restore: Option<RestorePlan>,
}

/// Processes to restore from a checkpoint, in a process namespace of their own.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RestorePlan {
    /// The path of criu.
    pub program: PathBuf,
    /// Holds criu's images, in `checkpoint`; criu's log and result are written here.
    pub directory: PathBuf,
    /// criu's ids of the external mounts, which the keeper makes instead of criu.
    pub mounts: Vec<String>,
    /// The standard input, output and error of the first process.
    pub streams: Vec<String>,
    /// The user that the first process was started as.
    pub user: UserIds,
}

/// The source of a root file system.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RootPlan {
    /// The host's own root below a private writable layer.
    Host,
    /// Unpacked layers, topmost first, below a private writable layer.
    Layers(Vec<PathBuf>),
    /// A private copy of the image, already in the container's directory.
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
    /// The process namespace of another container in the pod, which must be running.
    Target {
        /// Its id.
        container: String,
    },
}

/// A process to run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ProcessPlan {
    /// The program and its arguments. A program without a slash is looked up in the container's `PATH`.
    #[serde(rename = "argv")]
    pub args: Vec<String>,
    /// `NAME=value`; the last value of a name counts.
    pub env: Vec<String>,
    /// The working directory, created if it is missing. Empty means the current one: the root, or without a mount
    /// namespace the container's directory.
    pub cwd: String,
    /// The user that runs it.
    pub user: UserPlan,
    /// The numbers of the capabilities in all sets except the ambient one.
    pub capabilities: Vec<u8>,
    /// The numbers of the capabilities that are in the ambient set too.
    pub ambient: Vec<u8>,
    /// `execve` grants no privileges (PR_SET_NO_NEW_PRIVS).
    #[serde(rename = "no_new_privs")]
    pub no_new_privileges: bool,
    /// The file of its seccomp filter, in the form of [`crate::kernel::seccomp::Filter`].
    #[serde(default)]
    pub seccomp: Option<PathBuf>,
    /// Its AppArmor profile and SELinux label.
    #[serde(default)]
    pub confinement: Confinement,
    /// The simulated behaviour that replaces the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub act: Option<Act>,
}

/// How the kernel's security modules confine a container: decided at its creation, for all of its processes.
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
    /// The directory of the kernel's files, if it is not `/`.
    #[serde(default)]
    pub kernel: Option<PathBuf>,
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let profile = self.apparmor_profile.iter().map(|p| format!("AppArmor profile {p}"));
        let label = self.selinux_label.iter().map(|l| format!("SELinux label {l}"));
        f.write_str(&profile.chain(label).collect::<Vec<_>>().join(", "))
    }
}

/// A user to look up in the container's `/etc/passwd` and `/etc/group`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserPlan {
    /// A number or a name; empty means user 0.
    pub user: String,
    /// A number or a name; none means the user's primary group.
    pub group: Option<String>,
    /// Supplementary groups.
    #[serde(rename = "groups")]
    pub additional_gids: Vec<u32>,
    /// Add the groups that `/etc/group` lists the user in.
    pub merge_groups: bool,
}

/// Another process in a running container.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ExecPlan {
    /// The process to run.
    pub process: ProcessPlan,
    /// The user of the container's first process: the keeper looks nothing up in a running container.
    pub user: UserIds,
    /// Its standard streams are a terminal.
    #[serde(rename = "tty")]
    pub terminal: bool,
}

/// The numeric ids of a process.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct UserIds {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The supplementary groups.
    #[serde(rename = "groups")]
    pub additional_gids: Vec<u32>,
    /// The home directory; empty if it was not looked up.
    #[serde(default)]
    pub home: String,
}

/// Whether a kernel parameter belongs to the network namespace.
pub fn of_network(name: &str) -> bool {
    name.starts_with("net.") || name.starts_with("net/")
}

/// A range of ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinuxIdMapping {
    /// The first id in the user namespace.
    #[serde(rename = "inside")]
    pub container_id: u32,
    /// The first id on the host.
    #[serde(rename = "outside")]
    pub host_id: u32,
    /// The number of ids.
    #[serde(rename = "count")]
    pub size: u32,
}

/// The id mappings of a user namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdMappings {
    /// Users.
    #[serde(rename = "uids")]
    pub uid_mappings: Vec<LinuxIdMapping>,
    /// Groups.
    #[serde(rename = "gids")]
    pub gid_mappings: Vec<LinuxIdMapping>,
}

impl IdMappings {
    /// The host's user and group that are root in the namespace.
    pub fn root(&self) -> (u32, u32) {
        let root = |maps: &[LinuxIdMapping]| maps.first().map_or(0, |map| map.host_id);
        (root(&self.uid_mappings), root(&self.gid_mappings))
    }

    /// The host's owner of a file that has `uid` and `gid` in the namespace; none for an id without a mapping.
    pub fn shift(&self, uid: u32, gid: u32) -> Option<(u32, u32)> {
        let shift = |maps: &[LinuxIdMapping], id: u32| {
            let map = maps
                .iter()
                .find(|map| id.checked_sub(map.container_id).is_some_and(|at| at < map.size))?;
            Some(map.host_id + (id - map.container_id))
        };
        Some((shift(&self.uid_mappings, uid)?, shift(&self.gid_mappings, gid)?))
    }
}

/// A log file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogPlan {
    /// The absolute directory that the file must stay in.
    pub directory: PathBuf,
    /// The path relative to that directory.
    pub path: PathBuf,
    /// The maximum size in bytes; a log that would exceed it is truncated first.
    #[serde(default)]
    pub max: Option<NonZeroU64>,
}

impl LogPlan {
    /// The absolute path.
    pub fn whole(&self) -> PathBuf {
        self.directory.join(&self.path)
    }
}

/// A device in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its absolute path in the container.
    pub path: PathBuf,
    /// Its path on the host, which is mounted if mknod(2) is not allowed.
    pub host: PathBuf,
    /// Its device node.
    pub node: DeviceNode,
    /// The allowed access, in the form of cgroups: some of `r`, `w` and `m`.
    pub access: String,
}

/// A device node, as on the host or in a specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Its file mode.
    #[serde(rename = "mode")]
    pub file_mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// A device found on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HostDevice {
    /// Its path below the searched path; empty if that is the device itself.
    pub below: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
    /// Its device node.
    pub node: DeviceNode,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
