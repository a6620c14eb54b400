//! Conversion of statistics and metrics.

use cri::v1;

use super::timestamp;
use crate::cri::stats::{
    ContainerStats, CpuStats, InterfaceStats, IoStats, LayerStats, MemoryStats, Metric,
    MetricDescriptor, NetworkStats, Pressure, SandboxStats, Stall, SwapStats, Usage,
};
use crate::observed::{ContainerId, SandboxId};

/// `None` for a sandbox without an id.
pub(in crate::cri) fn sandbox_stats(from: v1::PodSandboxStats) -> Option<SandboxStats> {
    let linux = from.linux.unwrap_or_default();
    let processes = linux.process.and_then(|process| number(process.process_count));
    Some(SandboxStats {
        id: SandboxId::new(from.attributes?.id),
        usage: usage(linux.cpu, linux.memory, linux.io),
        network: linux.network.map(network),
        processes,
        containers: linux.containers.into_iter().filter_map(container_stats).collect(),
    })
}

/// `None` for a container without an id.
pub(in crate::cri) fn container_stats(from: v1::ContainerStats) -> Option<ContainerStats> {
    Some(ContainerStats {
        id: ContainerId::new(from.attributes?.id),
        usage: usage(from.cpu, from.memory, from.io),
        swap: from.swap.map(|swap| SwapStats {
            at: timestamp(swap.timestamp),
            available: number(swap.swap_available_bytes),
            used: number(swap.swap_usage_bytes),
        }),
        layer: from.writable_layer.map(layer),
    })
}

pub(in crate::cri) fn metric_descriptor(from: v1::MetricDescriptor) -> MetricDescriptor {
    MetricDescriptor { name: from.name, help: from.help, labels: from.label_keys }
}

/// The metrics of a sandbox and of its containers.
pub(in crate::cri) fn metrics(from: v1::PodSandboxMetrics) -> impl Iterator<Item = Metric> {
    let of_containers = from.container_metrics.into_iter().flat_map(|one| one.metrics);
    from.metrics.into_iter().chain(of_containers).filter_map(metric)
}

/// `None` for a metric without a value.
fn metric(from: v1::Metric) -> Option<Metric> {
    let is_counter = from.metric_type() == v1::MetricType::Counter;
    Some(Metric {
        name: from.name,
        at: (from.timestamp != 0).then(|| timestamp(from.timestamp)),
        is_counter,
        labels: from.label_values,
        value: number(from.value)?,
    })
}

fn usage(
    cpu: Option<v1::CpuUsage>,
    memory: Option<v1::MemoryUsage>,
    io: Option<v1::IoUsage>,
) -> Usage {
    Usage {
        cpu: cpu.map(|cpu| CpuStats {
            at: timestamp(cpu.timestamp),
            core_nanoseconds: number(cpu.usage_core_nano_seconds),
            nano_cores: number(cpu.usage_nano_cores),
            pressure: cpu.psi.map(pressure),
        }),
        memory: memory.map(|memory| MemoryStats {
            at: timestamp(memory.timestamp),
            available: number(memory.available_bytes),
            usage: number(memory.usage_bytes),
            working_set: number(memory.working_set_bytes),
            rss: number(memory.rss_bytes),
            page_faults: number(memory.page_faults),
            major_page_faults: number(memory.major_page_faults),
            pressure: memory.psi.map(pressure),
        }),
        io: io.map(|io| IoStats { at: timestamp(io.timestamp), pressure: io.psi.map(pressure) }),
    }
}

fn layer(from: v1::FilesystemUsage) -> LayerStats {
    LayerStats {
        at: timestamp(from.timestamp),
        mountpoint: from.fs_id.unwrap_or_default().mountpoint,
        used_bytes: number(from.used_bytes),
        inodes_used: number(from.inodes_used),
    }
}

fn network(from: v1::NetworkUsage) -> NetworkStats {
    let interface = |from: v1::NetworkInterfaceUsage| InterfaceStats {
        name: from.name,
        rx_bytes: number(from.rx_bytes),
        rx_errors: number(from.rx_errors),
        tx_bytes: number(from.tx_bytes),
        tx_errors: number(from.tx_errors),
    };
    NetworkStats {
        at: timestamp(from.timestamp),
        default: from.default_interface.map(interface),
        others: from.interfaces.into_iter().map(interface).collect(),
    }
}

