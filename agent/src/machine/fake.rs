//! A machine with measurements set by a test.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use compact::{Map, Set};
use tokio::sync::watch;

use super::{FileSystem, KernelMemory, Machine, MemoryThreshold, MemoryUse, ProcessIds};
use crate::node::CgroupVersion;

/// Clones share the numbers.
#[derive(Clone, Default)]
pub(crate) struct FakeMachine(Arc<Mutex<Numbers>>);

/// The measurements; `None`: the machine does not support this one.
pub(crate) struct Numbers {
    pub(crate) memory: Option<MemoryUse>,
    /// The memory of cgroups with a limit.
    pub(crate) cgroups: Map<String, MemoryUse>,
    /// The thresholds that the kernel watches, each with its cgroup; `None`: it supports none.
    pub(crate) thresholds: Option<Vec<(String, u64)>>,
    /// The number of times that a threshold was crossed.
    pub(crate) crossed: watch::Sender<u64>,
    pub(crate) processes: Option<ProcessIds>,
    /// The root file system.
    pub(crate) root: FileSystem,
    /// The number of bytes that other data uses on it.
    pub(crate) used: Box<dyn Fn() -> u64 + Send>,
    /// Other file systems, by mount point.
    pub(crate) others: Map<PathBuf, FileSystem>,
    /// The mount points.
    pub(crate) mounts: Set<PathBuf>,
}

impl Default for Numbers {
    /// Enough of every resource, on one file system.
    fn default() -> Self {
        Self {
            memory: Some(memory(8 << 30, 7 << 30)),
            cgroups: Map::new(),
            thresholds: None,
            crossed: watch::Sender::new(0),
            processes: Some(ProcessIds { limit: 32_768, running: 100 }),
            root: disk(1, 90),
            used: Box::new(|| 0),
            others: Map::new(),
            mounts: Set::new(),
        }
    }
}

/// Memory with this much available, and 1 MiB of reclaimable usage.
pub(crate) fn memory(capacity: u64, left: u64) -> MemoryUse {
    let working_set = capacity - left;
    MemoryUse { capacity, usage: working_set + (1 << 20), working_set }
}

/// A file system of 100 GiB and a million inodes, of which this percentage is free.
pub(crate) fn disk(device: u64, free: u64) -> FileSystem {
    FileSystem {
        device,
        capacity: 100 << 30,
        available: free << 30,
        inodes: 1_000_000,
        inodes_free: free * 10_000,
    }
}

impl FakeMachine {
    /// Changes the numbers.
    pub(crate) fn set(&self, change: impl FnOnce(&mut Numbers)) {
        change(&mut self.numbers());
    }

    fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Machine for FakeMachine {
    fn kernel(&self) -> KernelMemory {
        let capacity = self.numbers().memory.map_or(0, |memory| memory.capacity);
        KernelMemory {
            capacity: i64::try_from(capacity).unwrap_or(i64::MAX),
            swap_capacity: 0,
            cgroup_version: CgroupVersion::V2,
            swap_controller: false,
        }
    }

    fn memory(&self) -> io::Result<MemoryUse> {
        self.numbers().memory.ok_or_else(unknown_error)
    }

    fn cgroup_memory(&self, path: &str) -> io::Result<Option<MemoryUse>> {
        Ok(self.numbers().cgroups.get(path).copied())
    }

    fn memory_threshold(
        &self,
        path: &str,
        bytes: u64,
    ) -> io::Result<Option<Box<dyn MemoryThreshold>>> {
        let mut numbers = self.numbers();
        let crossed = numbers.crossed.subscribe();
        let Some(thresholds) = &mut numbers.thresholds else {
            return Ok(None);
        };
        thresholds.push((path.to_owned(), bytes));
        Ok(Some(Box::new(FakeThreshold(crossed))))
    }

    fn processes(&self) -> io::Result<ProcessIds> {
        self.numbers().processes.ok_or_else(unknown_error)
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        let numbers = self.numbers();
        let other = path.ancestors().find_map(|path| numbers.others.get(path));
        let available = numbers.root.available.saturating_sub((numbers.used)());
        Ok(other.copied().unwrap_or(FileSystem { available, ..numbers.root }))
    }

    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        let numbers = self.numbers();
        let mounts = numbers.mounts.iter().filter(|at| at.starts_with(directory));
        Ok(mounts.cloned().collect())
    }
}

/// A threshold that a test has crossed.
struct FakeThreshold(watch::Receiver<u64>);

#[async_trait]
impl MemoryThreshold for FakeThreshold {
    async fn crossed(&mut self) {
        if self.0.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

fn unknown_error() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the machine does not say")
}
