//! ◆ `/metrics/cadvisor`: the runtime's own metrics, which have cAdvisor's names, or else metrics derived from its statistics.
//! The node's metrics are derived from its summary. Pure.
//!
//! Source: cAdvisor 0.56, metrics/prometheus.go and prometheus_machine.go; Kubernetes 1.36, pkg/kubelet/metrics/collectors/cri_metrics.go.

use std::collections::HashMap;

use agent::cri::stats::{Metric, MetricDescriptor};

use super::resource::since_1970;
use super::text::{Description, Labels, Metrics, counter, gauge};
use crate::stats::summary::{
    ContainerStats, CpuStats, FsStats, IoStats, MemoryStats, NetworkStats, Psi, Summary, SwapStats,
};

const CPU: Description<'_> =
    counter("container_cpu_usage_seconds_total", "Cumulative cpu time consumed in seconds.");
const MEMORY_USAGE: Description<'_> = gauge(
    "container_memory_usage_bytes",
    "Current memory usage in bytes, including all memory regardless of when it was accessed",
);
const MEMORY_WORKING_SET: Description<'_> =
    gauge("container_memory_working_set_bytes", "Current working set in bytes.");
const MEMORY_RSS: Description<'_> = gauge("container_memory_rss", "Size of RSS in bytes.");
const MEMORY_SWAP: Description<'_> =
    gauge("container_memory_swap", "Container swap usage in bytes.");
const MEMORY_FAILURES: Description<'_> =
    counter("container_memory_failures_total", "Cumulative count of memory allocation failures.");
const FS_USAGE: Description<'_> = gauge(
    "container_fs_usage_bytes",
    "Number of bytes that are consumed by the container on this filesystem.",
);
const FS_LIMIT: Description<'_> = gauge(
    "container_fs_limit_bytes",
    "Number of bytes that can be consumed by the container on this filesystem.",
);
const FS_INODES: Description<'_> = gauge("container_fs_inodes_total", "Number of Inodes");
const FS_INODES_FREE: Description<'_> =
    gauge("container_fs_inodes_free", "Number of available Inodes");
const PROCESSES: Description<'_> =
    gauge("container_processes", "Number of processes running inside the container.");
const START: Description<'_> = gauge(
    "container_start_time_seconds",
    "Start time of the container since unix epoch in seconds.",
);
const RX_BYTES: Description<'_> =
    counter("container_network_receive_bytes_total", "Cumulative count of bytes received");
const RX_ERRORS: Description<'_> = counter(
    "container_network_receive_errors_total",
    "Cumulative count of errors encountered while receiving",
);
const TX_BYTES: Description<'_> =
    counter("container_network_transmit_bytes_total", "Cumulative count of bytes transmitted");
const TX_ERRORS: Description<'_> = counter(
    "container_network_transmit_errors_total",
    "Cumulative count of errors encountered while transmitting",
);
const OOM_EVENTS: Description<'_> = counter(
    "container_oom_events_total",
    "Count of out of memory events observed for the container",
);
const MACHINE_CPUS: Description<'_> = gauge("machine_cpu_cores", "Number of logical CPU cores.");
const MACHINE_MEMORY: Description<'_> =
    gauge("machine_memory_bytes", "Amount of memory installed on the machine.");
const MACHINE_SWAP: Description<'_> =
    gauge("machine_swap_bytes", "Amount of swap memory available on the machine.");
const SCRAPE_ERROR: Description<'_> = gauge(
    "container_scrape_error",
    "1 if there was an error while getting container metrics, 0 otherwise",
);

