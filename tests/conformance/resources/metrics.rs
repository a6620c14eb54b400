//! Metrics and statistics. The two tests of metrics are those of critest (cri-tools, pod.go), which tolerates missing names; here
//! all are required.

use std::collections::BTreeSet;

use cri::v1::{LinuxContainerResources, Metric};

use crate::support::*;

/// The container metrics of cAdvisor (Kubernetes 1.37), without the prefix `container_`.
const NAMES: [&str; 56] = [
    "blkio_device_usage_total",
    "cpu_cfs_periods_total",
    "cpu_cfs_throttled_periods_total",
    "cpu_cfs_throttled_seconds_total",
    "cpu_system_seconds_total",
    "cpu_usage_seconds_total",
    "cpu_user_seconds_total",
    "file_descriptors",
    "fs_inodes_free",
    "fs_inodes_total",
    "fs_limit_bytes",
    "fs_reads_bytes_total",
    "fs_reads_total",
    "fs_usage_bytes",
    "fs_writes_bytes_total",
    "fs_writes_total",
    "hugetlb_max_usage_bytes",
    "hugetlb_usage_bytes",
    "last_seen",
    "memory_cache",
    "memory_failcnt",
    "memory_failures_total",
    "memory_kernel_usage",
    "memory_mapped_file",
    "memory_max_usage_bytes",
    "memory_rss",
    "memory_swap",
    "memory_usage_bytes",
    "memory_working_set_bytes",
    "network_receive_bytes_total",
    "network_receive_errors_total",
    "network_receive_packets_dropped_total",
    "network_receive_packets_total",
    "network_transmit_bytes_total",
    "network_transmit_errors_total",
    "network_transmit_packets_dropped_total",
    "network_transmit_packets_total",
    "oom_events_total",
    "pressure_cpu_stalled_seconds_total",
    "pressure_cpu_waiting_seconds_total",
    "pressure_io_stalled_seconds_total",
    "pressure_io_waiting_seconds_total",
    "pressure_memory_stalled_seconds_total",
    "pressure_memory_waiting_seconds_total",
    "processes",
    "sockets",
    "spec_cpu_period",
    "spec_cpu_quota",
    "spec_cpu_shares",
    "spec_memory_limit_bytes",
    "spec_memory_reservation_limit_bytes",
    "spec_memory_swap_limit_bytes",
    "start_time_seconds",
    "threads",
    "threads_max",
    "ulimits_soft",
];

/// Metrics that need cgroups.
const OF_CGROUPS: [&str; 8] = [
    "cpu_cfs_periods_total",
    "cpu_cfs_throttled_periods_total",
    "cpu_cfs_throttled_seconds_total",
    "memory_cache",
    "memory_failcnt",
    "memory_kernel_usage",
    "memory_max_usage_bytes",
    "oom_events_total",
];

/// Metrics that some kernels and disks do not have: pressure (Linux 4.20, cgroup v2), huge pages, and block I/O, which critest also
/// omits.
const OF_SOME_BOXES: [&str; 13] = [
    "blkio_device_usage_total",
    "fs_reads_bytes_total",
    "fs_reads_total",
    "fs_writes_bytes_total",
    "fs_writes_total",
    "hugetlb_max_usage_bytes",
    "hugetlb_usage_bytes",
    "pressure_cpu_stalled_seconds_total",
    "pressure_cpu_waiting_seconds_total",
    "pressure_io_stalled_seconds_total",
    "pressure_io_waiting_seconds_total",
    "pressure_memory_stalled_seconds_total",
    "pressure_memory_waiting_seconds_total",
];

const LABELS: [&str; 6] = ["container", "id", "image", "name", "namespace", "pod"];
const IMAGE: &str = "example.com/metrics:1";

#[tokio::test]
async fn metric_descriptors_are_complete() {
    let runtime = Runtime::start().await.unwrap();
    let descriptors = runtime.client.metric_descriptors().await.unwrap();
    let names: BTreeSet<&str> = descriptors.iter().map(|d| d.name.as_str()).collect();
    let expected: Vec<String> = NAMES.map(|name| format!("container_{name}")).into();
    let expected: BTreeSet<&str> = expected.iter().map(String::as_str).collect();
    assert_eq!(names, expected);
    assert_eq!(names.len(), descriptors.len(), "a name is there twice");
    for descriptor in &descriptors {
        assert!(!descriptor.help.is_empty(), "{descriptor:?}");
        assert_eq!(descriptor.label_keys[..6], LABELS, "{descriptor:?}");
    }
}

