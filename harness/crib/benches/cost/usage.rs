//! The CPU time and memory of this process.

use std::fs;
use std::ops::{Add, Sub};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeValLike as _;

use crate::Failed;

/// The usage of a process or thread since its start, or during an interval.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Usage {
    /// CPU time, including time in the kernel.
    pub(crate) cpu: Duration,
    /// The number of waits; each is a wake-up.
    pub(crate) waits: u64,
}

impl Usage {
    pub(crate) fn of_process() -> Result<Self, Failed> {
        Self::of(UsageWho::RUSAGE_SELF)
    }

    pub(crate) fn of_thread() -> Result<Self, Failed> {
        Self::of(UsageWho::RUSAGE_THREAD)
    }

    fn of(who: UsageWho) -> Result<Self, Failed> {
        let usage = getrusage(who)?;
        let microseconds =
            usage.user_time().num_microseconds() + usage.system_time().num_microseconds();
        Ok(Self {
            cpu: Duration::from_micros(u64::try_from(microseconds)?),
            waits: u64::try_from(usage.voluntary_context_switches())?,
        })
    }
}

impl Add for Usage {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, waits: self.waits + other.waits }
    }
}

impl Sub for Usage {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            cpu: self.cpu.saturating_sub(earlier.cpu),
            waits: self.waits.saturating_sub(earlier.waits),
        }
    }
}

/// The current memory of the process in MB.
pub(crate) fn memory() -> Result<f64, Failed> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .ok_or("no VmRSS in /proc/self/status")?;
    let kilobytes: f64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kilobytes * 1024.0 / 1e6)
}
