//! ◆ Counters of events of containers, images and pods, with the kubelet's names. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go; pkg/kubelet/kubelet.go recordAdmissionRejection.

use agent::managers::{ManagerMetric, ManagerValue};
use agent::reporting::measures::{Counted, Measured};
use agent::reporting::report::Reports;
use api::pod::PodUid;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::Pod;

use super::kubelet::{has_ended, is_static};
use super::resizes;
use super::text::{Description, Metrics, counter, gauge, histogram};

const STARTED: Description<'_> =
    counter("kubelet_started_containers_total", "[ALPHA] Cumulative number of containers started");
const NOT_STARTED: Description<'_> = counter(
    "kubelet_started_containers_errors_total",
    "[ALPHA] Cumulative number of errors when starting containers",
);
const TERMINATED: Description<'_> = counter(
    "kubelet_terminated_containers_total",
    "[ALPHA] Cumulative number of container terminations.",
);
const CONTAINERS: Description<'_> =
    histogram("kubelet_containers_per_pod_count", "[ALPHA] The number of containers per pod.");
const PREEMPTED: Description<'_> = counter(
    "kubelet_preemptions",
    "[ALPHA] Cumulative number of pod preemptions by preemption resource",
);
const EVICTED: Description<'_> =
    counter("kubelet_evictions", "[ALPHA] Cumulative number of pod evictions by eviction signal");
const REJECTED: Description<'_> = counter(
    "kubelet_admission_rejections_total",
    "[ALPHA] Cumulative number pod admission rejections by the Kubelet.",
);
const IMAGES_ENSURED: Description<'_> = counter(
    "kubelet_image_manager_ensure_image_requests_total",
    "[ALPHA] Number of ensure-image requests processed by the kubelet.",
);
const IMAGES_REMOVED: Description<'_> = counter(
    "kubelet_image_garbage_collected_total",
    "[ALPHA] Total number of images garbage collected by the kubelet, whether through disk usage or image age.",
);
const PULLS: Description<'_> = histogram(
    "kubelet_image_pull_duration_seconds",
    "[ALPHA] Duration in seconds to pull an image.",
);
const SANDBOXES: Description<'_> = histogram(
    "kubelet_run_podsandbox_duration_seconds",
    "[ALPHA] Duration in seconds of the run_podsandbox operations. Broken down by RuntimeClass.Handler.",
);
const SANDBOX_ERRORS: Description<'_> = counter(
    "kubelet_run_podsandbox_errors_total",
    "[ALPHA] Cumulative number of the run_podsandbox operation errors by RuntimeClass.Handler.",
);
const SAME_UID: Description<'_> = counter(
    "kubelet_restarted_pods_total",
    "[ALPHA] Number of pods that have been restarted because they were deleted and recreated with the same UID while the kubelet was watching them (common for static pods, extremely uncommon for API pods)",
);
const EPHEMERAL: Description<'_> = gauge(
    "kubelet_managed_ephemeral_containers",
    "[ALPHA] Current number of ephemeral containers in pods managed by this kubelet.",
);

