//! The machine's cgroups: those of pods, which the agent creates, limits and removes, and a few that the administrator names. The
//! package `machine` implements them as directories; a fake replaces them in tests.

use std::collections::BTreeMap;
use std::io;

use compact::{Map, Set};

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod timed;

/// Values of a cgroup. A value that is `None` or absent stays unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupValues {
    /// CPU shares on cgroup v1's scale, 2 to 262144.
    pub cpu_shares: Option<i64>,
    /// CFS quota, -1 for no limit, and period, both in microseconds.
    pub cpu_quota: Option<(i64, i64)>,
    /// Memory limit in bytes; -1: unlimited.
    pub memory: Option<i64>,
    /// Limit of processes and threads.
    pub pids: Option<i64>,
    /// Limits of huge pages in bytes, by page size as `2MB`. Sizes that the kernel does not support are ignored.
    pub huge_pages: Map<String, i64>,
    /// Further files of cgroup v2, with their contents.
    pub unified: BTreeMap<String, String>,
}

impl CgroupValues {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The cgroups of the machine. Paths are relative to the roots of all hierarchies, and begin with `/`. Each call may block, and is
/// idempotent: a repeated call continues an interrupted one.
///
/// Only cgroups below the agent's own root are created, changed or removed, and only values of cgroups that the administrator has
/// named.
pub trait ControlGroups: Send + Sync {
    /// The controllers for limiting pods that cannot be used, each with the reason and the remedy.
    fn missing_controllers(&self) -> Vec<String>;
    /// Creates a cgroup and its parents, and sets its values.
    ///
    /// # Errors
    /// The kernel's error, with the file; or the path is not the agent's.
    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()>;
    /// Sets values of an existing cgroup. Values of controllers that the machine lacks are ignored.
    ///
    /// # Errors
    /// The kernel's error, with the file; or the path is not the agent's; `NotFound`: there is no such cgroup.
    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()>;
    /// Whether a cgroup exists in every hierarchy.
    fn exists(&self, path: &str) -> bool;
    /// The names of a cgroup's children, in any hierarchy. A cgroup that does not exist has none.
    ///
    /// # Errors
    /// The kernel's error, with the directory.
    fn children(&self, path: &str) -> io::Result<Set<String>>;
    /// The memory that a cgroup uses, in bytes.
    fn memory_usage(&self, path: &str) -> Option<i64>;
    /// Kills every process in a cgroup and below it, and removes it. A cgroup that does not exist counts as removed.
    ///
    /// # Errors
    /// `ResourceBusy`: killed processes still exist; call it again. Otherwise the kernel's error, with the directory.
    fn destroy(&self, path: &str) -> io::Result<()>;
    /// Removes a cgroup without processes and children; one that is in use stays.
    fn remove_empty(&self, path: &str);
}
