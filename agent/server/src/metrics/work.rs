//! ◆ `/metrics`: the agent's calls of the runtime and the API server, with the kubelet's names. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go, pkg/kubelet/metrics/collectors/volume_stats.go,
//! k8s.io/component-base/metrics/prometheus/restclient, cmd/kubelet/app/server.go, pkg/kubelet/certificate/kubelet.go.

use std::path::PathBuf;

use agent::cri::Operation;
use agent::histogram::Histogram;
use agent::reporting::measures::Measured;
use agent::storage::drivers::DriverCalls;
use compact::{Map, Set};
use jiff::Timestamp;
use kube_node::client::RequestCounts;
use kube_node::{CertificateState, StartupDurations};

use super::text::{Description, Metrics, counter, gauge, histogram};
use crate::stats::summary::VolumeStats;

const OPERATIONS: Description<'_> = counter(
    "kubelet_runtime_operations_total",
    "[ALPHA] Cumulative number of runtime operations by operation type.",
);
const OPERATION_ERRORS: Description<'_> = counter(
    "kubelet_runtime_operations_errors_total",
    "[ALPHA] Cumulative number of runtime operation errors by operation type.",
);
const OPERATION_DURATION: Description<'_> = histogram(
    "kubelet_runtime_operations_duration_seconds",
    "[ALPHA] Duration in seconds of runtime operations. Broken down by operation type.",
);
const STARTED_PODS: Description<'_> =
    counter("kubelet_started_pods_total", "[ALPHA] Cumulative number of pods started");
const STARTED_PODS_ERRORS: Description<'_> = counter(
    "kubelet_started_pods_errors_total",
    "[ALPHA] Cumulative number of errors when starting pods",
);
const RELIST_DURATION: Description<'_> = histogram(
    "kubelet_pleg_relist_duration_seconds",
    "[ALPHA] Duration in seconds for relisting pods in PLEG.",
);
const RELIST_INTERVAL: Description<'_> = histogram(
    "kubelet_pleg_relist_interval_seconds",
    "[ALPHA] Interval in seconds between relisting in PLEG.",
);
const LAST_SEEN: Description<'_> = gauge(
    "kubelet_pleg_last_seen_seconds",
    "[ALPHA] Timestamp in seconds when PLEG was last seen active.",
);
const EVENT_DELAY: Description<'_> = histogram(
    "kubelet_evented_pleg_connection_latency_seconds",
    "[ALPHA] The latency of streaming connection with the CRI runtime, measured in seconds.",
);
const INSPECTION: Description<'_> = histogram(
    "kubelet_pleg_pod_relist_duration_seconds",
    "[ALPHA] Duration in seconds for relisting a single pod in PLEG.",
);
const WORKER_START: Description<'_> = histogram(
    "kubelet_pod_worker_start_duration_seconds",
    "[ALPHA] Duration in seconds from kubelet seeing a pod to starting a worker.",
);
const WORK: Description<'_> = histogram(
    "kubelet_pod_worker_duration_seconds",
    "[ALPHA] Duration in seconds to sync a single pod. Broken down by operation type: create, update, or sync",
);
const CGROUPS: Description<'_> = histogram(
    "kubelet_cgroup_manager_duration_seconds",
    "[ALPHA] Duration in seconds for cgroup manager operations. Broken down by method.",
);
const VOLUME_CHANGES: Description<'_> =
    histogram("storage_operation_duration_seconds", "[ALPHA] Storage operation duration");
const VOLUMES: Description<'_> =
    gauge("volume_manager_total_volumes", "[ALPHA] Number of volumes in Volume Manager");
const PLUGINS: Description<'_> =
    gauge("plugin_manager_total_plugins", "[ALPHA] Number of plugins in Plugin Manager");
