//! Combines the measurements of the runtime and the machine into a summary.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/stats/cri_stats_provider.go (listPodStatsStrictlyFromCRI, with
//! listPodStatsPartiallyFromCRI for a runtime that does not measure pods).

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use agent::cri::stats as cri_stats;
use agent::cri::{FsUsage, ListedContainer, ListedState, Lists};
use agent::observed::{ContainerId, SandboxId};
use compact::Map;
use jiff::Timestamp;

use super::cgroup::Cgroups;
use super::machine::Machine;
use super::rates::Rates;
use super::summary::{
    ContainerStats, CpuStats, FsStats, IoStats, NodeStats, PodReference, PodStats, ProcessStats,
    RlimitStats, RuntimeStats, Summary, Time, VolumeStats,
};
use super::volumes::Volumes;
use super::{convert, disk};

/// The key of the node itself in [`Rates`].
const NODE: &str = "/";

/// The node's name, and the locations to measure.
#[derive(Clone, Debug)]
pub(crate) struct Locations {
    /// The node's name.
    pub(crate) node: String,
    /// The agent's directory, which determines the node's file system.
    pub(crate) root_dir: PathBuf,
    /// The directory of the pods' logs.
    pub(crate) logs: PathBuf,
    /// The parent cgroup of all pods, if there is one.
    pub(crate) pods_cgroup: Option<PathBuf>,
}

/// The runtime's answers.
#[derive(Default)]
pub(super) struct RuntimeAnswers {
    pub(super) lists: Lists,
    pub(super) pods: Vec<cri_stats::SandboxStats>,
    pub(super) images: Option<FsUsage>,
    /// The runtime's process ID.
    pub(super) runtime: Option<u32>,
}

/// Computes summaries. It may block.
pub(crate) struct Summarizer {
    pub(crate) machine: Arc<dyn Machine>,
    pub(crate) locations: Locations,
    pub(super) volumes: Volumes,
    cgroups: Cgroups,
    rates: Mutex<Rates>,
}

impl Summarizer {
    pub(crate) fn new(machine: Arc<dyn Machine>, locations: Locations) -> Self {
        let (cgroups, rates) = (Cgroups::new(), Mutex::default());
        Self { machine, locations, volumes: Volumes::default(), cgroups, rates }
    }

    pub(super) fn summary(&self, answers: RuntimeAnswers, only_cpu_and_memory: bool) -> Summary {
        let RuntimeAnswers { lists: (sandboxes, containers), pods, images, runtime } = answers;
        let now = Timestamp::now();
        let containers: HashMap<ContainerId, ListedContainer> = containers
            .into_iter()
            .filter(|listed| listed.state == ListedState::Running)
            .map(|listed| (listed.id.clone(), listed))
            .collect();
        let mut by_sandbox: HashMap<SandboxId, Vec<cri_stats::ContainerStats>> = HashMap::new();
        let mut of_pods: HashMap<SandboxId, cri_stats::SandboxStats> = HashMap::new();
        for mut pod in pods {
            for container in std::mem::take(&mut pod.containers) {
                if let Some(listed) = containers.get(&container.id) {
                    by_sandbox.entry(listed.sandbox_id.clone()).or_default().push(container);
                }
            }
            of_pods.insert(pod.id.clone(), pod);
        }
        let mut disks = Disks { machine: self.machine.as_ref(), known: HashMap::new() };
        let mut pods = Vec::new();
        // Sorted, for a stable order.
        let ready = sandboxes.into_iter().filter(|sandbox| sandbox.ready);
        let ready: Map<_, _> =
            ready.map(|sandbox| ((sandbox.pod.clone(), sandbox.created_at), sandbox)).collect();
        for ((pod, created_at), sandbox) in ready {
            let usage = of_pods.remove(&sandbox.id);
            let own = by_sandbox.remove(&sandbox.id).unwrap_or_default();
            if usage.is_none() && own.is_empty() {
                continue;
            }
            let reference = PodReference {
                name: pod.name,
                namespace: pod.namespace,
                uid: pod.uid.as_str().to_owned(),
            };
            let mut stats = PodStats {
                pod_ref: reference,
                start_time: created_at.into(),
                ..PodStats::default()
            };
            for container in own {
                if let Some(listed) = containers.get(&container.id) {
                    stats.containers.push(self.container(&container, listed));
                    if !only_cpu_and_memory {
                        self.add_storage(&mut stats, &container, listed, &mut disks);
                    }
                }
            }
            compact::sort_by(&mut stats.containers, |one, other| one.name.cmp(&other.name));
            self.add_usage(&mut stats, sandbox.id.as_str(), usage.unwrap_or_default(), now);
            if only_cpu_and_memory {
                (stats.io, stats.network, stats.processes) = (None, None, None);
                stats.containers.iter_mut().for_each(|container| container.io = None);
            } else {
                self.add_volumes(&mut stats, &mut disks, now);
            }
            pods.push(stats);
        }
        self.rates().forget(now);
        let mut node = self.node(images.as_ref(), only_cpu_and_memory, &mut disks, now);
        node.system_containers = self.system_containers(runtime, only_cpu_and_memory, now);
        Summary { node, pods }
    }