/// Pressure: time in which some tasks wait, and in which all tasks are stalled.
const PRESSURE: [[Description<'_>; 2]; 3] = [
    [
        counter(
            "container_pressure_cpu_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to CPU congestion.",
        ),
        counter(
            "container_pressure_cpu_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to CPU congestion.",
        ),
    ],
    [
        counter(
            "container_pressure_memory_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to memory congestion.",
        ),
        counter(
            "container_pressure_memory_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to memory congestion.",
        ),
    ],
    [
        counter(
            "container_pressure_io_waiting_seconds_total",
            "Total time duration tasks in the container have waited due to IO congestion.",
        ),
        counter(
            "container_pressure_io_stalled_seconds_total",
            "Total time duration no tasks in the container could make progress due to IO congestion.",
        ),
    ],
];

/// The machine's capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MachineSize {
    pub(crate) processors: Option<u64>,
    pub(crate) memory: Option<u64>,
    pub(crate) swap: Option<u64>,
    /// The number of processes that the kernel's OOM killer has killed.
    pub(crate) oom_kills: Option<u64>,
}

/// The runtime's own metrics: descriptors and values; `None` if the runtime has none.
pub(crate) type RuntimeMetrics = Option<(Vec<MetricDescriptor>, Vec<Metric>)>;

/// All metrics. `summary` is `None` if it could not be collected. `is_complete`: nothing is missing. `image` returns a
/// container's image by namespace, pod and container name.
pub(crate) fn metrics(
    runtime: &RuntimeMetrics,
    summary: Option<&Summary>,
    is_complete: bool,
    machine: MachineSize,
    image: impl Fn(&str, &str, &str) -> String,
) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.add(&SCRAPE_ERROR, &[], if is_complete { 0.0 } else { 1.0 });
    for (what, value) in [
        (&MACHINE_CPUS, machine.processors),
        (&MACHINE_MEMORY, machine.memory),
        (&MACHINE_SWAP, machine.swap),
    ] {
        if let Some(value) = value {
            metrics.add(what, &[], value as f64);
        }
    }
    if let Some(kills) = machine.oom_kills {
        metrics.add(&OOM_EVENTS, &common(["", "/", "", "", "", ""]), kills as f64);
    }
    if let Some((descriptors, values)) = runtime {
        add_runtime(&mut metrics, descriptors, values);
    } else if let Some(summary) = summary {
        add_pods(&mut metrics, summary, image);
    }
    if let Some(Summary { node, .. }) = summary {
        let labels = common(["", "/", "", "", "", ""]);
        let swap = node.swap.as_ref();
        add_usage(&mut metrics, &labels, (node.cpu.as_ref(), node.memory.as_ref(), swap));
        add_io(&mut metrics, &labels, node.io.as_ref());
        add_network(&mut metrics, &labels, node.network.as_ref());
    }
    metrics
}

/// Adds the machine's file systems, by their devices.
pub(crate) fn add_disks(metrics: &mut Metrics, disks: &[(String, FsStats)]) {
    for (device, fs) in disks {
        let labels = with(&common(["", "/", "", "", "", ""]), "device", device);
        for (what, amount) in [
            (&FS_USAGE, fs.used_bytes),
            (&FS_LIMIT, fs.capacity_bytes),
            (&FS_INODES, fs.inodes),
            (&FS_INODES_FREE, fs.inodes_free),
        ] {
            if let Some(amount) = amount {
                metrics.add_at(what, &labels, amount as f64, fs.time.0);
            }
        }
    }
}

/// Adds the runtime's own metrics. Skips a metric without a descriptor, or with another number of labels than its descriptor.
fn add_runtime(metrics: &mut Metrics, descriptors: &[MetricDescriptor], values: &[Metric]) {
    let descriptors: HashMap<&str, &MetricDescriptor> =
        descriptors.iter().map(|one| (one.name.as_str(), one)).collect();
    for value in values {
        let Some(descriptor) = descriptors.get(value.name.as_str()) else {
            continue;
        };
        if descriptor.labels.len() != value.labels.len() {
            continue;
        }
        let kind = if value.is_counter { counter } else { gauge };
        let names = descriptor.labels.iter().map(String::as_str);
        let labels: Vec<(&str, &str)> =
            names.zip(value.labels.iter().map(String::as_str)).collect();
        let what = kind(&value.name, &descriptor.help);
        metrics.add_at(&what, &labels, value.value as f64, value.at);
    }
}

