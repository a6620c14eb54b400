//! ◆ The signals of a node, and the thresholds that they meet.

use api::quantity::{Format, Quantity};
use compact::Map;

use super::Signal;
use super::config::Threshold;
use super::stats::{FsStats, MemoryStats, NodeStats};

/// The name of all pods among the system containers.
pub(crate) const PODS: &str = "pods";

/// A signal's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Observation {
    /// The available amount.
    pub available: i64,
    /// The capacity.
    pub capacity: i64,
}

impl Observation {
    /// The available amount of `signal`, as messages format it.
    #[must_use]
    pub fn available_text(self, signal: Signal) -> String {
        Quantity::whole(self.available, format(signal)).to_string()
    }
}

fn format(signal: Signal) -> Format {
    match signal {
        Signal::AllocatableMemoryAvailable
        | Signal::ContainerFsAvailable
        | Signal::ImageFsAvailable
        | Signal::MemoryAvailable
        | Signal::NodeFsAvailable => Format::BinarySi,
        Signal::ContainerFsInodesFree
        | Signal::ImageFsInodesFree
        | Signal::NodeFsInodesFree
        | Signal::PidAvailable => Format::DecimalSi,
    }
}

/// The observed signals.
pub type Observations = Map<Signal, Observation>;

/// The signals of a node. A signal without measurements is absent.
#[must_use]
pub fn observe(stats: &NodeStats) -> Observations {
    let mut observed = Observations::new();
    let mut add = |signal, observation: Option<Observation>| {
        if let Some(observation) = observation {
            observed.insert(signal, observation);
        }
    };
    add(Signal::MemoryAvailable, memory(stats.memory.as_ref()));
    let pods = stats.system_containers.iter().find(|group| group.name == PODS);
    add(Signal::AllocatableMemoryAvailable, memory(pods.and_then(|pods| pods.memory.as_ref())));
    let runtime = stats.runtime.as_ref();
    let file_systems = [
        (stats.fs.as_ref(), Signal::NodeFsAvailable, Signal::NodeFsInodesFree),
        (
            runtime.and_then(|runtime| runtime.image_fs.as_ref()),
            Signal::ImageFsAvailable,
            Signal::ImageFsInodesFree,
        ),
        (
            runtime.and_then(|runtime| runtime.container_fs.as_ref()),
            Signal::ContainerFsAvailable,
            Signal::ContainerFsInodesFree,
        ),
    ];
    for (fs, bytes, inodes) in file_systems {
        let pair = |available: fn(&FsStats) -> Option<u64>,
                    capacity: fn(&FsStats) -> Option<u64>| {
            observation(fs.and_then(available)?, fs.and_then(capacity)?)
        };
        add(bytes, pair(|fs| fs.available_bytes, |fs| fs.capacity_bytes));
        add(inodes, pair(|fs| fs.inodes_free, |fs| fs.inodes));
    }
    let pids = stats.rlimit.as_ref().and_then(|limit| {
        let capacity = limit.max_pid?;
        let available = capacity.saturating_sub(limit.running_processes?);
        Some(Observation { available, capacity })
    });
    add(Signal::PidAvailable, pids);
    observed
}

fn memory(memory: Option<&MemoryStats>) -> Option<Observation> {
    let memory = memory?;
    let available = memory.available_bytes?;
    observation(available, available.saturating_add(memory.working_set_bytes?))
}

fn observation(available: u64, capacity: u64) -> Option<Observation> {
    let number = |number| i64::try_from(number).unwrap_or(i64::MAX);
    Some(Observation { available: number(available), capacity: number(capacity) })
}

/// The thresholds that are met, regardless of their grace periods. With `reclaimed`, a threshold counts as met until its minimum
/// reclaim is free too.
#[must_use]
pub fn thresholds_met<'a>(
    thresholds: &'a [Threshold],
    observations: &Observations,
    reclaimed: bool,
) -> Vec<&'a Threshold> {
    thresholds.iter().filter(|threshold| is_met(threshold, observations, reclaimed)).collect()
}

/// Whether a threshold is met, or with `reclaimed` its minimum reclaim is not free yet.
pub(crate) fn is_met(threshold: &Threshold, observations: &Observations, reclaimed: bool) -> bool {
    observations.get(&threshold.signal).is_some_and(|observed| {
        let mut limit = threshold.value.amount(observed.capacity);
        if let Some(more) = threshold.minimum_reclaim.as_ref().filter(|_| reclaimed) {
            limit = limit.plus(more.amount(observed.capacity));
        }
        limit > Quantity::whole(observed.available, format(threshold.signal))
    })
}
