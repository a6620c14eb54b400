//! Measures the node, and its pods if one is to be evicted.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::pod::Pod;
use compact::{Map, Set};

use super::Evictor;
use crate::cri::stats::{ContainerStats as CriContainerStats, SandboxStats, of_pods};
use crate::cri::{FsUsage, LastLists, ListedState, Lists};
use crate::local_node::eviction::Signal::AllocatableMemoryAvailable;
use crate::local_node::eviction::config::Threshold;
use crate::local_node::eviction::observe::{Observations, PODS, observe};
use crate::local_node::eviction::rank::FsLayout;
use crate::local_node::eviction::stats::{
    ContainerStats, FsStats, MemoryStats, NodeStats, PodReference, PodStats, ProcessStats,
    RlimitStats, RuntimeStats, VolumeStats,
};
use crate::machine::{FileSystem, MemoryUse, ProcessIds};
use crate::observed::{ContainerId, SandboxId};
use crate::storage::volumes::{PodDirs, VolumeUsage, of_volumes};
use tasks::blocking;

/// State of the node that is kept between measurements.
#[derive(Debug, Default)]
pub(super) struct NodeState {
    /// The measurements that fail; each failure is logged once.
    absent: Set<&'static str>,
    /// The runtime's directory of images, once reported, and that of writable layers if it differs.
    places: Option<(PathBuf, Option<PathBuf>)>,
    /// The last distribution of these directories over file systems.
    layout: Option<FsLayout>,
    /// The memory of the machine, and of all pods together if they have a limit.
    pub(super) memory: Option<MemoryUse>,
    pub(super) memory_of_pods: Option<MemoryUse>,
}

impl NodeState {
    /// The measurement, if it succeeded; logs the first failure.
    pub(super) fn note<T>(
        &mut self,
        what: &'static str,
        measured: Result<T, impl Display>,
    ) -> Option<T> {
        match measured {
            Ok(measured) => {
                self.absent.remove(what);
                Some(measured)
            }
            Err(error) => {
                if self.absent.insert(what) {
                    tracing::warn!(what, %error, "failed to measure the node; no pod is evicted on this measurement");
                }
                None
            }
        }
    }
}

/// The results of the machine's measurements.
struct Measured {
    memory: io::Result<MemoryUse>,
    memory_of_pods: Option<io::Result<Option<MemoryUse>>>,
    processes: io::Result<ProcessIds>,
    node: io::Result<FileSystem>,
    images: Option<io::Result<FileSystem>>,
    containers: Option<io::Result<FileSystem>>,
}

impl Evictor {
    /// Measures the node's signals, and finds the file systems.
    pub(super) async fn observe(&self, known: &mut NodeState) -> (Observations, FsLayout) {
        if known.places.is_none() {
            let places = self.places().await;
            known.places = known.note("where the runtime has its images", places);
        }
        let (images, containers) = known.places.clone().unzip();
        let containers = containers.flatten();
        let (machine, root_dir) = (Arc::clone(&self.machine), self.config.root_dir.clone());
        let is_asked = |threshold: &Threshold| threshold.signal == AllocatableMemoryAvailable;
        let pods = self.pods_cgroup.clone();
        let pods = pods.filter(|_| self.settings.thresholds.iter().any(is_asked));
        let measured = blocking(move || Measured {
            memory: machine.memory(),
            memory_of_pods: pods.map(|path| machine.cgroup_memory(&path)),
            processes: machine.processes(),
            node: machine.file_system(&root_dir),
            images: images.map(|path| machine.file_system(&path)),
            containers: containers.map(|path| machine.file_system(&path)),
        });
        let measured = measured.await;
        known.memory = known.note("memory", measured.memory);
        let of_pods = measured.memory_of_pods;
        let of_pods = of_pods.and_then(|memory| known.note("the memory of all pods", memory));
        known.memory_of_pods = of_pods.flatten();
        let processes = known.note("process ids", measured.processes);
        let node = known.note("the node's file system", measured.node);
        let images = measured.images.and_then(|fs| known.note("the file system of images", fs));
        let of_layers = "the file system of containers";
        let containers = measured.containers.and_then(|fs| known.note(of_layers, fs));
        if let Some((node, images)) = node.zip(images) {
            let containers = containers.map(|fs| fs.device);
            known.layout = Some(FsLayout::of_devices(node.device, images.device, containers));
        }
        let stats = NodeStats {
            memory: known.memory.map(left),
            fs: node.map(whole),
            rlimit: processes.map(|processes| RlimitStats {
                max_pid: i64::try_from(processes.limit).ok(),
                running_processes: i64::try_from(processes.running).ok(),
            }),
            runtime: images.map(|images| RuntimeStats {
                image_fs: Some(whole(images)),
                container_fs: Some(whole(containers.unwrap_or(images))),
            }),
            system_containers: known.memory_of_pods.map(of_all_pods).into_iter().collect(),
        };
        (observe(&stats), known.layout.unwrap_or(FsLayout::One))
    }

    /// The runtime's directory of images, and that of writable layers if the runtime reports it separately.
    async fn places(&self) -> Result<(PathBuf, Option<PathBuf>), String> {
        let images = self.cri.image_fs_info().await.map_err(|error| error.to_string())?;
        let images = first(images).ok_or("the runtime reports no image filesystem")?;
        let containers = self.cri.container_fs_info().await.map_err(|error| error.to_string())?;
        Ok((images, first(containers)))
    }

