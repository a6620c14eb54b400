//! ◆ What a container or a pod uses: plain numbers. What the box does not count is none, never 0.

use std::collections::BTreeMap;

use super::parse::{DeviceIo, Pressure, Traffic};

/// All that is counted for one cgroup, or for a set of processes where there is none.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Usage {
    /// Processor time.
    pub(crate) cpu: Cpu,
    /// Memory.
    pub(crate) memory: Memory,
    /// Input and output.
    pub(crate) io: Io,
    /// Processes and what they hold.
    pub(crate) tasks: Tasks,
    /// Huge pages by the size that a metric gives (`2Mi`).
    pub(crate) huge_pages: BTreeMap<String, HugePages>,
}

/// Huge pages of one size, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HugePages {
    /// In use.
    pub(crate) now: Option<u64>,
    /// The most so far.
    pub(crate) most: Option<u64>,
}

/// Processor time, in nanoseconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Cpu {
    /// All of it.
    pub(crate) total: Option<u64>,
    /// In user mode.
    pub(crate) user: Option<u64>,
    /// In kernel mode.
    pub(crate) system: Option<u64>,
    /// Periods of the quota that were begun.
    pub(crate) periods: Option<u64>,
    /// ... of these, those in which the quota was used up.
    pub(crate) throttled_periods: Option<u64>,
    /// How long everything waited for the next period.
    pub(crate) throttled: Option<u64>,
    /// Waiting for a processor.
    pub(crate) pressure: Option<Pressure>,
}

/// Memory, in bytes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Memory {
    /// All, caches included.
    pub(crate) usage: Option<u64>,
    /// The most so far.
    pub(crate) max_usage: Option<u64>,
    /// Of files, but not in use for long: what is left out of the working set.
    pub(crate) inactive_file: Option<u64>,
    /// Of no file.
    pub(crate) rss: Option<u64>,
    /// Of files.
    pub(crate) cache: Option<u64>,
    /// Of files, mapped.
    pub(crate) mapped_file: Option<u64>,
    /// The kernel's own.
    pub(crate) kernel: Option<u64>,
    /// On swap.
    pub(crate) swap: Option<u64>,
    /// How often the limit was met.
    pub(crate) failures: Option<u64>,
    /// Page faults, the major ones included.
    pub(crate) faults: Option<u64>,
    /// Those that read from disk.
    pub(crate) major_faults: Option<u64>,
    /// Processes killed for want of memory.
    pub(crate) oom_kills: Option<u64>,
    /// The limit; none when there is none.
    pub(crate) limit: Option<u64>,
    /// The soft limit.
    pub(crate) reservation: Option<u64>,
    /// The limit of memory on swap.
    pub(crate) swap_limit: Option<u64>,
    /// Waiting for memory.
    pub(crate) pressure: Option<Pressure>,
}

impl Memory {
    /// What would not be freed under pressure (Kubernetes: usage less the inactive files).
    pub(crate) fn working_set(&self) -> Option<u64> {
        let usage = self.usage?;
        Some(usage.saturating_sub(self.inactive_file.unwrap_or(0)))
    }

    /// What is left below the limit.
    pub(crate) fn available(&self) -> Option<u64> {
        Some(self.limit?.saturating_sub(self.working_set()?))
    }
}

/// Input and output.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Io {
    /// On each device.
    pub(crate) devices: Vec<DeviceIo>,
    /// Waiting for devices.
    pub(crate) pressure: Option<Pressure>,
}

/// Processes and what they hold.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tasks {
    /// Processes.
    pub(crate) processes: u64,
    /// Threads.
    pub(crate) threads: u64,
    /// How many there may be; none without a limit.
    pub(crate) threads_max: Option<u64>,
    /// Open file descriptors.
    pub(crate) descriptors: u64,
    /// Sockets among them.
    pub(crate) sockets: u64,
    /// The soft limit of open files of the first process; none without a limit.
    pub(crate) max_descriptors: Option<u64>,
}

/// What a writable layer takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Disk {
    /// Bytes on the disk.
    pub(crate) used: u64,
    /// Files and directories.
    pub(crate) inodes: u64,
    /// Of its file system: bytes in all, inodes in all, inodes that are free.
    pub(crate) limit: u64,
    pub(crate) inodes_total: u64,
    pub(crate) inodes_free: u64,
}

/// A pod's network.
pub(crate) type Network = Vec<Traffic>;

/// Billionths of a processor in use between two measurements: (nanoseconds since some moment, processor time). None when
/// they are too near each other to say anything, or the counter was reset.
pub(crate) fn nano_cores(before: (u64, u64), now: (u64, u64)) -> Option<u64> {
    /// Counters of version 1 move in ticks of 10 ms.
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
