//! ◆ The resource usage of a container or a pod. A value that the machine does not measure is `None`, never 0.

use std::collections::BTreeMap;

use super::parse::{DeviceIo, Pressure, Traffic};

/// The counters of one cgroup, or of a set of processes without a cgroup.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Usage {
    /// CPU time.
    pub(crate) cpu: Cpu,
    /// Memory.
    pub(crate) memory: Memory,
    /// Block I/O.
    pub(crate) io: Io,
    /// Processes and their descriptors.
    pub(crate) tasks: Tasks,
    /// Huge pages by size as in metrics (`2Mi`).
    pub(crate) huge_pages: BTreeMap<String, HugePages>,
}

/// Huge pages of one size, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// Current usage.
    pub(crate) now: Option<u64>,
    /// Peak usage.
    pub(crate) most: Option<u64>,
}

/// CPU time, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cpu {
    /// Total.
    pub(crate) total: Option<u64>,
    /// In user mode.
    pub(crate) user: Option<u64>,
    /// In kernel mode.
    pub(crate) system: Option<u64>,
    /// Elapsed enforcement periods of the quota.
    pub(crate) periods: Option<u64>,
    /// Periods in which the quota was exhausted.
    pub(crate) throttled_periods: Option<u64>,
    /// Total time for which processes were throttled.
    pub(crate) throttled: Option<u64>,
    /// CPU pressure.
    pub(crate) pressure: Option<Pressure>,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Memory {
    /// Total, including caches.
    pub(crate) usage: Option<u64>,
    /// Peak usage.
    pub(crate) max_usage: Option<u64>,
    /// Inactive file cache, which the working set excludes.
    pub(crate) inactive_file: Option<u64>,
    /// Anonymous memory.
    pub(crate) rss: Option<u64>,
    /// File cache.
    pub(crate) cache: Option<u64>,
    /// Mapped files.
    pub(crate) mapped_file: Option<u64>,
    /// Kernel memory.
    pub(crate) kernel: Option<u64>,
    /// Swap.
    pub(crate) swap: Option<u64>,
    /// How often the limit was reached.
    pub(crate) failures: Option<u64>,
    /// Page faults, including major ones.
    pub(crate) faults: Option<u64>,
    /// Major page faults, which read from disk.
    pub(crate) major_faults: Option<u64>,
    /// Processes killed by the OOM killer.
    pub(crate) oom_kills: Option<u64>,
    /// The limit, if there is one.
    pub(crate) limit: Option<u64>,
    /// The soft limit.
    pub(crate) reservation: Option<u64>,
    /// The swap limit.
    pub(crate) swap_limit: Option<u64>,
    /// Memory pressure.
    pub(crate) pressure: Option<Pressure>,
}

impl Memory {
    /// The working set (Kubernetes: usage without the inactive file cache).
    pub(crate) fn working_set(&self) -> Option<u64> {
        let usage = self.usage?;
        Some(usage.saturating_sub(self.inactive_file.unwrap_or(0)))
    }

    /// The memory available below the limit.
    pub(crate) fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set()?))
    }
}

/// Block I/O.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Io {
    /// By device.
    pub(crate) devices: Vec<DeviceIo>,
    /// I/O pressure.
    pub(crate) pressure: Option<Pressure>,
}

/// Processes and their descriptors.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tasks {
    /// Processes.
    pub(crate) processes: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// The limit on threads, if there is one.
    pub(crate) threads_max: Option<u64>,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
    /// Open sockets.
    pub(crate) sockets: u64,
    /// The soft limit on open files of the first process, if there is one.
    pub(crate) max_descriptors: Option<u64>,
}

/// The disk usage of a writable layer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Bytes on the disk.
    pub(crate) used: u64,
    /// Files and directories.
    pub(crate) inodes: u64,
    /// The file system's size in bytes, its inodes, and its free inodes.
    pub(crate) limit: u64,
    pub(crate) inodes_total: u64,
    pub(crate) inodes_free: u64,
}

/// A pod's network.
pub(crate) type Network = Vec<Traffic>;

/// Nanocores between two measurements, each (nanoseconds since a fixed instant, CPU time). `None` if they are too close to be
/// meaningful, or the counter was reset.
pub(crate) fn nano_cores(before: (u64, u64), now: (u64, u64)) -> Option<u64> {
    /// The counters of v1 have a resolution of 10 ms.
    const LEAST: u64 = 50_000_000;
    let elapsed = now.0.checked_sub(before.0)?;
    let used = now.1.checked_sub(before.1)?;
    if elapsed < LEAST {
        return None;
    }
    u64::try_from(u128::from(used) * 1_000_000_000 / u128::from(elapsed)).ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::half_a_processor((0, 0), (1_000_000_000, 500_000_000), Some(500_000_000))]
    #[case::two_processors((5, 7), (100_000_005, 200_000_007), Some(2_000_000_000))]
    #[case::too_near((0, 0), (49_999_999, 1), None)]
    #[case::a_new_counter((0, 9), (1_000_000_000, 8), None)]
    #[case::for_years((0, 0), (u64::MAX, u64::MAX), Some(1_000_000_000))]
    fn cpu_rate_derives_from_two_samples(
        #[case] before: (u64, u64),
        #[case] now: (u64, u64),
        #[case] expected: Option<u64>,
    ) {
        assert_eq!(nano_cores(before, now), expected);
    }

    #[rstest]
    #[case::no_numbers(Memory::default(), None, None)]
    #[case::no_limit(Memory { usage: Some(10), inactive_file: Some(3), ..Memory::default() }, Some(7), None)]
    #[case::a_limit(Memory { usage: Some(10), limit: Some(20), ..Memory::default() }, Some(10), Some(10))]
    #[case::more_inactive_than_all(Memory { usage: Some(1), inactive_file: Some(3), limit: Some(2), ..Memory::default() }, Some(0), Some(2))]
    fn working_set_and_available_memory_derive_from_usage(
        #[case] memory: Memory,
        #[case] working_set: Option<u64>,
        #[case] available: Option<u64>,
    ) {
        assert_eq!(memory.working_set(), working_set);
        assert_eq!(memory.available(), available);
    }
}
