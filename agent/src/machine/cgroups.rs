//! What the agent asks of the machine's control groups: those of pods, which it makes, limits and removes, and a few that the
//! administrator names. The package `machine` has them as directories; a fake replaces them in tests.

use std::collections::BTreeMap;
use std::io;

use compact::{Map, Set};

#[cfg(test)]
pub(crate) mod fake;
pub(crate) mod timed;

/// Values of a cgroup. What is `None` or absent stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CgroupValues {
    /// CPU shares, 2 to 262144, as cgroup v1 counts them.
    pub cpu_shares: Option<i64>,
    /// CFS quota, -1 for no limit, and period, both in microseconds.
    pub cpu_quota: Option<(i64, i64)>,
    /// Limit of memory in bytes; -1: none.
    pub memory: Option<i64>,
    /// Limit of processes and threads.
    pub pids: Option<i64>,
    /// Limits of huge pages in bytes, by size of the page as `2MB`. A size that the kernel does not have is left out.
    pub huge_pages: Map<String, i64>,
    /// Further files of cgroup v2, with their texts.
    pub unified: BTreeMap<String, String>,
}

impl CgroupValues {
    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// The control groups of the machine. Paths are below the roots of all hierarchies, and begin with `/`. Each call may block, and can be
/// repeated: it continues what an earlier one began.
///
/// Nothing is made, changed or removed but below the agent's own root, and values of cgroups that the administrator has named.
pub trait ControlGroups: Send + Sync {
    /// Which of the controllers that pods are limited by cannot be used, each with the reason and what to set.
    fn lacks(&self) -> Vec<String>;
    /// Makes a cgroup, with those above it, and sets its values.
    ///
    /// # Errors
    /// The kernel's, with the file; or the path is not the agent's.
    fn make(&self, path: &str, values: &CgroupValues) -> io::Result<()>;
    /// Sets values of a cgroup that exists. Those of controllers that the machine lacks are left out.
    ///
    /// # Errors
    /// The kernel's, with the file; or the path is not the agent's; `NotFound`: there is no such cgroup.
    fn set(&self, path: &str, values: &CgroupValues) -> io::Result<()>;
    /// Whether a cgroup exists in every hierarchy.
    fn exists(&self, path: &str) -> bool;
    /// The names of the cgroups in one, in any hierarchy. One that does not exist has none.
    ///
    /// # Errors
    /// The kernel's, with the directory.
    fn children(&self, path: &str) -> io::Result<Set<String>>;
    /// The memory that a cgroup uses, in bytes.
    fn memory_usage(&self, path: &str) -> Option<i64>;
    /// Kills every process in a cgroup and below it, and removes it. One that does not exist is removed.
    ///
    /// # Errors
    /// `ResourceBusy`: killed processes are not gone yet; call it again. Else the kernel's, with the directory.
    fn destroy(&self, path: &str) -> io::Result<()>;
    /// Removes a cgroup that has no process and no other cgroup; one that is in use stays.
    fn remove_empty(&self, path: &str);
}
