//! A runtime's measurements of sandboxes and containers. A value that the runtime does not report is absent.

use std::sync::Once;

use jiff::Timestamp;

use super::{Code, Cri, CriError};
use crate::observed::{ContainerId, SandboxId};

/// The usage of each sandbox. If the runtime does not measure sandboxes, or fails to, the result is one entry without an id that has
/// the containers of all of them.
///
/// # Errors
/// If the runtime is unreachable, or does not measure containers either.
pub async fn of_pods(cri: &dyn Cri) -> Result<Vec<SandboxStats>, CriError> {
    static WARN: Once = Once::new();
    let error = match cri.sandbox_stats().await {
        Ok(stats) => return Ok(stats),
        Err(error) => error,
    };
    if [Code::Unavailable, Code::DeadlineExceeded, Code::Cancelled].contains(&error.code) {
        return Err(error);
    }
    let containers = cri.container_stats().await?;
    // containerd 1.6 fails the call for all sandboxes if one of them has no cgroup parent.
    if error.code != Code::Unimplemented {
        WARN.call_once(|| {
            tracing::warn!(%error, "the runtime failed to measure sandboxes; the usage of pods is the sum of their containers");
        });
    }
    Ok(vec![SandboxStats { containers, ..SandboxStats::default() }])
}

/// The usage of a sandbox, including its containers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SandboxStats {
    /// The sandbox.
    pub id: SandboxId,
    /// Processor time, memory, input and output.
    pub usage: Usage,
    /// Traffic.
    pub network: Option<NetworkStats>,
    /// Number of processes.
    pub processes: Option<u64>,
    /// The usage of each of its containers.
    pub containers: Vec<ContainerStats>,
}

/// The usage of a container.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ContainerStats {
    /// The container.
    pub id: ContainerId,
    /// Processor time, memory, input and output.
    pub usage: Usage,
    /// Swap.
    pub swap: Option<SwapStats>,
    /// Its writable layer.
    pub layer: Option<LayerStats>,
}

/// The values that sandboxes and containers have in common.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    /// Processor time.
    pub cpu: Option<CpuStats>,
    /// Memory.
    pub memory: Option<MemoryStats>,
    /// Input and output.
    pub io: Option<IoStats>,
}

/// Processor time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CpuStats {
    /// When it was measured.
    pub at: Timestamp,
    /// Total CPU time in nanoseconds.
    pub core_nanoseconds: Option<u64>,
    /// Current usage in billionths of a CPU.
    pub nano_cores: Option<u64>,
    /// Time spent waiting for a processor.
    pub pressure: Option<Pressure>,
}

/// Memory, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MemoryStats {
    /// When it was measured.
    pub at: Timestamp,
    /// Available bytes below the limit.
    pub available: Option<u64>,
    /// All memory in use, including caches.
    pub usage: Option<u64>,
    /// The working set: memory that cannot be reclaimed.
    pub working_set: Option<u64>,
    /// Anonymous memory.
    pub rss: Option<u64>,
    /// Number of page faults.
    pub page_faults: Option<u64>,
    /// Number of those that read from a disk.
    pub major_page_faults: Option<u64>,
    /// Time spent waiting for memory.
    pub pressure: Option<Pressure>,
}

/// Swap, in bytes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SwapStats {
    /// When it was measured.
    pub at: Timestamp,
    /// Available bytes below the limit.
    pub available: Option<u64>,
    /// In use.
    pub used: Option<u64>,
}

/// Input and output.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IoStats {
    /// When it was measured.
    pub at: Timestamp,
    /// Time spent waiting for devices.
    pub pressure: Option<Pressure>,
}

/// The usage of a file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LayerStats {
    /// When it was measured.
    pub at: Timestamp,
    /// The file system.
    pub mountpoint: String,
    /// Bytes.
    pub used_bytes: Option<u64>,
    /// Inodes.
    pub inodes_used: Option<u64>,
}

/// Pressure stall information.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pressure {
    /// All processes waited.
    pub full: Stall,
    /// At least one process waited.
    pub some: Stall,
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stall {
    /// The total, in nanoseconds.
    pub total: u64,
    /// Percent of the last 10 s.
    pub avg10: f64,
    /// Percent of the last minute.
    pub avg60: f64,
    /// Percent of the last five minutes.
    pub avg300: f64,
}

/// Traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NetworkStats {
    /// When it was measured.
    pub at: Timestamp,
    /// The interface with the pod's primary address.
    pub default: Option<InterfaceStats>,
    /// The other interfaces.
    pub others: Vec<InterfaceStats>,
}

/// Traffic of an interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceStats {
    /// Its name.
    pub name: String,
    /// Bytes received.
    pub rx_bytes: Option<u64>,
    /// Errors while receiving.
    pub rx_errors: Option<u64>,
    /// Bytes sent.
    pub tx_bytes: Option<u64>,
    /// Errors while sending.
    pub tx_errors: Option<u64>,
}

/// A metric that a runtime supports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricDescriptor {
    /// Its name.
    pub name: String,
    /// Its help text.
    pub help: String,
    /// The names of its labels, in the order of [`Metric::labels`].
    pub labels: Vec<String>,
}

/// A value of a metric.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metric {
    /// The metric's name.
    pub name: String,
    /// When it was measured; `None`: at the time of this response.
    pub at: Option<Timestamp>,
    /// Whether it is a counter, which only increases.
    pub is_counter: bool,
    /// The values of its labels.
    pub labels: Vec<String>,
    /// The value.
    pub value: u64,
}