fn pressure(from: v1::PsiStats) -> Pressure {
    let stall = |from: Option<v1::PsiData>| {
        from.map_or_else(Stall::default, |from| Stall {
            total: from.total,
            avg10: from.avg10,
            avg60: from.avg60,
            avg300: from.avg300,
        })
    };
    Pressure { full: stall(from.full), some: stall(from.some) }
}

fn number(from: Option<v1::UInt64Value>) -> Option<u64> {
    from.map(|from| from.value)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn value(value: u64) -> Option<v1::UInt64Value> {
        Some(v1::UInt64Value { value })
    }

    #[test]
    fn absent_values_stay_absent() {
        let attributes = v1::ContainerAttributes { id: "c".to_owned(), ..Default::default() };
        let stats = v1::ContainerStats {
            attributes: Some(attributes),
            cpu: Some(v1::CpuUsage { timestamp: 5, ..Default::default() }),
            swap: Some(v1::SwapUsage { swap_usage_bytes: value(0), ..Default::default() }),
            ..Default::default()
        };
        let stats = container_stats(stats).unwrap();
        let cpu = stats.usage.cpu.unwrap();
        assert_eq!((cpu.at.as_nanosecond(), cpu.core_nanoseconds), (5, None));
        let swap = stats.swap.unwrap();
        assert_eq!((swap.used, swap.available), (Some(0), None));
        assert_eq!((stats.usage.memory, stats.layer), (None, None));
        assert_eq!(container_stats(v1::ContainerStats::default()), None);
        assert_eq!(sandbox_stats(v1::PodSandboxStats::default()), None);
    }

    #[test]
    fn sandbox_has_its_containers_network_and_processes() {
        let container = v1::ContainerStats {
            attributes: Some(v1::ContainerAttributes { id: "c".to_owned(), ..Default::default() }),
            ..Default::default()
        };
        let eth0 = v1::NetworkInterfaceUsage {
            name: "eth0".to_owned(),
            rx_bytes: value(1),
            ..Default::default()
        };
        let process = v1::ProcessUsage { process_count: value(2), ..Default::default() };
        let linux = v1::LinuxPodSandboxStats {
            containers: vec![container],
            network: Some(v1::NetworkUsage { default_interface: Some(eth0), ..Default::default() }),
            process: Some(process),
            ..Default::default()
        };
        let attributes = v1::PodSandboxAttributes { id: "s".to_owned(), ..Default::default() };
        let stats = v1::PodSandboxStats {
            attributes: Some(attributes),
            linux: Some(linux),
            ..Default::default()
        };
        let stats = sandbox_stats(stats).unwrap();
        assert_eq!((stats.id.as_str(), stats.processes), ("s", Some(2)));
        assert_eq!(stats.containers[0].id.as_str(), "c");
        assert_eq!(stats.network.unwrap().default.unwrap().rx_bytes, Some(1));
    }

    #[test]
    fn metrics_of_containers_follow_those_of_the_sandbox() {
        let metric = |name: &str, timestamp| v1::Metric {
            name: name.to_owned(),
            timestamp,
            metric_type: v1::MetricType::Gauge.into(),
            label_values: vec!["l".to_owned()],
            value: value(7),
        };
        let without_value = v1::Metric { value: None, ..metric("none", 0) };
        let of_container =
            v1::ContainerMetrics { metrics: vec![metric("b", 9)], ..Default::default() };
        let all = v1::PodSandboxMetrics {
            metrics: vec![metric("a", 0), without_value],
            container_metrics: vec![of_container],
            ..Default::default()
        };
        let all: Vec<Metric> = metrics(all).collect();
        let names: Vec<(&str, bool)> =
            all.iter().map(|one| (one.name.as_str(), one.at.is_some())).collect();
        assert_eq!(names, [("a", false), ("b", true)]);
        assert_eq!((all[0].value, all[0].is_counter), (7, false));
    }
}