/// A pod with a container that has written files, with the limits of critest.
async fn measured(runtime: &Runtime) -> (Pod, String) {
    let pod = runtime.pod("p").await.unwrap();
    let mut config = fixture::script(
        "c",
        "for i in 1 2 3 4 5; do echo hi > /file$i; done; echo ready; exec sleep 1000",
    );
    config.image.as_mut().unwrap().image = IMAGE.to_owned();
    let linux = config.linux.get_or_insert_default();
    linux.resources = Some(LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 1024,
        memory_limit_in_bytes: 64 << 20,
        memory_swap_limit_in_bytes: 64 << 20,
        ..Default::default()
    });
    let id = pod.start_ready(config).await.unwrap();
    (pod, id)
}

#[tokio::test]
async fn metrics_have_values_and_labels_of_their_descriptors() {
    harness::needs!(Namespaces);
    let layer = with_programs(Layer::new(), &["/bin/sh", "/bin/sleep"]);
    let (runtime, _place) = with_image(Runtime::with(), IMAGE, layer).await;
    let (pod, id) = measured(&runtime).await;
    let descriptors = runtime.client.metric_descriptors().await.unwrap();
    let all_metrics = runtime.client.pod_metrics().await.unwrap();
    let [of_pod] = &all_metrics[..] else { panic!("one pod") };
    assert_eq!(of_pod.pod_sandbox_id, pod.id);
    let [of_container] = &of_pod.container_metrics[..] else { panic!("one container") };
    assert_eq!(of_container.container_id, id);

    let metadata = pod.config.metadata.as_ref().unwrap();
    let all = || of_pod.metrics.iter().chain(&of_container.metrics);
    for metric in all() {
        let described = descriptors.iter().find(|d| d.name == metric.name).unwrap();
        let labels = &metric.label_values;
        assert_eq!(labels.len(), described.label_keys.len(), "{metric:?}");
        assert_eq!(labels[4], metadata.namespace, "{metric:?}");
        assert_eq!(labels[5], metadata.name, "{metric:?}");
        assert!(metric.value.is_some(), "{metric:?}");
    }
    for metric in &of_container.metrics {
        assert_eq!(metric.label_values[0], "c", "{metric:?}");
        assert_eq!(metric.label_values[2], IMAGE, "{metric:?}");
        assert_eq!(metric.label_values[3], id, "{metric:?}");
    }
    let reported: BTreeSet<&str> = all().map(|metric| metric.name.as_str()).collect();
    let excused = |name: &str| {
        OF_SOME_BOXES.contains(&name)
            || (OF_CGROUPS.contains(&name) && Need::Cgroups.missing().is_some())
    };
    let missing: Vec<&str> = NAMES
        .into_iter()
        .filter(|name| !reported.contains(format!("container_{name}").as_str()) && !excused(name))
        .collect();
    assert!(missing.is_empty(), "{missing:?}");

    let one = |metrics: &[Metric], name: &str| {
        let found = metrics.iter().find(|metric| metric.name == name);
        found.unwrap_or_else(|| panic!("no {name}")).value.unwrap().value
    };
    let value = |name| one(&of_container.metrics, name);
    assert_eq!(value("container_processes"), 1);
    assert_eq!(value("container_threads"), 1);
    assert!(value("container_memory_rss") > 0);
    assert!(value("container_fs_usage_bytes") > 0);
    assert!(value("container_last_seen") >= value("container_start_time_seconds"));
    assert_eq!(value("container_spec_cpu_period"), 100_000);
    assert_eq!(value("container_spec_cpu_quota"), 20_000);
    assert_eq!(value("container_spec_cpu_shares"), 1024);
    if Need::Cgroups.missing().is_none() {
        assert_eq!(value("container_spec_memory_limit_bytes"), 64 << 20);
    }
}

#[tokio::test]
async fn exited_container_has_stats_without_cpu() {
    let (runtime, pod) = with_pod().await;
    let id = pod.start(fixture::script("c", "exit 0")).await.unwrap();
    pod.ended(&id).await.unwrap();
    let stats = runtime.client.container_stats(&id).await.unwrap();
    assert_eq!(stats.attributes.unwrap().id, id);
    assert_eq!(stats.cpu, None);
}
