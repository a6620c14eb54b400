//! What the agent asks of the machine that it is on. The agent itself knows no mount, no cgroup and no file of the kernel for these:
//! the package `machine` reads them, and a fake replaces it in tests.

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
    /// Memory and swap, and what of it the kernel can limit.
    fn kernel(&self) -> KernelMemory;
    /// How much memory is in use.
    ///
    /// # Errors
    /// The kernel does not say.
    fn memory(&self) -> io::Result<MemoryUse>;
    /// How much memory a cgroup uses of its limit; `None`: it has no limit. The path is below the root of the hierarchy.
    ///
    /// # Errors
    /// The kernel does not say, or there is no such cgroup.
    fn cgroup_memory(&self, path: &str) -> io::Result<Option<MemoryUse>>;
    /// Has the kernel watch the memory that a cgroup uses, in bytes; `/` is the machine. `None`: this kernel does not, which is so on
    /// cgroup v2.
    ///
    /// # Errors
    /// The kernel's, with the file.
    fn memory_threshold(
        &self,
        path: &str,
        bytes: u64,
    ) -> io::Result<Option<Box<dyn MemoryThreshold>>>;
    /// How many process ids are in use.
    ///
    /// # Errors
    /// The kernel does not say.
    fn processes(&self) -> io::Result<ProcessIds>;
    /// The file system that has this path.
    ///
    /// # Errors
    /// There is no such path, or it cannot be reached.
    fn file_system(&self, path: &Path) -> io::Result<FileSystem>;
    /// What is mounted on a directory or below it; nothing if there is no such directory.
    ///
    /// # Errors
    /// The kernel does not say.
    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>>;
}

/// What the kernel says of memory and swap, which does not change.
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

/// A process that the kernel killed because memory was used up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OomKill {
    /// The cgroup whose limit was reached; `/`: there was no memory left on the machine.
    pub cgroup: String,
    /// The id and the name of the process, as far as the kernel says them.
    pub process: Option<(i32, String)>,
}

/// Memory of the machine or of a cgroup, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryUse {
    /// All.
    pub capacity: u64,
    /// What is in use.
    pub usage: u64,
    /// What of that cannot be reclaimed at once.
    pub working_set: u64,
}

/// An amount of memory in use that the kernel watches, until it is dropped.
#[async_trait]
pub trait MemoryThreshold: Send {
    /// Waits until the memory in use has crossed the amount, in either direction, since the last time. Cancel-safe.
    async fn crossed(&mut self);
}

/// Process ids of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProcessIds {
    /// The most there may be.
    pub limit: u64,
    /// How many are in use.
    pub running: u64,
}

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// What tells it from others.
    pub device: u64,
    /// All bytes.
    pub capacity: u64,
    /// Free bytes.
    pub available: u64,
    /// All inodes; 0 where they are not counted.
    pub inodes: u64,
    /// Free inodes.
    pub inodes_free: u64,
}
