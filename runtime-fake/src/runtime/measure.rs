//! Measures containers and pods: gets their processes from the keepers, then reads the kernel's counters.

use std::{
    collections::HashMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use keeper::contract::protocol::{Call, Outcome};

use super::{Runtime, blocking};
use crate::{
    container::{Container, ContainerState},
    sandbox::Sandbox,
    stats::{self, Disk, Usage, usage::Network},
};

/// Timeout of a keeper's answer with its processes: a stopped keeper does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A container's measurements.
pub(crate) struct MeasuredContainer {
    pub(crate) container: Arc<Container>,
    /// `None` if it has ended.
    pub(crate) usage: Option<Usage>,
    /// Nanocores since the previous measurement.
    pub(crate) nano_cores: Option<u64>,
    /// The usage of its writable layer, if that is on a disk, and was measured in time.
    pub(crate) layer: Option<(PathBuf, Disk)>,
}

/// The file system of containers' writable layers, if it is not the images' file system.
#[derive(Debug)]
pub(crate) struct ContainerFilesystem {
    /// A directory on it.
    pub(crate) mountpoint: PathBuf,
    /// The usage of all containers' layers.
    pub(crate) written: Disk,
}

/// A pod's measurements.
pub(crate) struct MeasuredPod {
    pub(crate) sandbox: Arc<Sandbox>,
    /// `None` if it has ended.
    pub(crate) usage: Option<Usage>,
    pub(crate) nano_cores: Option<u64>,
    /// Its interfaces; empty in the host's network.
    pub(crate) network: Network,
    pub(crate) containers: Vec<MeasuredContainer>,
    pub(crate) at: Timestamp,
}

/// The processes of a pod: its keeper, and the first process of each container.
#[derive(Default)]
pub(crate) struct Processes {
    /// `None` if it does not answer.
    pub(crate) keeper: Option<i32>,
    /// By container.
    pub(crate) first: HashMap<String, i32>,
}

impl Runtime {
    /// Measures pods, with the containers that `wanted` selects.
    pub(crate) async fn measure(
        &self,
        sandboxes: Vec<Arc<Sandbox>>,
        wanted: impl Fn(&Container) -> bool,
    ) -> Vec<MeasuredPod> {
        let state = self.store.state();
        let is_container = |id: &str| state.containers.get(id).is_some();
        self.rates.retain(|id| is_container(id) || state.sandboxes.contains_key(id));
        self.layer_usages.retain(is_container);
        let mut measured = Vec::with_capacity(sandboxes.len());
        for sandbox in sandboxes {
            let containers: Vec<_> = state
                .containers_of(&sandbox.id)
                .filter(|c| c.visible() && wanted(c))
                .cloned()
                .collect();
            let processes = self.processes(&sandbox).await;
            let runtime = self.clone();
            measured.push(blocking(move || runtime.look(sandbox, containers, &processes)).await);
        }
        measured
    }

    /// The processes of a pod, from its keeper.
    pub(crate) async fn processes(&self, sandbox: &Sandbox) -> Processes {
        let Some(pod) = self.pods.get(&sandbox.id) else {
            return Processes::default();
        };
        match tokio::time::timeout(PATIENCE, pod.keeper.call(Call::State)).await {
            Ok(Ok(Outcome::State { pid, containers, .. })) => Processes {
                keeper: Some(pid),
                first: containers
                    .into_iter()
                    .filter(|c| c.pid > 0)
                    .map(|c| (c.container, c.pid))
                    .collect(),
            },
            _ => Processes::default(),
        }
    }

    /// The file system of containers' layers, if it is not the images' file system. Blocks.
    pub(crate) fn container_filesystem(&self) -> Option<ContainerFilesystem> {
        let mountpoint = self.config.state_dir.join("sandboxes");
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev());
        let containers = device(&mountpoint).ok()?;
        let images = device(&self.images.fs_info().mountpoint).ok()?;
        (containers != images).then(|| ContainerFilesystem { mountpoint, written: self.written() })
    }

    /// The usage of all containers' layers that are on a disk.
    fn written(&self) -> Disk {
        let mut sum = Disk::default();
        for container in self.store.state().containers.values() {
            if let Some((_, disk)) = self.layer_usage(container) {
                sum.used += disk.used;
                sum.inodes += disk.inodes;
            }
        }
        sum
    }

    fn look(
        &self,
        sandbox: Arc<Sandbox>,
        containers: Vec<Arc<Container>>,
        processes: &Processes,
    ) -> MeasuredPod {
        let containers = containers
            .into_iter()
            .map(|container| self.look_at_container(container, processes))
            .collect();
        // All processes of a pod descend from its keeper.
        let usage =
            processes.keeper.map(|keeper| stats::usage(sandbox.cgroup.as_ref(), Some(keeper)));
        let network = match processes.keeper {
            Some(keeper) if !sandbox.addresses.is_empty() => stats::traffic(keeper),
            _ => Network::default(),
        };
        MeasuredPod {
            nano_cores: self.rate(sandbox.id.as_str(), usage.as_ref()),
            usage,
            network,
            containers,
            at: Timestamp::now(),
            sandbox,
        }
    }

    fn look_at_container(
        &self,
        container: Arc<Container>,
        processes: &Processes,
    ) -> MeasuredContainer {
        let alive = matches!(container.state, ContainerState::Created | ContainerState::Running);
        let first = processes.first.get(container.id.as_str()).copied();
        let usage = alive.then(|| stats::usage(container.cgroup.as_ref(), first));
        MeasuredContainer {
            nano_cores: self.rate(container.id.as_str(), usage.as_ref()),
            usage,
            layer: self.layer_usage(&container),
            container,
        }
    }

    /// The usage of a container's writable layer, and of the files in `/etc` that its pod's containers share, if the layer is on a
    /// disk, and was measured in time.
    fn layer_usage(&self, container: &Container) -> Option<(PathBuf, Disk)> {
        let layer = stats::layer(&self.container_dir(&container.sandbox, &container.id))?;
        let top = layer.clone();
        let sandbox = self.sandbox_dir(&container.sandbox);
        let walk = move || {
            let mut disk = stats::of_layer(&top);
            disk.used = disk.used.saturating_add(stats::of_texts(&sandbox));
            disk
        };
        let disk = self.layer_usages.measure(container.id.as_str(), walk)?;
        Some((layer, disk))
    }

    fn rate(&self, id: &str, usage: Option<&Usage>) -> Option<u64> {
        self.rates.nano_cores(id, usage?.cpu.total?)
    }
}