const STATS_AGE: Description<'_> = histogram(
    "kubelet_eviction_stats_age_seconds",
    "[ALPHA] Time between when stats are collected, and when pod is evicted based on those stats by eviction signal",
);
const KEPT_FOR_GUARANTEED: Description<'_> = gauge(
    "kubelet_memory_qos_node_memory_min_bytes",
    "[ALPHA] Total cgroup v2 memory.min in bytes for Guaranteed pods. This memory is hard-reserved and never reclaimed by the kernel.",
);
const KEPT_FOR_BURSTABLE: Description<'_> = gauge(
    "kubelet_memory_qos_node_memory_low_bytes",
    "[ALPHA] Total cgroup v2 memory.low in bytes for Burstable pods. This memory is soft-reserved and may be reclaimed under extreme pressure.",
);
const ORPHANED_DIRS: Description<'_> = gauge(
    "kubelet_orphan_pod_cleaned_volumes",
    "[ALPHA] The total number of orphaned Pods whose volumes were cleaned in the last periodic sweep.",
);
const LEFT_ORPHANED_DIRS: Description<'_> = gauge(
    "kubelet_orphan_pod_cleaned_volumes_errors",
    "[ALPHA] The number of orphaned Pods whose volumes failed to be cleaned in the last periodic sweep.",
);
const WRITE_DELAYS: Description<'_> = histogram(
    "kubelet_pod_status_sync_duration_seconds",
    "[ALPHA] Duration in seconds to sync a pod status update. Measures time from detection of a change to pod status until the API is successfully updated for that pod, even if multiple intevening changes to pod status occur.",
);
const STARTUP_BEFORE_AGENT: Description<'_> = gauge(
    "kubelet_node_startup_pre_kubelet_duration_seconds",
    "[ALPHA] Duration in seconds of node startup before kubelet starts.",
);
const STARTUP_BEFORE_REGISTRATION: Description<'_> = gauge(
    "kubelet_node_startup_pre_registration_duration_seconds",
    "[ALPHA] Duration in seconds of node startup before registration.",
);
const STARTUP_REGISTRATION: Description<'_> = gauge(
    "kubelet_node_startup_registration_duration_seconds",
    "[ALPHA] Duration in seconds of node startup during registration.",
);
const STARTUP_AFTER_REGISTRATION: Description<'_> = gauge(
    "kubelet_node_startup_post_registration_duration_seconds",
    "[ALPHA] Duration in seconds of node startup after registration.",
);
const STARTUP: Description<'_> = gauge(
    "kubelet_node_startup_duration_seconds",
    "[ALPHA] Duration in seconds of node startup in total.",
);
const REQUESTS: Description<'_> = counter(
    "rest_client_requests_total",
    "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
);
const REQUEST_DURATION: Description<'_> = histogram(
    "rest_client_request_duration_seconds",
    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
);
const CERTIFICATE: Description<'_> = gauge(
    "kubelet_certificate_manager_client_ttl_seconds",
    "[ALPHA] Gauge of the TTL (time-to-live) of the Kubelet's client certificate. The value is in seconds until certificate expiry (negative if already expired). If client certificate is invalid or unused, the value will be +INF.",
);
const CLIENT_ERRORS: Description<'_> = counter(
    "kubelet_certificate_manager_client_expiration_renew_errors",
    "[ALPHA] Counter of certificate renewal errors.",
);
const SERVER_CERTIFICATE: Description<'_> = gauge(
    "kubelet_certificate_manager_server_ttl_seconds",
    "[ALPHA] Gauge of the shortest TTL (time-to-live) of the Kubelet's serving certificate. The value is in seconds until certificate expiry (negative if already expired). If serving certificate is invalid or unused, the value will be +INF.",
);
const SERVER_ERRORS: Description<'_> = counter(
    "kubelet_server_expiration_renew_errors",
    "[ALPHA] Counter of certificate renewal errors.",
);
const SERVER_AGES: Description<'_> = histogram(
    "kubelet_certificate_manager_server_rotation_seconds",
    "[ALPHA] Histogram of the number of seconds the previous certificate lived before being rotated.",
);
const CAPACITY: Description<'_> =
    gauge("kubelet_volume_stats_capacity_bytes", "[ALPHA] Capacity in bytes of the volume");