/// The labels of all metrics of containers: container, id, image, name, namespace, pod.
fn common(values: [&str; 6]) -> [(&'static str, &str); 6] {
    let [container, id, image, name, namespace, pod] = values;
    [
        ("container", container),
        ("id", id),
        ("image", image),
        ("name", name),
        ("namespace", namespace),
        ("pod", pod),
    ]
}

fn add_pods(metrics: &mut Metrics, summary: &Summary, image: impl Fn(&str, &str, &str) -> String) {
    for pod in &summary.pods {
        let (namespace, name) = (pod.pod_ref.namespace.as_str(), pod.pod_ref.name.as_str());
        for container in &pod.containers {
            let image = image(namespace, name, &container.name);
            let values = [&container.name, "", &image, &container.id, namespace, name];
            add_container(metrics, &common(values), container);
        }
        let labels = common(["", "", "", "", namespace, name]);
        add_usage(metrics, &labels, (pod.cpu.as_ref(), pod.memory.as_ref(), pod.swap.as_ref()));
        add_io(metrics, &labels, pod.io.as_ref());
        add_network(metrics, &labels, pod.network.as_ref());
        if let Some(count) = pod.processes.as_ref().and_then(|it| it.process_count) {
            metrics.add(&PROCESSES, &labels, count as f64);
        }
    }
}

fn add_container(metrics: &mut Metrics, labels: &Labels<'_>, container: &ContainerStats) {
    let usage = (container.cpu.as_ref(), container.memory.as_ref(), container.swap.as_ref());
    add_usage(metrics, labels, usage);
    add_io(metrics, labels, container.io.as_ref());
    if let Some(seconds) = container.start_time.0.and_then(since_1970) {
        metrics.add(&START, labels, seconds);
    }
    if let Some(fs) = &container.rootfs {
        let labels = with(labels, "device", "");
        for (what, bytes) in [(&FS_USAGE, fs.used_bytes), (&FS_LIMIT, fs.capacity_bytes)] {
            if let Some(bytes) = bytes {
                metrics.add_at(what, &labels, bytes as f64, fs.time.0);
            }
        }
    }
}

fn with<'l>(labels: &Labels<'l>, name: &'l str, value: &'l str) -> Vec<(&'l str, &'l str)> {
    labels.iter().copied().chain([(name, value)]).collect()
}

fn add_usage(
    metrics: &mut Metrics,
    labels: &Labels<'_>,
    (cpu, memory, swap): (Option<&CpuStats>, Option<&MemoryStats>, Option<&SwapStats>),
) {
    if let Some(cpu) = cpu {
        if let Some(total) = cpu.usage_core_nano_seconds {
            let labels = with(labels, "cpu", "total");
            metrics.add_at(&CPU, &labels, total as f64 / 1e9, cpu.time.0);
        }
        add_pressure(metrics, labels, 0, cpu.psi, cpu.time.0);
    }
    if let Some(memory) = memory {
        let at = memory.time.0;
        for (what, bytes) in [
            (&MEMORY_USAGE, memory.usage_bytes),
            (&MEMORY_WORKING_SET, memory.working_set_bytes),
            (&MEMORY_RSS, memory.rss_bytes),
        ] {
            if let Some(bytes) = bytes {
                metrics.add_at(what, labels, bytes as f64, at);
            }
        }
        for (kind, faults) in
            [("pgfault", memory.page_faults), ("pgmajfault", memory.major_page_faults)]
        {
            if let Some(faults) = faults {
                let labels = with(labels, "failure_type", kind);
                let labels = with(&labels, "scope", "hierarchy");
                metrics.add_at(&MEMORY_FAILURES, &labels, faults as f64, at);
            }
        }
        add_pressure(metrics, labels, 1, memory.psi, at);
    }
    if let Some((at, used)) = swap.and_then(|swap| Some((swap.time.0, swap.swap_usage_bytes?))) {
        metrics.add_at(&MEMORY_SWAP, labels, used as f64, at);
    }
}