    fn container(
        &self,
        from: &cri_stats::ContainerStats,
        listed: &ListedContainer,
    ) -> ContainerStats {
        let usage = &from.usage;
        ContainerStats {
            id: from.id.as_str().to_owned(),
            name: listed.name.clone(),
            start_time: listed.created_at.into(),
            cpu: usage.cpu.as_ref().map(|cpu| self.cpu(cpu, from.id.as_str())),
            memory: usage.memory.as_ref().map(convert::memory),
            io: usage.io.as_ref().map(convert::io),
            swap: from.swap.as_ref().map(convert::swap),
            ..ContainerStats::default()
        }
    }

    fn cpu(&self, from: &cri_stats::CpuStats, id: &str) -> CpuStats {
        let mut cpu = convert::cpu(from);
        if let (None, Some(total)) = (cpu.usage_nano_cores, from.core_nanoseconds) {
            cpu.usage_nano_cores = self.rates().rate(id, from.at, total);
        }
        cpu
    }

    /// Adds the file system usage of the pod's last container.
    fn add_storage(
        &self,
        pod: &mut PodStats,
        from: &cri_stats::ContainerStats,
        listed: &ListedContainer,
        disks: &mut Disks<'_>,
    ) {
        let logs = disk::log_directory(&self.locations.logs, &pod.pod_ref, &listed.name);
        let logs = logs.and_then(|directory| disk::logs(&directory));
        let whole = disks.fs(&self.locations.root_dir);
        if let Some(container) = pod.containers.last_mut() {
            container.logs = logs.map(|logs| convert::layer(&logs, whole.as_ref()));
            container.rootfs = from.layer.as_ref().map(|layer| {
                convert::layer(layer, disks.fs(Path::new(&layer.mountpoint)).as_ref())
            });
        }
    }

    /// Adds the usage of the pod's volumes, and the pod's total usage of the node's disk.
    fn add_volumes(&self, pod: &mut PodStats, disks: &mut Disks<'_>, now: Timestamp) {
        let whole = disks.fs(&self.locations.root_dir);
        let (volumes, measured_at) = self.volumes.of(&pod.pod_ref.uid);
        let mut ephemeral = Vec::new();
        for volume in volumes.own {
            let used = cri_stats::LayerStats {
                at: measured_at.unwrap_or(now),
                used_bytes: Some(volume.bytes),
                inodes_used: Some(volume.inodes),
                ..cri_stats::LayerStats::default()
            };
            // A memory-backed volume has no capacity of the node's file system.
            let fs = convert::layer(&used, whole.as_ref().filter(|_| volume.on_disk));
            if volume.ephemeral {
                ephemeral.push(fs.clone());
            }
            pod.volumes.push(VolumeStats { fs, name: volume.name, ..VolumeStats::default() });
        }
        pod.volumes.extend(volumes.from_cluster);
        let containers = pod.containers.iter();
        let of_containers = containers.flat_map(|one| one.rootfs.iter().chain(&one.logs));
        let Locations { root_dir, logs, .. } = &self.locations;
        let own = disk::own_files(root_dir, logs, &pod.pod_ref);
        let own = own.map(|own| convert::layer(&own, whole.as_ref()));
        let all = of_containers.chain(&ephemeral).chain(&own);
        let sum = convert::fs_of_all(all, whole.as_ref(), now);
        pod.ephemeral_storage = Some(sum).filter(|fs| fs.used_bytes.is_some());
    }

    /// Adds the usage of the pod as a whole: the runtime's measurement, or else its cgroup's, or else the sum of its containers.
    fn add_usage(
        &self,
        pod: &mut PodStats,
        id: &str,
        from: cri_stats::SandboxStats,
        now: Timestamp,
    ) {
        let all = &pod.containers;
        let mut cpu = from.usage.cpu.map(|cpu| self.cpu(&cpu, id));
        let mut memory = from.usage.memory.as_ref().map(convert::memory);
        let mut io = from.usage.io.as_ref().map(convert::io);
        let has_pressure = cpu.as_ref().is_some_and(|cpu| cpu.psi.is_some())
            && memory.as_ref().is_some_and(|memory| memory.psi.is_some())
            && io.as_ref().is_some_and(|io| io.psi.is_some());
        if !has_pressure && let Some(own) = self.of_cgroup(&pod.pod_ref.uid, id, now) {
            convert::complete(&mut cpu, own.cpu, |cpu| &mut cpu.psi);
            convert::complete(&mut memory, own.memory, |memory| &mut memory.psi);
            convert::complete(&mut io, own.io, |io| &mut io.psi);
        }
        pod.cpu = cpu.or_else(|| convert::cpu_of_all(all.iter().filter_map(|it| it.cpu.as_ref())));
        pod.memory = memory
            .or_else(|| convert::memory_of_all(all.iter().filter_map(|it| it.memory.as_ref())));
        pod.swap = convert::swap_of_all(all.iter().filter_map(|it| it.swap.as_ref()));
        pod.io = io;
        pod.network = from.network.as_ref().map(convert::network);
        pod.processes = from.processes.map(|count| ProcessStats { process_count: Some(count) });
    }

