//! ◆ The order in which pods are evicted.

use std::cmp::Ordering;

use api::pod::Pod;
use api::quantity::{Format, Quantity};

use super::local_storage::is_ephemeral;
use super::stats::{FsStats, PodStats};
use super::{Resource, Signal, requests};

/// The layout of images, writable layers and other data on file systems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FsLayout {
    /// All in one file system.
    One,
    /// Images and writable layers on a separate file system.
    Images,
    /// Only images on a separate file system.
    ImagesOnly,
}

/// A pod and its measurements.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The pod.
    pub pod: &'a Pod,
    /// Its measurements.
    pub stats: Option<&'a PodStats>,
}

/// Parts of a pod's usage of a file system.
#[derive(Clone, Copy)]
struct Measured {
    writable_layers: bool,
    logs: bool,
    local_volumes: bool,
}

/// Sorts pods by eviction order when `signal` is low. Pods of one group are equal.
#[must_use]
pub fn rank<'a>(
    signal: Signal,
    layout: FsLayout,
    candidates: &[Candidate<'a>],
) -> Vec<Vec<Candidate<'a>>> {
    let order = |a: &Candidate<'_>, b: &Candidate<'_>| compare(signal, layout, a, b);
    let mut sorted = candidates.to_vec();
    compact::sort_by(&mut sorted, order);
    let mut groups: Vec<Vec<Candidate<'a>>> = Vec::new();
    for candidate in sorted {
        match groups.last_mut() {
            Some(group)
                if group.last().is_some_and(|last| order(last, &candidate) == Ordering::Equal) =>
            {
                group.push(candidate);
            }
            Some(_) | None => groups.push(vec![candidate]),
        }
    }
    groups
}

fn compare(signal: Signal, layout: FsLayout, a: &Candidate<'_>, b: &Candidate<'_>) -> Ordering {
    let priority = || priority(a).cmp(&priority(b));
    match signal.resource() {
        Resource::Memory => by_usage(a, b, |candidate, stats| {
            let usage = memory_usage(stats);
            let request = requests::of_pod(candidate.pod, "memory");
            (usage, request, request)
        }),
        Resource::Pids => priority().then_with(|| match (a.stats, b.stats) {
            (Some(a), Some(b)) => processes(b).cmp(&processes(a)),
            (a, b) => a.is_some().cmp(&b.is_some()),
        }),
        resource @ (Resource::EphemeralStorage | Resource::Inodes) => {
            let measured = measured(signal, layout);
            by_usage(a, b, |candidate, stats| {
                let usage = disk_usage(candidate.pod, stats, measured, resource);
                let request = requests::of_pod(candidate.pod, resource.as_str());
                // A kubelet subtracts the request of bytes from inodes too.
                let subtracted = requests::of_pod(candidate.pod, "ephemeral-storage");
                (usage, request, subtracted)
            })
        }
    }
}

/// Pods without measurements first, then pods that exceed their request, then by priority, then by usage above the request.
/// `measure` returns usage, request, and the request that is subtracted from usage last.
fn by_usage(
    a: &Candidate<'_>,
    b: &Candidate<'_>,
    measure: impl Fn(&Candidate<'_>, &PodStats) -> (Quantity, Quantity, Quantity),
) -> Ordering {
    let priorities = priority(a).cmp(&priority(b));
    let (Some(of_a), Some(of_b)) = (a.stats, b.stats) else {
        return a.stats.is_some().cmp(&b.stats.is_some()).then(priorities);
    };
    let (used_a, request_a, base_a) = measure(a, of_a);
    let (used_b, request_b, base_b) = measure(b, of_b);
    let exceeds = |used: Quantity, request: Quantity| used > request;
    exceeds(used_b, request_b)
        .cmp(&exceeds(used_a, request_a))
        .then(priorities)
        .then_with(|| used_b.plus(base_a).cmp(&used_a.plus(base_b)))
}

fn priority(candidate: &Candidate<'_>) -> i32 {
    candidate.pod.spec().priority.unwrap_or_default()
}

fn memory_usage(stats: &PodStats) -> Quantity {
    let memory = stats.memory.as_ref();
    bytes(memory.and_then(|memory| memory.working_set_bytes))
}

fn processes(stats: &PodStats) -> u64 {
    let processes = stats.processes.as_ref();
    processes.and_then(|processes| processes.count).unwrap_or_default()
}

/// The parts of usage on the file system of `signal`.
fn measured(signal: Signal, layout: FsLayout) -> Measured {
    let all = Measured { writable_layers: true, logs: true, local_volumes: true };
    let is_images = matches!(signal, Signal::ImageFsAvailable | Signal::ImageFsInodesFree);
    let is_node = matches!(signal, Signal::NodeFsAvailable | Signal::NodeFsInodesFree);
    match layout {
        FsLayout::One => all,
        FsLayout::Images => {
            Measured { writable_layers: !is_node, logs: is_node, local_volumes: is_node }
        }
        FsLayout::ImagesOnly if is_images => {
            Measured { writable_layers: false, logs: false, local_volumes: false }
        }
        FsLayout::ImagesOnly => all,
    }
}

fn disk_usage(pod: &Pod, stats: &PodStats, measured: Measured, resource: Resource) -> Quantity {
    let usage = |fs: &FsStats| match resource {
        Resource::Inodes => fs.inodes_used,
        Resource::EphemeralStorage | Resource::Memory | Resource::Pids => fs.used_bytes,
    };
    let containers = stats.containers.iter().flat_map(|container| {
        let layer = container.rootfs.as_ref().filter(|_| measured.writable_layers);
        let logs = container.logs.as_ref().filter(|_| measured.logs);
        layer.into_iter().chain(logs)
    });
    let volumes = pod.spec().volumes.iter().flatten();
    let local = volumes.filter(|volume| {
        measured.local_volumes && (volume.host_path.is_some() || is_ephemeral(volume))
    });
    let volumes = local.filter_map(|volume| {
        let mut all = stats.volumes.iter();
        all.find(|stats| stats.name == volume.name).map(|stats| &stats.fs)
    });
    containers.chain(volumes).map(|fs| bytes(usage(fs))).fold(Quantity::ZERO, Quantity::plus)
}

/// A number of bytes or inodes; zero if it was not measured.
pub(super) fn bytes(number: Option<u64>) -> Quantity {
    let number = i64::try_from(number.unwrap_or_default()).unwrap_or(i64::MAX);
    Quantity::whole(number, Format::BinarySi)
}
