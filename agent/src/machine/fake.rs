//! A machine whose numbers a test sets.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use compact::{Map, Set};

use super::{FileSystem, KernelMemory, Machine, MemoryUse, ProcessIds};
use crate::node::CgroupVersion;

/// Clones share the numbers.
#[derive(Clone, Default)]
pub(crate) struct FakeMachine(Arc<Mutex<Numbers>>);

/// What the machine says; `None`: it lacks that.
pub(crate) struct Numbers {
    pub(crate) memory: Option<MemoryUse>,
    pub(crate) processes: Option<ProcessIds>,
    /// The root file system.
    pub(crate) root: FileSystem,
    /// How many bytes others take of it.
    pub(crate) used: Box<dyn Fn() -> u64 + Send>,
    /// Other file systems, by the path at which they begin.
    pub(crate) others: Map<PathBuf, FileSystem>,
    /// Where something is mounted.
    pub(crate) mounts: Set<PathBuf>,
}

impl Default for Numbers {
    /// Plenty of everything, in one file system.
    fn default() -> Self {
        Self {
            memory: Some(MemoryUse { capacity: 8 << 30, working_set: 1 << 30 }),
            processes: Some(ProcessIds { limit: 32_768, running: 100 }),
            root: disk(1, 90),
            used: Box::new(|| 0),
            others: Map::new(),
            mounts: Set::new(),
        }
    }
}

/// A file system of 100 GiB and a million inodes, of which so many percent are free.
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
        self.numbers().memory.ok_or_else(lacks)
    }

    fn processes(&self) -> io::Result<ProcessIds> {
        self.numbers().processes.ok_or_else(lacks)
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

fn lacks() -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, "the machine does not say")
}