/// Counters without labels, which are present from the start.
const PLAIN: [(Counted, Description<'_>); 10] = [
    (
        Counted::HookFellBackToHttp,
        counter(
            "kubelet_lifecycle_handler_http_fallbacks_total",
            "[ALPHA] The number of times lifecycle handlers successfully fell back to http from https.",
        ),
    ),
    (
        Counted::SleepCutShort,
        counter(
            "kubelet_sleep_action_terminated_early_total",
            "[ALPHA] The number of times lifecycle sleep handler got terminated before it finishes",
        ),
    ),
    (
        Counted::ImageVolume,
        counter(
            "kubelet_image_volume_requested_total",
            "[BETA] Number of requested image volumes.",
        ),
    ),
    (
        Counted::ImageVolumeMounted,
        counter(
            "kubelet_image_volume_mounted_succeed_total",
            "[BETA] Number of successful image volume mounts.",
        ),
    ),
    (
        Counted::ImageVolumeFailed,
        counter(
            "kubelet_image_volume_mounted_errors_total",
            "[BETA] Number of failed image volume mounts.",
        ),
    ),
    (
        Counted::UserNamespacePod,
        counter(
            "kubelet_started_user_namespaced_pods_total",
            "[ALPHA] Cumulative number of pods with user namespaces started. This metric will only be collected on Linux.",
        ),
    ),
    (
        Counted::UserNamespacePodFailed,
        counter(
            "kubelet_started_user_namespaced_pods_errors_total",
            "[ALPHA] Cumulative number of errors when starting pods with user namespaces. This metric will only be collected on Linux.",
        ),
    ),
    (
        Counted::EventStreamOpened,
        counter(
            "kubelet_evented_pleg_connection_success_count",
            "[ALPHA] The number of times a streaming client was obtained to receive CRI Events.",
        ),
    ),
    (
        Counted::EventStreamFailed,
        counter(
            "kubelet_evented_pleg_connection_error_count",
            "[ALPHA] The number of errors encountered during the establishment of streaming connection with the CRI runtime.",
        ),
    ),
    (
        Counted::OrphanFound,
        counter(
            "kubelet_orphaned_runtime_pods_total",
            "[ALPHA] Number of pods that have been detected in the container runtime without being already known to the pod worker. This typically indicates the kubelet was restarted while a pod was force deleted in the API or in the local configuration, which is unusual.",
        ),
    ),
];
const MIRRORS: Description<'_> = gauge(
    "kubelet_mirror_pods",
    "[ALPHA] The number of mirror pods the kubelet will try to create (one per admitted static pod)",
);
const WORKING: Description<'_> = gauge(
    "kubelet_working_pods",
    "[ALPHA] Number of pods the kubelet is actually running, broken down by lifecycle phase, whether the pod is desired, orphaned, or runtime only (also orphaned), and whether the pod is static. An orphaned pod has been removed from local configuration or force deleted in the API and consumes resources that are not otherwise visible.",
);

/// The reasons with their own label value. The author of a pod can invent others.
const REASONS: [&str; 21] = [
    "AppArmor",
    "Evicted",
    "InitContainerRestartPolicyForbidden",
    "InvalidNodeInfo",
    "NodeShutdown",
    "OutOfcpu",
    "OutOfephemeral-storage",
    "OutOfmemory",
    "OutOfpods",
    "PodFeatureUnsupported",
    "PodLevelResourcesNotSupported",
    "PodOSNotSupported",
    "PodOSSelectorNodeLabelDoesNotMatch",
    "SupplementalGroupsPolicyNotSupported",
    "SysctlForbidden",
    "TaintToleration",
    "TopologyAffinityError",
    "UnexpectedAdmissionError",
    "UnexpectedPredicateFailureType",
    "UnknownReason",
    "VolumeAttachmentLimitExceeded",
];

fn reason(reason: &str) -> &str {
    if REASONS.contains(&reason) {
        reason
    } else if reason.starts_with("OutOf") {
        "OutOfExtendedResources"
    } else {
        "Other"
    }
}