    /// The usage of the pods. A pod without measurements of the runtime is absent.
    pub(super) async fn measure_pods(&self, pods: &[Pod]) -> Vec<PodStats> {
        let mut fresh = LastLists::default();
        let cri = self.cri.as_ref();
        let measured = async { tokio::try_join!(cri.list_all(&mut fresh), of_pods(cri)) };
        let (lists, stats) = match measured.await {
            Ok(measured) => measured,
            Err(error) => {
                tracing::warn!(%error, "failed to measure pods");
                return Vec::new();
            }
        };
        let mut by_uid = by_pod(&lists.unwrap_or_default(), stats);
        let (config, pods) = (self.config.clone(), pods.to_vec());
        let measured = blocking(move || {
            let measure = |pod: &Pod| {
                let mut stats = by_uid.remove(pod.uid().as_str())?;
                let dirs = PodDirs::new(&config, pod.uid(), pod.namespace(), pod.name());
                for container in &mut stats.containers {
                    container.logs =
                        dirs.log_usage(&container.name).map(|(bytes, inodes)| used(bytes, inodes));
                }
                let volumes = of_volumes(&config.root_dir, pod.api()).into_iter();
                let volume = |volume: VolumeUsage| VolumeStats {
                    fs: used(volume.bytes, volume.inodes),
                    name: volume.name,
                };
                stats.volumes = volumes.map(volume).collect();
                Some(stats)
            };
            pods.iter().filter_map(measure).collect()
        });
        measured.await
    }
}

fn first(file_systems: Vec<FsUsage>) -> Option<PathBuf> {
    let path = PathBuf::from(file_systems.into_iter().next()?.mountpoint);
    Some(path).filter(|path| path != Path::new(""))
}

/// The signals of a file system. If it does not count inodes, that signal is absent.
fn whole(fs: FileSystem) -> FsStats {
    let inodes = Some(fs.inodes).filter(|inodes| *inodes > 0);
    FsStats {
        available_bytes: Some(fs.available),
        capacity_bytes: Some(fs.capacity),
        used_bytes: Some(fs.capacity.saturating_sub(fs.available)),
        inodes_free: inodes.map(|_| fs.inodes_free),
        inodes,
        inodes_used: inodes.map(|inodes| inodes.saturating_sub(fs.inodes_free)),
    }
}

fn used(bytes: u64, inodes: u64) -> FsStats {
    FsStats { used_bytes: Some(bytes), inodes_used: Some(inodes), ..FsStats::default() }
}

/// Adds up the runtime's measurements by the uids of pods.
fn by_pod((sandboxes, containers): &Lists, stats: Vec<SandboxStats>) -> Map<String, PodStats> {
    let ready = sandboxes.iter().filter(|sandbox| sandbox.ready);
    let ready: Map<&SandboxId, &str> =
        ready.map(|sandbox| (&sandbox.id, sandbox.pod.uid.as_str())).collect();
    let listed: Map<&ContainerId, (&str, &str)> = containers
        .iter()
        .filter(|container| container.state == ListedState::Running)
        .map(|container| (&container.id, (container.pod.uid.as_str(), container.name.as_str())))
        .collect();
    let mut by_uid: Map<String, PodStats> = Map::new();
    let entry = |by_uid: &mut Map<String, PodStats>, uid: &str, change: &dyn Fn(&mut PodStats)| {
        let pod_ref = PodReference { uid: uid.to_owned() };
        let pod = by_uid.entry(uid.to_owned());
        change(pod.or_insert_with(|| PodStats { pod_ref, ..PodStats::default() }));
    };
    for sandbox in stats {
        if let Some(uid) = ready.get(&sandbox.id) {
            let memory = sandbox.usage.memory.as_ref().and_then(|memory| memory.working_set);
            entry(&mut by_uid, uid, &|pod| {
                pod.memory = memory.map(working_set);
                pod.processes = sandbox.processes.map(|count| ProcessStats { count: Some(count) });
            });
        }
        for container in &sandbox.containers {
            if let Some((uid, name)) = listed.get(&container.id) {
                entry(&mut by_uid, uid, &|pod| pod.containers.push(of_container(name, container)));
            }
        }
    }
    // A runtime that does not measure a pod measures its containers.
    for pod in by_uid.values_mut().filter(|pod| pod.memory.is_none()) {
        let containers = pod.containers.iter();
        let used = containers.filter_map(|it| it.memory.as_ref()?.working_set_bytes);
        pod.memory = used.reduce(u64::saturating_add).map(working_set);
    }
    by_uid
}

/// The available memory.
fn left(memory: MemoryUse) -> MemoryStats {
    MemoryStats {
        available_bytes: Some(memory.capacity.saturating_sub(memory.working_set)),
        working_set_bytes: Some(memory.working_set),
    }
}

fn of_all_pods(memory: MemoryUse) -> ContainerStats {
    ContainerStats {
        name: PODS.to_owned(),
        memory: Some(left(memory)),
        ..ContainerStats::default()
    }
}

fn working_set(bytes: u64) -> MemoryStats {
    MemoryStats { available_bytes: None, working_set_bytes: Some(bytes) }
}

fn of_container(name: &str, from: &CriContainerStats) -> ContainerStats {
    let memory = from.usage.memory.as_ref().and_then(|memory| memory.working_set);
    ContainerStats {
        name: name.to_owned(),
        memory: memory.map(working_set),
        rootfs: from.layer.as_ref().map(|layer| FsStats {
            used_bytes: layer.used_bytes,
            inodes_used: layer.inodes_used,
            ..FsStats::default()
        }),
        logs: None,
    }
}
