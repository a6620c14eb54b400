//! The machine that the agent is on. The agent itself uses no mount, no cgroup and no kernel file for these measurements: the
//! package `machine` does, and a fake replaces it in tests.

use std::io;
use std::path::{Path, PathBuf};

use async_trait::async_trait;

use crate::node::CgroupVersion;

pub mod cgroups;
#[cfg(test)]
pub(crate) mod fake;
pub mod logind;

/// Measures the machine. Each call may block, and measures again.
pub trait Machine: Send + Sync {
    /// Memory and swap, and which of them the kernel can limit.
    fn kernel(&self) -> KernelMemory;
    /// The memory in use.
    ///
    /// # Errors
    /// If the kernel does not report it.
    fn memory(&self) -> io::Result<MemoryUse>;
    /// The memory that a cgroup uses, and its limit; `None`: it has no limit. The path is relative to the root of the hierarchy.
    ///
    /// # Errors
    /// If the kernel does not report it, or there is no such cgroup.
    fn cgroup_memory(&self, path: &str) -> io::Result<Option<MemoryUse>>;
    /// Lets the kernel watch the memory usage of a cgroup, in bytes; `/` is the machine. `None`: the kernel does not support it, as
    /// on cgroup v2.
    ///
    /// # Errors
    /// The kernel's error, with the file.
    fn memory_threshold(
        &self,
        path: &str,
        bytes: u64,
    ) -> io::Result<Option<Box<dyn MemoryThreshold>>>;
    /// The number of process ids in use.
    ///
    /// # Errors
    /// If the kernel does not report it.
    fn processes(&self) -> io::Result<ProcessIds>;
    /// The file system that contains this path.
    ///
    /// # Errors
    /// If there is no such path, or it cannot be reached.
    fn file_system(&self, path: &Path) -> io::Result<FileSystem>;
    /// The mount points at or below a directory; none if there is no such directory.
    ///
    /// # Errors
    /// If the kernel does not report them.
    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The machine's memory and swap, which do not change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelMemory {
    /// The machine's memory, bytes; 0: unknown.
    pub capacity: i64,
    /// The machine's swap, bytes.
    pub swap_capacity: i64,
    /// The version of the cgroup hierarchy.
    pub cgroup_version: CgroupVersion,
    /// Whether the swap of a control group can be limited.
    pub swap_controller: bool,
}

/// A process that the OOM killer killed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup whose limit was reached; `/`: the machine was out of memory.
    pub cgroup: String,
    /// The id and the name of the process, if the kernel reports them.
    pub process: Option<(i32, String)>,
}

/// Memory of the machine or of a cgroup, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// The total.
    pub capacity: u64,
    /// The usage.
    pub usage: u64,
    /// The part of the usage that cannot be reclaimed immediately.
    pub working_set: u64,
}

/// A threshold of memory usage that the kernel watches until this is dropped.
#[async_trait]
pub trait MemoryThreshold: Send {
    /// Waits until the usage has crossed the threshold, in either direction, since the last call. Cancel-safe.
    async fn crossed(&mut self);
}

/// Process ids of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIds {
    /// The maximum number.
    pub limit: u64,
    /// The number in use.
    pub running: u64,
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Identifies the file system.
    pub device: u64,
    /// All bytes.
    pub capacity: u64,
    /// Free bytes.
    pub available: u64,
    /// All inodes; 0 if the file system does not count them.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}
