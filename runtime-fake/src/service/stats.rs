//! Converts measurements to the CRI's messages: statistics, metrics, and file systems (ImageFsInfo).

use std::path::PathBuf;
use std::sync::Arc;

use cri::v1;
use image::FsInfo;
use jiff::Timestamp;

use super::{CriService, wire};
use crate::container::ContainerState;
use crate::runtime::measure::{ContainerFilesystem, MeasuredContainer, MeasuredPod};
use crate::stats::Usage;
use crate::stats::metrics::{self, COMMON, Descriptor, Kind, MetricSource};
use crate::stats::parse::{Pressure, PressureLine, Traffic};

impl CriService {
    /// The stats of one container.
    pub(super) async fn stats_of_container(
        &self,
        id: &str,
    ) -> Result<v1::ContainerStats, crate::runtime::Error> {
        let state = self.runtime.store.state();
        let container = state.container(id)?;
        let sandbox = state.sandbox(container.sandbox.as_str())?;
        let measured = self.runtime.measure(vec![sandbox.clone()], |c| c.id == container.id).await;
        let mut containers = measured.iter().flat_map(|pod| {
            let at = pod.at;
            pod.containers.iter().map(move |c| container_stats(c, at))
        });
        // The container was removed during the measurement.
        let gone = || crate::store::StateError::NoContainer(id.to_owned());
        Ok(containers.next().ok_or_else(gone)?)
    }

    /// The stats of the containers that match `filter` and have not ended.
    pub(super) async fn stats_of_containers(
        &self,
        filter: Option<v1::ContainerStatsFilter>,
    ) -> Vec<v1::ContainerStats> {
        let filter = filter.unwrap_or_default();
        let containers = v1::ContainerFilter {
            id: filter.id,
            pod_sandbox_id: filter.pod_sandbox_id,
            label_selector: filter.label_selector,
            ..v1::ContainerFilter::default()
        };
        let fits = |c: &crate::container::Container| {
            wire::container_fits(c, &containers)
                && matches!(c.state, ContainerState::Created | ContainerState::Running)
        };
        let state = self.runtime.store.state();
        let sandboxes = state
            .sandboxes
            .values()
            .filter(|s| state.containers_of(&s.id).any(|c| fits(c)))
            .cloned()
            .collect();
        let measured = self.runtime.measure(sandboxes, fits).await;
        measured
            .iter()
            .flat_map(|pod| pod.containers.iter().map(|c| container_stats(c, pod.at)))
            .collect()
    }

    /// The stats of the sandboxes that match `filter`.
    pub(super) async fn stats_of_sandboxes(
        &self,
        filter: Option<v1::PodSandboxStatsFilter>,
    ) -> Vec<v1::PodSandboxStats> {
        let filter = filter.unwrap_or_default();
        let sandboxes = self.records(&v1::PodSandboxFilter {
            id: filter.id,
            label_selector: filter.label_selector,
            ..v1::PodSandboxFilter::default()
        });
        let measured = self.runtime.measure(sandboxes, |_| true).await;
        measured.iter().map(pod_stats).collect()
    }

    /// The stats of one sandbox.
    pub(super) async fn stats_of_sandbox(
        &self,
        id: &str,
    ) -> Result<v1::PodSandboxStats, crate::runtime::Error> {
        let sandbox = self.runtime.store.state().sandbox(id)?.clone();
        let measured = self.runtime.measure(vec![sandbox], |_| true).await;
        Ok(measured.first().map(pod_stats).unwrap_or_default())
    }

    /// The metrics of all sandboxes and their containers.
    pub(super) async fn metrics(&self) -> Vec<v1::PodSandboxMetrics> {
        let sandboxes = self.records(&v1::PodSandboxFilter::default());
        let measured = self.runtime.measure(sandboxes, |c| {
            matches!(c.state, ContainerState::Created | ContainerState::Running)
        });
        measured.await.iter().map(pod_metrics).collect()
    }
}

/// The descriptors of all metrics.
pub(super) fn descriptors() -> Vec<v1::MetricDescriptor> {
    metrics::ALL
        .iter()
        .map(|d| v1::MetricDescriptor {
            name: d.name.to_owned(),
            help: d.help.to_owned(),
            label_keys: COMMON.iter().chain(d.labels).map(|l| (*l).to_owned()).collect(),
        })
        .collect()
}

fn nanoseconds(at: Timestamp) -> i64 {
    i64::try_from(at.as_nanosecond()).unwrap_or(i64::MAX)
}

fn value(value: Option<u64>) -> Option<v1::UInt64Value> {
    value.map(|value| v1::UInt64Value { value })
}

