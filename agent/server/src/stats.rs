//! Resource usage of the node and its pods. The runtime measures pods and images, and the agent measures the rest.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/stats/summary.go.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::cri::stats::of_pods;
use agent::cri::{Code, Cri, CriError, LastLists, Lists};
use agent::histogram::Histogram;
use agent::storage::drivers::DriverCalls;
use jiff::Timestamp;

mod cgroup;
mod convert;
mod disk;
mod driver_volumes;
mod machine;
mod proc;
mod rates;
mod summarizer;
pub(crate) mod summary;
mod volumes;

pub(crate) use disk::LogUsage;
pub(crate) use driver_volumes::DriverVolumes;
pub(crate) use machine::ProcMachine;
pub(crate) use proc::boot;
use summarizer::RuntimeAnswers;
pub(crate) use summarizer::{Locations, Summarizer};
use summary::{FsStats, Summary, VolumeStats};
use volumes::PodVolumes;

/// How long a request waits for measurements of volumes, whose file systems or drivers may hang.
const MEASUREMENT: Duration = Duration::from_secs(5);

/// Collects statistics.
pub(crate) struct Statistics {
    cri: Arc<dyn Cri>,
    pub(crate) summarizer: Arc<Summarizer>,
    /// Measures the volumes of CSI drivers, if there are drivers.
    drivers: Option<Arc<DriverVolumes>>,
    /// The machine's file systems at the start, by their devices, with their mount points. As in cAdvisor, later ones are not among
    /// them: each pod may have mounts of its own, and the metrics of pods that have ended would remain in Prometheus.
    file_systems: Arc<[(String, PathBuf)]>,
}

impl Statistics {
    pub(crate) fn new(cri: Arc<dyn Cri>, summarizer: Summarizer) -> Self {
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let file_systems = disk::file_systems(&table).into();
        Self { cri, summarizer: Arc::new(summarizer), drivers: None, file_systems }
    }

    /// Sets the drivers that measure their volumes.
    pub(crate) fn set_drivers(&mut self, drivers: DriverVolumes) {
        self.drivers = Some(Arc::new(drivers));
    }

    /// The current usage: all of it, or only CPU and memory, which costs less.
    pub(crate) async fn summary(&self, only_cpu_and_memory: bool) -> Result<Summary, CriError> {
        let mut fresh = LastLists::default();
        let images = async {
            if only_cpu_and_memory {
                return Ok(None);
            }
            self.cri.image_fs_info().await.map(|all| all.into_iter().next())
        };
        let runtime = self.cri.server_process().await;
        let (lists, pods, images) =
            tokio::try_join!(self.cri.list_all(&mut fresh), of_pods(self.cri.as_ref()), images)?;
        let answers = RuntimeAnswers { lists: lists.unwrap_or_default(), pods, images, runtime };
        self.summarize(answers, only_cpu_and_memory).await
    }

    /// Measures the volumes of pods in the background, unless that was done recently. Waits for the result if the last one is older
    /// than a kubelet's can be.
    pub(crate) async fn measure_volumes(&self, pods: impl FnOnce() -> Vec<PodVolumes>) {
        let summarizer = Arc::clone(&self.summarizer);
        let now = Timestamp::now();
        let is_outdated = summarizer.volumes.is_outdated(now);
        if !summarizer.volumes.begin(now) {
            return;
        }
        let pods = pods();
        let mut requests = Vec::new();
        if let Some(drivers) = &self.drivers {
            for (pod, volumes) in summarizer.volumes.begin_requests(&pods) {
                let (drivers, summarizer) = (Arc::clone(drivers), Arc::clone(&summarizer));
                requests.push(tasks::spawn(async move {
                    let root_dir = &summarizer.locations.root_dir;
                    let measured = drivers.measure(root_dir, &pod, &volumes).await;
                    summarizer.volumes.finish_request(&pod, measured);
                }));
            }
        }
        let measured = tasks::spawn_blocking(move || {
            let Summarizer { volumes, machine, locations, .. } = summarizer.as_ref();
            volumes.measure(&locations.root_dir, machine.as_ref(), &pods);
        });
        if !is_outdated {
            return;
        }
        let all = async {
            // Both fail only if the agent ends.
            let _ = measured.await;
            for request in requests {
                let _ = request.await;
            }
        };
        // The measurement goes on after the limit, and a later request has its result.
        let _ = tokio::time::timeout(MEASUREMENT, all).await;
    }

    /// The durations of CSI calls; `None` if there are no drivers.
    pub(crate) fn driver_calls(&self) -> Option<DriverCalls> {
        self.drivers.as_ref().map(|volumes| volumes.drivers.call_durations())
    }

    /// The last measurements of the cluster's local volumes and of CSI volumes.
    pub(crate) fn cluster_volumes(&self) -> Vec<VolumeStats> {
        self.summarizer.volumes.cluster_volumes()
    }

    /// How long it took to measure each volume in the agent's own directory.
    pub(crate) fn volume_durations(&self) -> Histogram {
        self.summarizer.volumes.durations()
    }

    /// The disk usage of the logs of running containers.
    pub(crate) async fn log_usage(&self, lists: Lists) -> Vec<LogUsage> {
        let summarizer = Arc::clone(&self.summarizer);
        let measure = move || disk::log_usage(&summarizer.locations.logs, &lists);
        tasks::spawn_blocking(measure).await.unwrap_or_default()
    }

    /// The machine's file systems, by their devices.
    pub(crate) async fn disks(&self) -> Vec<(String, FsStats)> {
        let (summarizer, all) = (Arc::clone(&self.summarizer), Arc::clone(&self.file_systems));
        let measure = move || -> Vec<(String, FsStats)> {
            let measured = |(device, at): &(String, PathBuf)| {
                Some((device.clone(), summarizer.machine.fs(at)?))
            };
            all.iter().filter_map(measured).collect()
        };
        tasks::spawn_blocking(measure).await.unwrap_or_default()
    }

    /// The usage of the node as a whole.
    pub(crate) async fn node_alone(&self) -> Result<Summary, CriError> {
        self.summarize(RuntimeAnswers::default(), false).await
    }

    async fn summarize(
        &self,
        answers: RuntimeAnswers,
        only_cpu_and_memory: bool,
    ) -> Result<Summary, CriError> {
        let summarizer = Arc::clone(&self.summarizer);
        // A file system that hangs must not block other requests.
        let summarize =
            tasks::spawn_blocking(move || summarizer.summary(answers, only_cpu_and_memory));
        summarize.await.map_err(|error| CriError {
            call: "ListPodSandboxStats",
            code: Code::Internal,
            message: format!("failed to compute the statistics summary: {error}"),
        })
    }
}