    /// The usage of the pod's cgroup, if it is below the parent cgroup of all pods.
    fn of_cgroup(&self, uid: &str, id: &str, now: Timestamp) -> Option<ContainerStats> {
        let pods = self.locations.pods_cgroup.as_deref()?;
        let mut stats = self.cgroups.of_pod(pods, uid, now)?;
        if let Some(cpu) = &mut stats.cpu
            && let Some(total) = cpu.usage_core_nano_seconds
        {
            cpu.usage_nano_cores = self.rates().rate(&format!("{id}/cgroup"), now, total);
        }
        Some(stats)
    }

    fn node(
        &self,
        images: Option<&FsUsage>,
        only_cpu_and_memory: bool,
        disks: &mut Disks<'_>,
        now: Timestamp,
    ) -> NodeStats {
        let load = self.machine.load();
        let nano_cores = load.busy.and_then(|busy| self.rates().rate(NODE, load.at, busy));
        let of_both = NodeStats {
            node_name: self.locations.node.clone(),
            start_time: Time(load.started_at),
            cpu: convert::cpu_of_machine(&load, nano_cores),
            memory: convert::memory_of_machine(&load),
            swap: convert::swap_of_machine(&load),
            ..NodeStats::default()
        };
        if only_cpu_and_memory {
            return of_both;
        }
        let images = images.map(|images| {
            let whole = disks.fs(Path::new(&images.mountpoint));
            let used = cri_stats::LayerStats {
                at: now,
                mountpoint: images.mountpoint.clone(),
                used_bytes: Some(images.used_bytes),
                inodes_used: Some(images.inodes_used).filter(|inodes| *inodes > 0),
            };
            convert::layer(&used, whole.as_ref())
        });
        let (max_pid, running) = self.machine.tasks();
        let limits = RlimitStats { time: now.into(), max_pid, running };
        let is_known = limits.max_pid.is_some() || limits.running.is_some();
        let io = load.io_pressure;
        NodeStats {
            io: io.map(|psi| IoStats { time: load.at.into(), psi: Some(psi) }),
            network: convert::network_of_machine(self.machine.interfaces(), now),
            fs: disks.fs(&self.locations.root_dir),
            // The kubelet's CRI provider also uses one file system for both.
            runtime: images.map(|images| RuntimeStats {
                container_fs: Some(images.clone()),
                image_fs: Some(images),
            }),
            rlimit: is_known.then_some(limits),
            ..of_both
        }
    }

    /// The usage of the agent, the runtime and all pods, if they have their own cgroups.
    fn system_containers(
        &self,
        runtime: Option<u32>,
        only_cpu_and_memory: bool,
        now: Timestamp,
    ) -> Vec<ContainerStats> {
        let of = |pid: Option<u32>| pid.and_then(|pid| self.cgroups.of_process(pid));
        let own = of(Some(std::process::id()));
        let runtime = of(runtime);
        let all =
            [("kubelet", own), ("runtime", runtime), ("pods", self.locations.pods_cgroup.clone())];
        let measured = all.into_iter().filter_map(|(name, path)| {
            let mut stats = self.cgroups.stats(&path?, now)?;
            name.clone_into(&mut stats.name);
            if let Some(cpu) = &mut stats.cpu
                && let Some(total) = cpu.usage_core_nano_seconds
            {
                cpu.usage_nano_cores = self.rates().rate(&format!("/{name}"), now, total);
            }
            if only_cpu_and_memory {
                stats.io = None;
            }
            Some(stats)
        });
        measured.collect()
    }

    fn rates(&self) -> MutexGuard<'_, Rates> {
        self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// File systems, each measured once per summary.
struct Disks<'m> {
    machine: &'m dyn Machine,
    known: HashMap<PathBuf, Option<FsStats>>,
}

impl Disks<'_> {
    fn fs(&mut self, path: &Path) -> Option<FsStats> {
        let machine = self.machine;
        self.known.entry(path.to_owned()).or_insert_with(|| machine.fs(path)).clone()
    }
}

#[cfg(test)]
mod tests;