/// Adds the counters, and the durations of image pulls.
pub(crate) fn add(metrics: &mut Metrics, measured: &Measured) {
    // Several reasons may share a label value.
    let mut rejected: Map<&str, u64> = Map::new();
    for (happened, count) in &measured.counts {
        let value = *count as f64;
        match happened {
            Counted::Started(kind) => metrics.add(&STARTED, &[("container_type", kind)], value),
            Counted::NotStarted(kind, code) => {
                metrics.add(&NOT_STARTED, &[("container_type", kind), ("code", code)], value);
            }
            Counted::Terminated(kind, code, reason) => {
                let code = code.to_string();
                let labels = [("container_type", *kind), ("exit_code", &code), ("reason", reason)];
                metrics.add(&TERMINATED, &labels, value);
            }
            Counted::Preempted(resource) => {
                metrics.add(&PREEMPTED, &[("preemption_signal", resource)], value);
            }
            Counted::Evicted(signal) => {
                metrics.add(&EVICTED, &[("eviction_signal", signal)], value)
            }
            Counted::Rejected(why) => *rejected.entry(reason(why)).or_default() += count,
            Counted::ImageEnsured(image) => {
                let known = |known: Option<bool>| match known {
                    Some(true) => "true",
                    Some(false) => "false",
                    None => "unknown",
                };
                let labels = [
                    ("pull_policy", image.policy),
                    ("present_locally", known(image.present)),
                    ("pull_required", known(image.pull)),
                ];
                metrics.add(&IMAGES_ENSURED, &labels, value);
            }
            Counted::ImageRemoved(why) => metrics.add(&IMAGES_REMOVED, &[("reason", why)], value),
            Counted::SameUid(is_static) => {
                let label = if *is_static { "true" } else { "" };
                metrics.add(&SAME_UID, &[("static", label)], value);
            }
            Counted::ResizeRequested(of) => resizes::add_requests(metrics, of, value),
            Counted::ResizeInfeasible(detail) => {
                metrics.add(&resizes::INFEASIBLE, &[("reason_detail", detail)], value);
            }
            Counted::DeferredResizeGranted(trigger) => {
                metrics.add(&resizes::DEFERRED_GRANTED, &[("retry_trigger", trigger)], value);
            }
            Counted::HookFellBackToHttp
            | Counted::SleepCutShort
            | Counted::ImageVolume
            | Counted::ImageVolumeMounted
            | Counted::ImageVolumeFailed
            | Counted::UserNamespacePod
            | Counted::UserNamespacePodFailed
            | Counted::EventStreamOpened
            | Counted::EventStreamFailed
            | Counted::OrphanFound => {}
        }
    }
    for (happened, description) in &PLAIN {
        let count = measured.counts.get(happened).copied().unwrap_or_default();
        metrics.add(description, &[], count as f64);
    }
    for (reason, count) in rejected {
        metrics.add(&REJECTED, &[("reason", reason)], count as f64);
    }
    if measured.containers.count() > 0 {
        metrics.add_histogram(&CONTAINERS, &[], &measured.containers);
    }
    for (size, durations) in &measured.pulls {
        metrics.add_histogram(&PULLS, &[("image_size_in_bytes", size)], durations);
    }
    for (handler, starts) in &measured.sandbox_starts {
        let labels = [("runtime_handler", handler.as_str())];
        metrics.add_histogram(&SANDBOXES, &labels, &starts.durations);
        if starts.errors > 0 {
            metrics.add(&SANDBOX_ERRORS, &labels, starts.errors as f64);
        }
    }
}

/// Adds the metrics of the managers.
pub(crate) fn add_managers(metrics: &mut Metrics, measured: &[ManagerMetric]) {
    for ManagerMetric { name, labels, help, value } in measured {
        let labels: Vec<_> = labels.iter().map(|(name, value)| (*name, value.as_str())).collect();
        match value {
            ManagerValue::Count(count) => {
                metrics.add(&counter(name, help), &labels, *count as f64);
            }
            ManagerValue::Gauge(count) => metrics.add(&gauge(name, help), &labels, *count as f64),
            ManagerValue::Durations(durations) => {
                metrics.add_histogram(&histogram(name, help), &labels, durations);
            }
        }
    }
}

