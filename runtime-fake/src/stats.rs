//! Resource usage of containers and pods: from their cgroups, and from `/proc` without cgroups.
//!
//! [`parse`], [`usage`] and [`metrics`] are pure; [`cgroup`] and [`process`] read files, [`disk`] walks over
//! layers, and [`layers`] limits these walks.

mod cgroup;
mod disk;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod layers;
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

pub(crate) use disk::{of_layer, of_texts};
use keeper::kernel::cgroup::CgroupPath;
pub(crate) use layers::LayerUsages;
pub(crate) use usage::{Disk, Usage};

/// The usage of `cgroup`, or without a cgroup of the processes below `first`. Blocks: it reads files.
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
    // If no cgroup counts CPU time, sum up the processes that run now.
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

/// The traffic of the interfaces in the network namespace of `process`, without the loopback.
pub(crate) fn traffic(process: i32) -> usage::Network {
    let text = std::fs::read_to_string(format!("/proc/{process}/net/dev")).unwrap_or_default();
    parse::net_dev(&text)
}

/// The measurement at which a rate starts, and the rate before it.
type Rate = ((u64, u64), Option<u64>);

/// The last measurement of each container's CPU time, for rates.
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
    /// Nanocores since the previous measurement; `None` for the first one.
    pub(crate) fn nano_cores(&self, id: &str, total: u64) -> Option<u64> {
        let elapsed = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let now = (elapsed, total);
        let Some((before, rate)) = last.get_mut(id) else {
            last.insert(id.to_owned(), (now, None));
            return None;
        };
        // A measurement too soon after the previous one returns the previous rate.
        if let Some(new) = usage::nano_cores(*before, now) {
            (*before, *rate) = (now, Some(new));
        }
        *rate
    }

    /// Removes all ids for which `there` is false.
    pub(crate) fn retain(&self, there: impl Fn(&str) -> bool) {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        last.retain(|id, _| there(id));
    }
}

/// The directory of a container's writable layer; `None` if the layer is in memory, as for the host's image.
pub(crate) fn layer(container_dir: &Path) -> Option<std::path::PathBuf> {
    // The kernel creates this directory when an overlay with this work directory is mounted.
    if container_dir.join("layer/work/work").is_dir() {
        return Some(container_dir.join("layer/upper"));
    }
    // A copy of an image. It is empty if it is only a mount point for the root.
    let copy = container_dir.join("rootfs");
    let has_files = std::fs::read_dir(&copy).is_ok_and(|mut files| files.next().is_some());
    has_files.then_some(copy)
}
