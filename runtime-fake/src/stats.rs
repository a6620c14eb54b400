//! What containers and pods use: read from their cgroups, and from `/proc` where there are none.
//!
//! [`parse`] and [`usage`] are pure, and so are [`metrics`]; [`cgroup`] and [`process`] read, [`disk`] looks at files.

mod cgroup;
mod disk;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod metrics;
pub(crate) mod parse;
mod process;
pub(crate) mod usage;

use std::{
    collections::HashMap,
    path::Path,
    sync::{Mutex, PoisonError},
    time::Instant,
};

pub(crate) use disk::of_layer;
use keeper::cgroup::CgroupPath;
pub(crate) use usage::{Disk, Usage};

/// What `cgroup` uses, or without one the processes below `first`. Blocks: it reads files.
pub(crate) fn usage(cgroup: Option<&CgroupPath>, first: Option<i32>) -> Usage {
    let inside = cgroup.map(cgroup::processes).unwrap_or_default();
    let processes = match (first, inside.is_empty()) {
        (Some(first), true) => process::descendants(first),
        _ => inside,
    };
    let mut usage = match cgroup {
        Some(cgroup) => cgroup::usage(cgroup),
        None => Usage::default(),
    };
    // What no cgroup counts, the processes that are there now tell.
    if usage.cpu.total.is_none() {
        usage.cpu = process::cpu(&processes);
    }
    if usage.memory.usage.is_none() {
        usage.memory = process::memory(&processes);
    }
    let limit = usage.tasks.threads_max;
    usage.tasks = process::tasks(&processes, first);
    usage.tasks.threads_max = limit;
    usage
}

/// The interfaces of the network namespace of `process`, without the loopback.
pub(crate) fn traffic(process: i32) -> usage::Network {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    parse::net_dev(&text)
}

/// The measurement that a rate begins with, and the rate up to the one before.
type Rate = ((u64, u64), Option<u64>);

/// The last measurement of each container's processor time, for the rate between two.
pub(crate) struct Rates {
    began: Instant,
    last: Mutex<HashMap<String, Rate>>,
}

impl Default for Rates {
    fn default() -> Self {
        let began = Instant::now();
        let last = Mutex::default();
        Self { began, last }
    }
}

impl Rates {
    /// Billionths of a processor since the measurement before; none for the first one.
    pub(crate) fn nano_cores(&self, id: &str, total: u64) -> Option<u64> {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (elapsed, total);
        let Some((before, rate)) = last.get_mut(id) else {
            last.insert(id.to_owned(), (now, None));
            return None;
        };
        // Two questions at once have one answer.
        if let Some(new) = usage::nano_cores(*before, now) {
            (*before, *rate) = (now, Some(new));
        }
        *rate
    }

    /// Forgets those that are gone.
    pub(crate) fn keep(&self, there: impl Fn(&str) -> bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|id, _| there(id));
    }
}

/// The directory that a container's writable layer is in; none where it is in memory, as that over the host's root is.
pub(crate) fn layer(container_dir: &Path) -> Option<std::path::PathBuf> {
    // The kernel makes this directory where an overlay has its upper one beside it.
    if container_dir.join("layer/work/work").is_dir() {
        return Some(container_dir.join("layer/upper"));
    }
    // The copy of an image; it is empty where it is only what a root is mounted over.
    let copy = container_dir.join("rootfs");
    let has_files = std::fs::read_dir(&copy).is_ok_and(|mut files| files.next().is_some());
    has_files.then_some(copy)
}