fn psi(pressure: Option<Pressure>) -> Option<v1::PsiStats> {
    let line = |stall: PressureLine| v1::PsiData {
        total: stall.total,
        avg10: stall.averages[0],
        avg60: stall.averages[1],
        avg300: stall.averages[2],
    };
    pressure.map(|pressure| v1::PsiStats {
        full: Some(line(pressure.full)),
        some: Some(line(pressure.some)),
    })
}

fn cpu(usage: &Usage, nano_cores: Option<u64>, at: Timestamp) -> v1::CpuUsage {
    v1::CpuUsage {
        timestamp: nanoseconds(at),
        usage_core_nano_seconds: value(usage.cpu.total),
        usage_nano_cores: value(nano_cores),
        psi: psi(usage.cpu.pressure),
    }
}

fn memory(usage: &Usage, at: Timestamp) -> v1::MemoryUsage {
    let memory = &usage.memory;
    v1::MemoryUsage {
        timestamp: nanoseconds(at),
        working_set_bytes: value(memory.working_set()),
        available_bytes: value(memory.available()),
        usage_bytes: value(memory.usage),
        rss_bytes: value(memory.rss),
        page_faults: value(memory.faults),
        major_page_faults: value(memory.major_faults),
        psi: psi(memory.pressure),
    }
}

fn swap(usage: &Usage, at: Timestamp) -> v1::SwapUsage {
    let memory = &usage.memory;
    v1::SwapUsage {
        timestamp: nanoseconds(at),
        swap_available_bytes: value(
            memory.swap_limit.zip(memory.swap).map(|(l, s)| l.saturating_sub(s)),
        ),
        swap_usage_bytes: value(memory.swap),
    }
}

fn io(usage: &Usage, at: Timestamp) -> v1::IoUsage {
    v1::IoUsage { timestamp: nanoseconds(at), psi: psi(usage.io.pressure) }
}

fn container_stats(measured: &MeasuredContainer, at: Timestamp) -> v1::ContainerStats {
    let container = &measured.container;
    let usage = measured.usage.as_ref();
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: container.id.to_string(),
            metadata: container.config.metadata.clone(),
            labels: container.config.labels.clone(),
            annotations: container.config.annotations.clone(),
        }),
        cpu: usage.map(|u| cpu(u, measured.nano_cores, at)),
        memory: usage.map(|u| memory(u, at)),
        writable_layer: measured.layer.as_ref().map(|(path, disk)| v1::FilesystemUsage {
            timestamp: nanoseconds(at),
            fs_id: Some(v1::FilesystemIdentifier { mountpoint: path.display().to_string() }),
            used_bytes: value(Some(disk.used)),
            inodes_used: value(Some(disk.inodes)),
        }),
        swap: usage.map(|u| swap(u, at)),
        io: usage.map(|u| io(u, at)),
    }
}

fn interface(traffic: &Traffic) -> v1::NetworkInterfaceUsage {
    v1::NetworkInterfaceUsage {
        name: traffic.name.clone(),
        rx_bytes: value(Some(traffic.received[0])),
        rx_errors: value(Some(traffic.received[2])),
        tx_bytes: value(Some(traffic.sent[0])),
        tx_errors: value(Some(traffic.sent[2])),
    }
}

fn pod_stats(pod: &MeasuredPod) -> v1::PodSandboxStats {
    let (at, usage) = (pod.at, pod.usage.as_ref());
    let mut interfaces = pod.network.iter().map(interface);
    let network = (!pod.network.is_empty()).then(|| v1::NetworkUsage {
        timestamp: nanoseconds(at),
        default_interface: interfaces.next(),
        interfaces: interfaces.collect(),
    });
    let processes = usage.map(|u| u.tasks.processes);
    v1::PodSandboxStats {
        attributes: Some(v1::PodSandboxAttributes {
            id: pod.sandbox.id.to_string(),
            metadata: pod.sandbox.config.metadata.clone(),
            labels: pod.sandbox.config.labels.clone(),
            annotations: pod.sandbox.config.annotations.clone(),
        }),
        linux: Some(v1::LinuxPodSandboxStats {
            cpu: usage.map(|u| cpu(u, pod.nano_cores, at)),
            memory: usage.map(|u| memory(u, at)),
            network,
            process: processes.map(|count| v1::ProcessUsage {
                timestamp: nanoseconds(at),
                process_count: value(Some(count)),
            }),
            containers: pod
                .containers
                .iter()
                .filter(|c| c.usage.is_some())
                .map(|c| container_stats(c, at))
                .collect(),
            io: usage.map(|u| io(u, at)),
        }),
        windows: None,
    }
}