fn add_io(metrics: &mut Metrics, labels: &Labels<'_>, io: Option<&IoStats>) {
    if let Some(io) = io {
        add_pressure(metrics, labels, 2, io.psi, io.time.0);
    }
}

fn add_pressure(
    metrics: &mut Metrics,
    labels: &Labels<'_>,
    resource: usize,
    psi: Option<Psi>,
    at: Option<jiff::Timestamp>,
) {
    if let (Some(psi), Some([waiting, stalled])) = (psi, PRESSURE.get(resource)) {
        metrics.add_at(waiting, labels, psi.some.total as f64 / 1e9, at);
        metrics.add_at(stalled, labels, psi.full.total as f64 / 1e9, at);
    }
}

fn add_network(metrics: &mut Metrics, labels: &Labels<'_>, network: Option<&NetworkStats>) {
    let Some(network) = network else {
        return;
    };
    for interface in &network.interfaces {
        let labels = with(labels, "interface", &interface.name);
        for (what, count) in [
            (&RX_BYTES, interface.rx_bytes),
            (&RX_ERRORS, interface.rx_errors),
            (&TX_BYTES, interface.tx_bytes),
            (&TX_ERRORS, interface.tx_errors),
        ] {
            if let Some(count) = count {
                metrics.add_at(what, &labels, count as f64, network.time.0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::summary::{InterfaceStats, NodeStats, PodReference, PodStats};

    fn values(metrics: &Metrics) -> Vec<String> {
        let text = metrics.text();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn summary() -> Summary {
        let cpu = CpuStats { usage_core_nano_seconds: Some(2_500_000_000), ..CpuStats::default() };
        let container = ContainerStats {
            id: "c1".to_owned(),
            name: "app".to_owned(),
            cpu: Some(cpu.clone()),
            ..ContainerStats::default()
        };
        let interface = InterfaceStats {
            name: "eth0".to_owned(),
            rx_bytes: Some(9),
            ..InterfaceStats::default()
        };
        let network = NetworkStats { interfaces: vec![interface], ..NetworkStats::default() };
        let pod_ref = PodReference {
            name: "p".to_owned(),
            namespace: "ns".to_owned(),
            ..PodReference::default()
        };
        let pod = PodStats {
            pod_ref,
            containers: vec![container],
            network: Some(network),
            ..PodStats::default()
        };
        Summary { node: NodeStats { cpu: Some(cpu), ..NodeStats::default() }, pods: vec![pod] }
    }

    #[test]
    fn statistics_have_the_names_of_cadvisor() {
        let machine =
            MachineSize { processors: Some(2), memory: Some(4096), swap: None, oom_kills: Some(3) };
        let all = metrics(&None, Some(&summary()), true, machine, |_, _, _| "img".to_owned());
        let expected = [
            r#"container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} 2.5"#,
            r#"container_cpu_usage_seconds_total{container="app",cpu="total",id="",image="img",name="c1",namespace="ns",pod="p"} 2.5"#,
            r#"container_network_receive_bytes_total{container="",id="",image="",interface="eth0",name="",namespace="ns",pod="p"} 9"#,
            r#"container_oom_events_total{container="",id="/",image="",name="",namespace="",pod=""} 3"#,
            "container_scrape_error 0",
            "machine_cpu_cores 2",
            "machine_memory_bytes 4096",
        ];
        assert_eq!(values(&all), expected);
    }

    #[test]
    fn file_systems_of_the_machine_are_those_of_the_root_cgroup() {
        let fs = FsStats {
            capacity_bytes: Some(9),
            used_bytes: Some(4),
            inodes: Some(7),
            inodes_free: Some(5),
            ..FsStats::default()
        };
        let mut metrics = Metrics::default();
        add_disks(&mut metrics, &[("/dev/sda1".to_owned(), fs)]);
        let of_root =
            r#"{container="",device="/dev/sda1",id="/",image="",name="",namespace="",pod=""}"#;
        let expected = ["inodes_free", "inodes_total", "limit_bytes", "usage_bytes"];
        let expected: Vec<String> = expected
            .iter()
            .zip([5, 7, 9, 4])
            .map(|(name, value)| format!("container_fs_{name}{of_root} {value}"))
            .collect();
        assert_eq!(values(&metrics), expected);
    }

    #[test]
    fn pressure_is_that_of_the_node_and_of_its_containers() {
        use crate::stats::summary::PsiData;
        let data = |total: u64| PsiData { total, ..PsiData::default() };
        let psi = |total: u64| Some(Psi { some: data(total), full: data(total / 2) });
        let cpu = CpuStats { psi: psi(2_000_000_000), ..CpuStats::default() };
        let memory = MemoryStats { psi: psi(4_000_000_000), ..MemoryStats::default() };
        let io = IoStats { psi: psi(6_000_000_000), ..IoStats::default() };
        let mut summary = summary();
        let container = &mut summary.pods[0].containers[0];
        (container.cpu, container.memory) = (Some(cpu.clone()), Some(memory.clone()));
        container.io = Some(io.clone());
        let node = &mut summary.node;
        (node.cpu, node.memory, node.io) = (Some(cpu), Some(memory), Some(io));
        let all = metrics(&None, Some(&summary), true, MachineSize::default(), |_, _, _| {
            "img".to_owned()
        });
        let found = values(&all).into_iter().filter(|it| it.starts_with("container_pressure_"));
        let mut found: Vec<String> = found.collect();
        let mut expected = Vec::new();
        for (resource, seconds) in [("cpu", 2), ("memory", 4), ("io", 6)] {
            for (what, seconds) in [("waiting", seconds), ("stalled", seconds / 2)] {
                let name = format!("container_pressure_{resource}_{what}_seconds_total");
                let of_node = r#"{container="",id="/",image="",name="",namespace="",pod=""}"#;
                let of_app =
                    r#"{container="app",id="",image="img",name="c1",namespace="ns",pod="p"}"#;
                expected
                    .extend([of_node, of_app].map(|labels| format!("{name}{labels} {seconds}")));
            }
        }
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
    }

    #[test]
    fn metrics_of_the_runtime_are_passed_on_with_those_of_the_node() {
        let descriptor = MetricDescriptor {
            name: "container_threads".to_owned(),
            help: "Threads.".to_owned(),
            labels: vec!["pod".to_owned(), "container".to_owned()],
        };
        let metric = |name: &str, labels: &[&str]| Metric {
            name: name.to_owned(),
            labels: labels.iter().map(|&label| label.to_owned()).collect(),
            value: 3,
            ..Metric::default()
        };
        let given = vec![
            metric("container_threads", &["p", "app"]),
            metric("container_threads", &["one label"]),
            metric("unknown", &["p", "app"]),
        ];
        let runtime = Some((vec![descriptor], given));
        let image = |_: &str, _: &str, _: &str| String::new();
        let all = metrics(&runtime, Some(&summary()), true, MachineSize::default(), image);
        let expected = [
            r#"container_cpu_usage_seconds_total{container="",cpu="total",id="/",image="",name="",namespace="",pod=""} 2.5"#,
            "container_scrape_error 0",
            r#"container_threads{container="app",pod="p"} 3"#,
        ];
        assert_eq!(values(&all), expected);
        assert!(
            all.text()
                .contains("# HELP container_threads Threads.\n# TYPE container_threads gauge\n")
        );
        let failed = metrics(&None, None, false, MachineSize::default(), image);
        assert_eq!(values(&failed), ["container_scrape_error 1"]);
    }
}