const AVAILABLE: Description<'_> = gauge(
    "kubelet_volume_stats_available_bytes",
    "[ALPHA] Number of available bytes in the volume",
);
const USED: Description<'_> =
    gauge("kubelet_volume_stats_used_bytes", "[ALPHA] Number of used bytes in the volume");
const INODES: Description<'_> =
    gauge("kubelet_volume_stats_inodes", "[ALPHA] Maximum number of inodes in the volume");
const INODES_FREE: Description<'_> =
    gauge("kubelet_volume_stats_inodes_free", "[ALPHA] Number of free inodes in the volume");
const INODES_USED: Description<'_> =
    gauge("kubelet_volume_stats_inodes_used", "[ALPHA] Number of used inodes in the volume");
const VOLUME_DURATIONS: Description<'_> = histogram(
    "kubelet_volume_metric_collection_duration_seconds",
    "[ALPHA] Duration in seconds to calculate volume stats",
);
const DRIVER_CALLS: Description<'_> = histogram(
    "csi_operations_seconds",
    "[ALPHA] Container Storage Interface operation duration with gRPC error code status total",
);
const ABNORMAL: Description<'_> = gauge(
    "kubelet_volume_stats_health_status_abnormal",
    "[ALPHA] Abnormal volume health status. The count is either 1 or 0. 1 indicates the volume is unhealthy, 0 indicates volume is healthy",
);

/// Adds the CRI calls.
pub(crate) fn add_operations(metrics: &mut Metrics, all: &Map<&'static str, Operation>) {
    for (name, operation) in all {
        let labels = [("operation_type", *name)];
        let count = operation.durations.count();
        metrics.add(&OPERATIONS, &labels, count as f64);
        if operation.errors > 0 {
            metrics.add(&OPERATION_ERRORS, &labels, operation.errors as f64);
        }
        metrics.add_histogram(&OPERATION_DURATION, &labels, &operation.durations);
    }
    // A sandbox start counts as a pod start.
    let (started, failed) =
        all.get("run_podsandbox").map_or((0, 0), |run| (run.durations.count(), run.errors));
    metrics.add(&STARTED_PODS, &[], started as f64);
    metrics.add(&STARTED_PODS_ERRORS, &[], failed as f64);
}

/// Adds the delays of status writes.
pub(crate) fn add_write_delays(metrics: &mut Metrics, delays: &Histogram) {
    metrics.add_histogram(&WRITE_DELAYS, &[], delays);
}

/// Adds the durations of the node's start.
pub(crate) fn add_startup(metrics: &mut Metrics, startup: &StartupDurations) {
    metrics.add(&STARTUP_BEFORE_AGENT, &[], startup.before_agent);
    metrics.add(&STARTUP_BEFORE_REGISTRATION, &[], startup.before_registration);
    metrics.add(&STARTUP_REGISTRATION, &[], startup.registration);
    metrics.add(&STARTUP_AFTER_REGISTRATION, &[], startup.after_registration);
    metrics.add(&STARTUP, &[], startup.total);
}

