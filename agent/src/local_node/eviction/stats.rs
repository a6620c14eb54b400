//! ◆ Measurements of a node and its pods: the part of the kubelet's Summary API that eviction needs.

use serde::Deserialize;

/// Measurements of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStats {
    /// Memory of the node.
    pub memory: Option<MemoryStats>,
    /// The file system of volumes and logs.
    pub fs: Option<FsStats>,
    /// Process ids.
    pub rlimit: Option<RlimitStats>,
    /// File systems of the runtime.
    pub runtime: Option<RuntimeStats>,
    /// Groups of processes; `pods` is the group of all pods.
    pub system_containers: Vec<ContainerStats>,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryStats {
    /// Available bytes.
    pub available_bytes: Option<u64>,
    /// Bytes in use that cannot be reclaimed.
    pub working_set_bytes: Option<u64>,
}

/// A file system, or the usage of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct FsStats {
    /// Free bytes.
    pub available_bytes: Option<u64>,
    /// All bytes.
    pub capacity_bytes: Option<u64>,
    /// Used bytes.
    pub used_bytes: Option<u64>,
    /// Free inodes.
    pub inodes_free: Option<u64>,
    /// All inodes.
    pub inodes: Option<u64>,
    /// Used inodes.
    pub inodes_used: Option<u64>,
}

/// Process ids.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct RlimitStats {
    /// The maximum number.
    #[serde(rename = "maxpid")]
    pub max_pid: Option<i64>,
    /// The number in use.
    #[serde(rename = "curproc")]
    pub running_processes: Option<i64>,
}

/// File systems of the runtime.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RuntimeStats {
    /// Images.
    pub image_fs: Option<FsStats>,
    /// Writable layers of containers.
    pub container_fs: Option<FsStats>,
}

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PodStats {
    /// The pod.
    pub pod_ref: PodReference,
    /// Its containers.
    pub containers: Vec<ContainerStats>,
    /// Memory of the whole pod.
    pub memory: Option<MemoryStats>,
    /// Its volumes.
    #[serde(rename = "volume")]
    pub volumes: Vec<VolumeStats>,
    /// Its processes.
    #[serde(rename = "process_stats")]
    pub processes: Option<ProcessStats>,
}

/// Identifies a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct PodReference {
    /// Its uid.
    pub uid: String,
}

/// A container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ContainerStats {
    /// Its name.
    pub name: String,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Its writable layer.
    pub rootfs: Option<FsStats>,
    /// Its logs.
    pub logs: Option<FsStats>,
}

/// A volume.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct VolumeStats {
    /// Its name in the pod.
    pub name: String,
    /// Its usage.
    #[serde(flatten)]
    pub fs: FsStats,
}

/// Processes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ProcessStats {
    /// Their number.
    #[serde(rename = "process_count")]
    pub count: Option<u64>,
}