/// Adds the pods by lifecycle. `pods` are the pods of all sources.
pub(crate) fn add_workers(metrics: &mut Metrics, pods: &[Pod], reports: &Reports) {
    let uid = |pod: &Pod| PodUid::new(pod.metadata.uid.clone().unwrap_or_default());
    let mut mirrors = 0_u32;
    let mut working: Map<(&str, &str, &str), u64> = Map::new();
    for lifecycle in ["sync", "terminating", "terminated"] {
        for (config, label) in [("desired", ""), ("desired", "true"), ("orphan", "")] {
            working.insert((lifecycle, config, label), 0);
        }
    }
    let specs = pods.iter().filter_map(|pod| pod.spec.as_ref());
    let ephemeral = specs.flat_map(|spec| spec.ephemeral_containers.iter().flatten()).count();
    metrics.add(&EPHEMERAL, &[], ephemeral as f64);
    let known: Set<PodUid> = pods.iter().map(uid).collect();
    for pod in pods {
        let Some(report) = reports.get(&uid(pod)) else { continue };
        let ends = pod.metadata.deletion_timestamp.is_some() || has_ended(pod);
        let lifecycle = match (report.finished, ends) {
            (true, _) => "terminated",
            (false, true) => "terminating",
            (false, false) => "sync",
        };
        let label = if is_static(pod) { "true" } else { "" };
        *working.entry((lifecycle, "desired", label)).or_default() += 1;
        mirrors += u32::from(is_static(pod) && !has_ended(pod));
    }
    for (_, report) in reports.iter().filter(|(uid, _)| !known.contains(uid)) {
        let lifecycle = if report.finished { "terminated" } else { "terminating" };
        *working.entry((lifecycle, "orphan", "")).or_default() += 1;
    }
    metrics.add(&MIRRORS, &[], mirrors.into());
    for ((lifecycle, config, label), count) in working {
        let labels = [("lifecycle", lifecycle), ("config", config), ("static", label)];
        metrics.add(&WORKING, &labels, count as f64);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::Arc;

    use agent::PodReport;
    use agent::histogram::{DEFAULT_BOUNDS, Histogram};
    use agent::reporting::measures::{EnsuredImage, Runs};
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn measured(counts: &[(Counted, u64)]) -> Measured {
        Measured { counts: counts.iter().cloned().collect(), ..Measured::default() }
    }

    fn lines(add: impl FnOnce(&mut Metrics)) -> Vec<String> {
        let mut metrics = Metrics::default();
        add(&mut metrics);
        let text = metrics.text();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }

    fn rejections(lines: &[String]) -> Vec<&str> {
        let lines = lines.iter().map(String::as_str);
        lines.filter(|line| line.starts_with("kubelet_admission_rejections_total")).collect()
    }

    #[rstest]
    #[case("OutOfcpu", "OutOfcpu")]
    #[case("OutOfexample.com/dongle", "OutOfExtendedResources")]
    #[case("NodeAffinity", "Other")]
    fn rejection_reasons_are_bounded(#[case] of: &str, #[case] expected: &str) {
        let measured = measured(&[(Counted::Rejected(of.to_owned()), 2)]);
        let expected = format!(r#"kubelet_admission_rejections_total{{reason="{expected}"}} 2"#);
        let lines = lines(|metrics| add(metrics, &measured));
        assert_eq!(rejections(&lines), [expected]);
    }

    #[test]
    fn rejections_with_equal_reason_are_summed() {
        let rejected = |reason: &str, count| (Counted::Rejected(reason.to_owned()), count);
        let measured = measured(&[rejected("NodeAffinity", 2), rejected("NodePorts", 3)]);
        let expected = [r#"kubelet_admission_rejections_total{reason="Other"} 5"#];
        let lines = lines(|metrics| add(metrics, &measured));
        assert_eq!(rejections(&lines), expected);
    }

    #[test]
    fn pods_are_counted_by_worker_state() {
        let pod = |uid: &str, source: &str, phase: &str| -> Pod {
            serde_json::from_value(json!({
                "metadata": {"uid": uid, "annotations": {"kubernetes.io/config.source": source}},
                "status": {"phase": phase},
            }))
            .unwrap()
        };
        let report = |uid: &str, finished| PodReport {
            uid: PodUid::new(uid),
            namespace: String::new(),
            name: String::new(),
            status: Arc::default(),
            published: Arc::default(),
            finished,
            removed: false,
            containers: Vec::new(),
        };
        let reports = [("a", false), ("b", true), ("s", false), ("gone", false)];
        let reports: Reports = reports
            .map(|(uid, finished)| (PodUid::new(uid), report(uid, finished)))
            .into_iter()
            .collect();
        // The last pod has no worker yet.
        let pods = [
            pod("a", "api", "Running"),
            pod("b", "api", "Succeeded"),
            pod("s", "file", "Running"),
            pod("new", "file", ""),
        ];
        let lines = lines(|metrics| add_workers(metrics, &pods, &reports));
        for (lifecycle, config, label, count) in [
            ("sync", "desired", "", 1),
            ("sync", "desired", "true", 1),
            ("terminated", "desired", "", 1),
            ("terminating", "desired", "", 0),
            ("terminating", "orphan", "", 1),
        ] {
            let line = format!(
                r#"kubelet_working_pods{{config="{config}",lifecycle="{lifecycle}",static="{label}"}} {count}"#
            );
            assert!(lines.contains(&line), "no {line} in {lines:?}");
        }
        for line in ["kubelet_mirror_pods 1", "kubelet_managed_ephemeral_containers 0"] {
            assert!(lines.contains(&line.to_owned()), "no {line} in {lines:?}");
        }
    }

    #[test]
    fn managers_have_counts_gauges_and_durations() {
        let of = |name, labels, value| ManagerMetric { name, labels, help: "", value };
        let mut durations = Histogram::new(&[0.5]);
        durations.observe(0.25);
        let measured = [
            of("kubelet_cpu_manager_pinning_errors_total", vec![], ManagerValue::Count(0)),
            of(
                "kubelet_cpu_manager_allocation_per_numa",
                vec![("numa_node", "1".to_owned())],
                ManagerValue::Gauge(2),
            ),
            of(
                "kubelet_topology_manager_admission_duration_ms",
                vec![],
                ManagerValue::Durations(durations),
            ),
        ];
        let lines = lines(|metrics| add_managers(metrics, &measured));
        for line in [
            "kubelet_cpu_manager_pinning_errors_total 0",
            r#"kubelet_cpu_manager_allocation_per_numa{numa_node="1"} 2"#,
            "kubelet_topology_manager_admission_duration_ms_sum 0.25",
        ] {
            assert!(lines.iter().any(|have| have == line), "no {line} in {lines:?}");
        }
    }

    #[test]
    fn counts_have_the_help_of_a_kubelet() {
        let mut metrics = Metrics::default();
        add(&mut metrics, &Measured::default());
        let help =
            "# HELP kubelet_image_volume_requested_total [BETA] Number of requested image volumes.";
        assert!(metrics.text().lines().any(|line| line == help), "{}", metrics.text());
    }

    #[test]
    fn counts_have_the_labels_of_a_kubelet() {
        let mut measured = measured(&[
            (Counted::Started("init_container"), 3),
            (Counted::NotStarted("container", "ErrImagePull".to_owned()), 1),
            (Counted::Terminated("container", 137, "OOMKilled".to_owned()), 2),
            (Counted::Preempted("cpu".to_owned()), 1),
            (Counted::Evicted("memory.available"), 2),
            (Counted::ImageRemoved("space"), 4),
            (
                Counted::ImageEnsured(EnsuredImage {
                    policy: "always",
                    present: None,
                    pull: Some(true),
                }),
                6,
            ),
            (Counted::SameUid(true), 1),
            (Counted::ImageVolume, 2),
            (Counted::EventStreamOpened, 3),
        ]);
        let mut pulls = Histogram::new(DEFAULT_BOUNDS);
        pulls.observe(2.0);
        measured.pulls.insert("0-10MB", pulls);
        measured.containers.observe(3.0);
        let mut durations = Histogram::new(DEFAULT_BOUNDS);
        durations.observe(0.5);
        measured.sandbox_starts.insert("gvisor".to_owned(), Runs { durations, errors: 1 });
        let lines = lines(|metrics| add(metrics, &measured));
        for line in [
            r#"kubelet_terminated_containers_total{container_type="container",exit_code="137",reason="OOMKilled"} 2"#,
            r#"kubelet_preemptions{preemption_signal="cpu"} 1"#,
            "kubelet_containers_per_pod_count_sum 3",
            r#"kubelet_run_podsandbox_duration_seconds_sum{runtime_handler="gvisor"} 0.5"#,
            r#"kubelet_run_podsandbox_errors_total{runtime_handler="gvisor"} 1"#,
            r#"kubelet_started_containers_total{container_type="init_container"} 3"#,
            r#"kubelet_started_containers_errors_total{code="ErrImagePull",container_type="container"} 1"#,
            r#"kubelet_evictions{eviction_signal="memory.available"} 2"#,
            r#"kubelet_image_garbage_collected_total{reason="space"} 4"#,
            r#"kubelet_image_manager_ensure_image_requests_total{present_locally="unknown",pull_policy="always",pull_required="true"} 6"#,
            r#"kubelet_restarted_pods_total{static="true"} 1"#,
            "kubelet_image_volume_requested_total 2",
            "kubelet_evented_pleg_connection_success_count 3",
            "kubelet_evented_pleg_connection_error_count 0",
            "kubelet_sleep_action_terminated_early_total 0",
            r#"kubelet_image_pull_duration_seconds_sum{image_size_in_bytes="0-10MB"} 2"#,
        ] {
            assert!(lines.iter().any(|have| have == line), "no {line} in {lines:?}");
        }
    }
}