/// Adds the agent's own measurements.
pub(crate) fn add_measured(metrics: &mut Metrics, measured: &Measured) {
    metrics.add_histogram(&RELIST_DURATION, &[], &measured.relist_durations);
    metrics.add_histogram(&RELIST_INTERVAL, &[], &measured.relist_intervals);
    if let Some(at) = measured.last_relist {
        metrics.add(&LAST_SEEN, &[], at.as_second() as f64);
    }
    metrics.add_histogram(&EVENT_DELAY, &[], &measured.event_delays);
    metrics.add_histogram(&INSPECTION, &[], &measured.inspections);
    metrics.add_histogram(&WORKER_START, &[], &measured.worker_starts);
    for (kind, durations) in &measured.work {
        metrics.add_histogram(&WORK, &[("operation_type", kind.as_str())], durations);
    }
    for (operation, durations) in &measured.cgroups {
        metrics.add_histogram(&CGROUPS, &[("operation_type", operation)], durations);
    }
    for (change, durations) in &measured.volume_changes {
        let labels = [
            ("migrated", "false"),
            ("operation_name", change.operation),
            ("status", if change.failed { "fail-unknown" } else { "success" }),
            ("volume_plugin", &change.plugin),
        ];
        metrics.add_histogram(&VOLUME_CHANGES, &labels, durations);
    }
    for (signal, ages) in &measured.stats_ages {
        metrics.add_histogram(&STATS_AGE, &[("eviction_signal", signal)], ages);
    }
    if let Some(kept) = measured.protected_memory {
        metrics.add(&KEPT_FOR_GUARANTEED, &[], kept.guaranteed as f64);
        metrics.add(&KEPT_FOR_BURSTABLE, &[], kept.burstable as f64);
    }
    let dirs = measured.orphaned_dirs;
    metrics.add(&ORPHANED_DIRS, &[], dirs.found as f64);
    metrics.add(&LEFT_ORPHANED_DIRS, &[], dirs.left as f64);
    add_volume_counts(metrics, measured.volumes.values().flatten());
}

/// Adds the number of volumes by plugin.
fn add_volume_counts<'a>(metrics: &mut Metrics, volumes: impl Iterator<Item = &'a (String, bool)>) {
    let mut counts: Map<(&str, &str), u64> = Map::new();
    for (plugin, is_mounted) in volumes {
        *counts.entry((plugin, "desired_state_of_world")).or_default() += 1;
        if *is_mounted {
            *counts.entry((plugin, "actual_state_of_world")).or_default() += 1;
        }
    }
    for ((plugin, state), count) in counts {
        metrics.add(&VOLUMES, &[("plugin_name", plugin), ("state", state)], count as f64);
    }
}

/// Adds the counts of requests to the API server.
pub(crate) fn add_requests(metrics: &mut Metrics, host: &str, counts: &RequestCounts) {
    for ((code, method), count) in &counts.responses {
        let labels = [("code", code.as_str()), ("host", host), ("method", method.as_str())];
        metrics.add(&REQUESTS, &labels, *count as f64);
    }
    for (method, durations) in &counts.durations {
        let labels = [("host", host), ("verb", method.as_str())];
        metrics.add_histogram(&REQUEST_DURATION, &labels, durations);
    }
}

/// Adds the expiry of certificates, and the failed renewals. Without a certificate, the expiry is infinite.
pub(crate) fn add_certificates(metrics: &mut Metrics, state: CertificateState, now: Timestamp) {
    let left = |ends: Option<Timestamp>| {
        ends.map_or(f64::INFINITY, |ends| ends.duration_since(now).as_secs() as f64)
    };
    metrics.add(&CERTIFICATE, &[], left(state.client_expiry));
    if let Some(failures) = state.client_failures {
        metrics.add(&CLIENT_ERRORS, &[], failures as f64);
    }
    if let Some((ends, failures)) = state.server {
        metrics.add(&SERVER_CERTIFICATE, &[], left(ends));
        metrics.add(&SERVER_ERRORS, &[], failures as f64);
    }
}

/// Adds the ages of replaced serving certificates, if the cluster signs them.
pub(crate) fn add_replaced_certificates(metrics: &mut Metrics, ages: Option<&Histogram>) {
    if let Some(ages) = ages {
        metrics.add_histogram(&SERVER_AGES, &[], ages);
    }
}

/// Adds the usage of volumes with claims. A claim that several pods use counts once.
pub(crate) fn add_volumes(metrics: &mut Metrics, volumes: &[VolumeStats]) {
    let mut seen = Set::new();
    for volume in volumes {
        let Some(claim) = volume.claim.as_ref().filter(|claim| seen.insert(*claim)) else {
            continue;
        };
        let labels = [
            ("namespace", claim.namespace.as_str()),
            ("persistentvolumeclaim", claim.name.as_str()),
        ];
        let fs = &volume.fs;
        for (what, value) in [
            (&CAPACITY, fs.capacity_bytes),
            (&AVAILABLE, fs.available_bytes),
            (&USED, fs.used_bytes),
            (&INODES, fs.inodes),
            (&INODES_FREE, fs.inodes_free),
            (&INODES_USED, fs.inodes_used),
            (&ABNORMAL, volume.health.map(|health| health.is_abnormal.into())),
        ] {
            if let Some(value) = value {
                metrics.add(what, &labels, value as f64);
            }
        }
    }
}