fn pod_metrics(pod: &MeasuredPod) -> v1::PodSandboxMetrics {
    let seen = u64::try_from(pod.at.as_second()).unwrap_or(0);
    let started = u64::try_from(pod.sandbox.created_at.as_second()).unwrap_or(0);
    let source = MetricSource {
        usage: pod.usage.clone().unwrap_or_default(),
        network: pod.network.clone(),
        started,
        seen,
        ..MetricSource::default()
    };
    // A pod that has ended has no usage.
    let told = |_: &&Descriptor| pod.usage.is_some();
    let labels = common(pod, None);
    v1::PodSandboxMetrics {
        pod_sandbox_id: pod.sandbox.id.to_string(),
        metrics: values(&source, &labels, metrics::ALL.iter().filter(told)),
        container_metrics: pod.containers.iter().map(|c| container_metrics(pod, c, seen)).collect(),
    }
}

fn container_metrics(
    pod: &MeasuredPod,
    measured: &MeasuredContainer,
    seen: u64,
) -> v1::ContainerMetrics {
    let container = &measured.container;
    let resources = container.config.linux.as_ref().and_then(|l| l.resources.as_ref());
    let source = MetricSource {
        usage: measured.usage.clone().unwrap_or_default(),
        disk: measured.layer.as_ref().map(|(path, disk)| (path.display().to_string(), *disk)),
        started: container.started_at.map_or(0, |at| u64::try_from(at.as_second()).unwrap_or(0)),
        seen,
        cpu_limits: resources.map_or([0; 3], |r| [r.cpu_period, r.cpu_quota, r.cpu_shares]),
        network: Vec::new(),
    };
    v1::ContainerMetrics {
        container_id: container.id.to_string(),
        metrics: values(&source, &common(pod, Some(measured)), metrics::ALL.iter()),
    }
}

/// The values of [`COMMON`].
fn common(pod: &MeasuredPod, measured: Option<&MeasuredContainer>) -> Vec<String> {
    let metadata = pod.sandbox.config.metadata.clone().unwrap_or_default();
    let container = measured.map(|m| &m.container);
    let place = match container {
        Some(container) => container.cgroup.as_ref(),
        None => pod.sandbox.cgroup.as_ref(),
    };
    let name = container.and_then(|c| c.config.metadata.as_ref());
    let image = container.and_then(|c| c.config.image.as_ref());
    vec![
        name.map(|m| m.name.clone()).unwrap_or_default(),
        place.map(|p| format!("/{}", p.path.display())).unwrap_or_default(),
        image
            .map(|i| match i.user_specified_image.as_str() {
                "" => i.image.clone(),
                named => named.to_owned(),
            })
            .unwrap_or_default(),
        container.map_or_else(|| pod.sandbox.id.to_string(), |c| c.id.to_string()),
        metadata.namespace,
        metadata.name,
    ]
}

fn values<'a>(
    source: &MetricSource,
    common: &[String],
    descriptors: impl Iterator<Item = &'a Descriptor>,
) -> Vec<v1::Metric> {
    descriptors
        .flat_map(|descriptor| {
            let kind = match descriptor.kind {
                Kind::Counter => v1::MetricType::Counter,
                Kind::Gauge => v1::MetricType::Gauge,
            };
            (descriptor.values)(source).into_iter().map(move |(labels, number)| v1::Metric {
                name: descriptor.name.to_owned(),
                timestamp: 0,
                metric_type: kind.into(),
                label_values: common.iter().cloned().chain(labels).collect(),
                value: value(Some(number)),
            })
        })
        .collect()
}

/// Measures the file system of containers, if they have their own. It walks over all layers, which may take long.
pub(crate) type Measure = Arc<dyn Fn() -> Option<ContainerFilesystem> + Send + Sync>;

/// Reports the images' file system as the containers' too, unless containers have their own. A kubelet that reads cgroups itself
/// needs one for its disk statistics, and counts two mount points as two disks.
pub(super) fn filesystems(
    images: &FsInfo,
    containers: Option<&ContainerFilesystem>,
    now: jiff::Timestamp,
) -> v1::ImageFsInfoResponse {
    let usage = |mountpoint: &PathBuf, bytes, inodes| v1::FilesystemUsage {
        timestamp: i64::try_from(now.as_nanosecond()).unwrap_or(i64::MAX),
        fs_id: Some(v1::FilesystemIdentifier { mountpoint: mountpoint.display().to_string() }),
        used_bytes: Some(v1::UInt64Value { value: bytes }),
        inodes_used: Some(v1::UInt64Value { value: inodes }),
    };
    let of_containers =
        |own: &ContainerFilesystem| usage(&own.mountpoint, own.written.used, own.written.inodes);
    let of_images = usage(&images.mountpoint, images.used_bytes, images.inodes_used);
    let of_containers = containers.map_or_else(|| of_images.clone(), of_containers);
    v1::ImageFsInfoResponse {
        image_filesystems: vec![of_images],
        container_filesystems: vec![of_containers],
    }
}