/// Adds the durations of measurements of the volumes that the agent reads itself.
pub(crate) fn add_volume_durations(metrics: &mut Metrics, durations: &Histogram) {
    if durations.count() > 0 {
        metrics.add_histogram(&VOLUME_DURATIONS, &[("metric_source", "du")], durations);
    }
}

/// Adds the durations of CSI calls. The label for migrated volumes is always false: other volume types are not migrated to CSI.
pub(crate) fn add_driver_calls(metrics: &mut Metrics, calls: &DriverCalls) {
    for (call, durations) in calls {
        let labels = [
            ("driver_name", call.driver.as_str()),
            ("grpc_status_code", call.code),
            ("method_name", call.path),
            ("migrated", "false"),
        ];
        metrics.add_histogram(&DRIVER_CALLS, &labels, durations);
    }
}

/// Adds the sockets of plugins; in the actual state those whose plugin is registered.
pub(crate) fn add_plugins(metrics: &mut Metrics, sockets: &[(PathBuf, bool)]) {
    for (socket, is_registered) in sockets {
        let path = socket.display().to_string();
        let actual = is_registered.then_some("actual_state_of_world");
        for state in ["desired_state_of_world"].into_iter().chain(actual) {
            let labels = [("socket_path", path.as_str()), ("state", state)];
            metrics.add(&PLUGINS, &labels, 1.0);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use agent::ProtectedMemory;
    use agent::histogram::DEFAULT_BOUNDS;
    use agent::reporting::measures::{OrphanedDirs, VolumeOperation, WorkKind};
    use agent::storage::drivers::DriverCall;
    use api::pod::PodUid;

    use super::*;
    use crate::stats::summary::{ClaimReference, FsStats, VolumeHealth};

    fn once(seconds: f64) -> Histogram {
        let mut histogram = Histogram::new(DEFAULT_BOUNDS);
        histogram.observe(seconds);
        histogram
    }

    fn text(add: impl Fn(&mut Metrics)) -> String {
        let mut metrics = Metrics::default();
        add(&mut metrics);
        metrics.text()
    }

    #[test]
    fn sockets_of_plugins_are_desired_and_the_registered_ones_actual() {
        let text = text(|metrics| {
            add_plugins(metrics, &[("/p/a.sock".into(), true), ("/p/b.sock".into(), false)]);
        });
        let name = "plugin_manager_total_plugins";
        let of = |path: &str, state: &str| {
            format!("{name}{{socket_path=\"/p/{path}.sock\",state=\"{state}_state_of_world\"}} 1")
        };
        for (path, state) in [("a", "desired"), ("a", "actual"), ("b", "desired")] {
            has(&text, &of(path, state));
        }
        assert!(!text.contains(&of("b", "actual")), "{text}");
    }

    fn has(text: &str, line: &str) {
        assert!(text.lines().any(|have| have == line), "no {line} in {text}");
    }

    #[test]
    fn operations_have_their_type() {
        let run = Operation { errors: 1, durations: once(0.02) };
        let list = Operation { errors: 0, durations: once(0.02) };
        let all = [("run_podsandbox", run), ("list_images", list)].into();
        let text = text(|metrics| add_operations(metrics, &all));
        has(&text, r#"kubelet_runtime_operations_total{operation_type="list_images"} 1"#);
        has(&text, r#"kubelet_runtime_operations_errors_total{operation_type="run_podsandbox"} 1"#);
        has(
            &text,
            r#"kubelet_runtime_operations_duration_seconds_count{operation_type="run_podsandbox"} 1"#,
        );
        has(&text, "kubelet_started_pods_total 1");
        has(&text, "kubelet_started_pods_errors_total 1");
        assert!(!text.contains(r#"errors_total{operation_type="list_images"}"#), "{text}");
    }

    #[test]
    fn work_of_the_agent_has_the_names_of_a_kubelet() {
        let measured = Measured {
            relist_durations: once(0.02),
            relist_intervals: once(1.0),
            event_delays: once(0.02),
            last_relist: Some("2026-01-01T00:00:00.5Z".parse().unwrap()),
            work: [(WorkKind::Create, once(0.5))].into(),
            stats_ages: [("memory.available", once(0.5))].into(),
            orphaned_dirs: OrphanedDirs { found: 2, left: 1 },
            ..Measured::default()
        };
        let of = |measured: &Measured| text(|metrics| add_measured(metrics, measured));
        assert!(!of(&measured).contains("kubelet_memory_qos"), "no memory is kept");
        let kept = ProtectedMemory { guaranteed: 4096, burstable: 8192 };
        let text = of(&Measured { protected_memory: Some(kept), ..measured });
        has(&text, "kubelet_memory_qos_node_memory_min_bytes 4096");
        has(&text, "kubelet_memory_qos_node_memory_low_bytes 8192");
        has(&text, "kubelet_evented_pleg_connection_latency_seconds_sum 0.02");
        has(&text, "kubelet_pleg_relist_duration_seconds_count 1");
        has(&text, r#"kubelet_pleg_relist_interval_seconds_bucket{le="1"} 1"#);
        has(&text, "kubelet_pleg_last_seen_seconds 1.7672256e+09");
        has(&text, r#"kubelet_pod_worker_duration_seconds_sum{operation_type="create"} 0.5"#);
        has(&text, "kubelet_orphan_pod_cleaned_volumes 2");
        has(&text, "kubelet_orphan_pod_cleaned_volumes_errors 1");
        has(
            &text,
            r#"kubelet_eviction_stats_age_seconds_sum{eviction_signal="memory.available"} 0.5"#,
        );
    }

    #[test]
    fn start_of_the_node_has_the_names_of_a_kubelet() {
        let startup = StartupDurations {
            before_agent: 1.0,
            before_registration: 2.0,
            registration: 3.0,
            after_registration: 4.0,
            total: 10.0,
        };
        let text = text(|metrics| add_startup(metrics, &startup));
        for line in [
            "pre_kubelet_duration_seconds 1",
            "pre_registration_duration_seconds 2",
            "registration_duration_seconds 3",
            "post_registration_duration_seconds 4",
            "duration_seconds 10",
        ] {
            has(&text, &format!("kubelet_node_startup_{line}"));
        }
    }

    #[test]
    fn volumes_and_cgroups_have_the_names_of_a_kubelet() {
        let mount = VolumeOperation {
            plugin: "kubernetes.io/secret".to_owned(),
            operation: "volume_mount",
            failed: true,
        };
        let of = |name: &str, is_mounted| (format!("kubernetes.io/{name}"), is_mounted);
        let measured = Measured {
            cgroups: [("create", once(0.02))].into(),
            volume_changes: [(mount, once(0.02))].into(),
            volumes: [
                (PodUid::new("a"), vec![of("secret", true), of("secret", false)]),
                (PodUid::new("b"), vec![of("secret", true)]),
            ]
            .into(),
            ..Measured::default()
        };
        let text = text(|metrics| add_measured(metrics, &measured));
        has(&text, r#"kubelet_cgroup_manager_duration_seconds_count{operation_type="create"} 1"#);
        has(
            &text,
            r#"storage_operation_duration_seconds_count{migrated="false",operation_name="volume_mount",status="fail-unknown",volume_plugin="kubernetes.io/secret"} 1"#,
        );
        let total = "volume_manager_total_volumes";
        for (state, count) in [("desired_state_of_world", 3), ("actual_state_of_world", 2)] {
            has(
                &text,
                &format!(
                    r#"{total}{{plugin_name="kubernetes.io/secret",state="{state}"}} {count}"#
                ),
            );
        }
    }

    #[test]
    fn calls_of_drivers_have_the_labels_of_a_kubelet() {
        let path = "/csi.v1.Node/NodeStageVolume";
        let call = DriverCall { driver: "d".to_owned(), path, code: "Internal" };
        let calls = [(call, once(0.5))].into();
        let text = text(|metrics| add_driver_calls(metrics, &calls));
        has(
            &text,
            "# HELP csi_operations_seconds [ALPHA] Container Storage Interface operation duration with gRPC error code status total",
        );
        has(
            &text,
            r#"csi_operations_seconds_sum{driver_name="d",grpc_status_code="Internal",method_name="/csi.v1.Node/NodeStageVolume",migrated="false"} 0.5"#,
        );
    }

    #[test]
    fn requests_have_code_and_host() {
        let counts = RequestCounts {
            responses: [(("200".to_owned(), "GET".to_owned()), 3)].into(),
            durations: [("GET".to_owned(), once(0.02))].into(),
        };
        let text = text(|metrics| add_requests(metrics, "h:6443", &counts));
        has(&text, r#"rest_client_requests_total{code="200",host="h:6443",method="GET"} 3"#);
        has(&text, r#"rest_client_request_duration_seconds_count{host="h:6443",verb="GET"} 1"#);
    }

    #[test]
    fn certificates_have_the_time_that_is_left() {
        let now: Timestamp = "2026-01-01T00:00:01.5Z".parse().unwrap();
        let of = |state| text(|metrics| add_certificates(metrics, state, now));
        let none = of(CertificateState::default());
        has(&none, "kubelet_certificate_manager_client_ttl_seconds +Inf");
        assert!(!none.contains("errors") && !none.contains("server"), "{none}");
        let state = CertificateState {
            client_expiry: Some("2026-01-01T00:00:00Z".parse().unwrap()),
            client_failures: Some(2),
            server: Some((Some("2026-01-01T01:00:01.5Z".parse().unwrap()), 0)),
        };
        let all = of(state);
        has(&all, "kubelet_certificate_manager_client_ttl_seconds -1");
        has(&all, "kubelet_certificate_manager_client_expiration_renew_errors 2");
        has(&all, "kubelet_certificate_manager_server_ttl_seconds 3600");
        has(&all, "kubelet_server_expiration_renew_errors 0");
        let replaced = |ages| text(|metrics| add_replaced_certificates(metrics, ages));
        assert_eq!(replaced(None), "");
        let name = "kubelet_certificate_manager_server_rotation_seconds";
        has(&replaced(Some(&once(3600.0))), &format!("{name}_sum 3600"));
    }

    #[test]
    fn durations_of_measurements_of_volumes_have_their_source() {
        let name = "kubelet_volume_metric_collection_duration_seconds";
        let of = |durations: &Histogram| text(|metrics| add_volume_durations(metrics, durations));
        has(&of(&once(0.5)), &format!(r#"{name}_sum{{metric_source="du"}} 0.5"#));
        assert_eq!(of(&Histogram::new(&[1.0])), "");
    }

    #[test]
    fn claim_of_several_pods_is_measured_once() {
        let claim = ClaimReference { name: "c".to_owned(), namespace: "ns".to_owned() };
        let fs = FsStats { capacity_bytes: Some(9), ..FsStats::default() };
        let health = Some(VolumeHealth { is_abnormal: true });
        let volume = VolumeStats { fs, name: "v".to_owned(), claim: Some(claim), health };
        let other = VolumeStats { name: "w".to_owned(), ..VolumeStats::default() };
        let text =
            text(|metrics| add_volumes(metrics, &[volume.clone(), other.clone(), volume.clone()]));
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"kubelet_volume_stats_capacity_bytes{namespace="ns",persistentvolumeclaim="c"} 9"#,
            r#"kubelet_volume_stats_health_status_abnormal{namespace="ns",persistentvolumeclaim="c"} 1"#,
        ];
        assert_eq!(lines, expected);
    }
}
