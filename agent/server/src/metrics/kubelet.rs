//! ◆ `/metrics` and `/metrics/probes`: the agent's own metrics, with the kubelet's names. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/metrics.go, pkg/kubelet/prober/prober_manager.go,
//! pkg/kubelet/metrics/collectors/log_metrics.go, k8s.io/component-base/metrics/version.go, metrics/prometheus/feature; process_* of
//! Prometheus' client_golang.

use agent::checks::probe::counts::{ProbeCount, ProbeName};
use agent::cri::{ListedState, Lists};
use agent::local_node::kubelet_config::GateState;
use agent::local_node::shutdown::ShutdownTimes;
use agent::reporting::measures::Runs;
use compact::Map;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::process::Process;
use super::starts::Starts;
use super::text::{Description, Metrics, counter, gauge, histogram};
use crate::stats::LogUsage;

const NODE_NAME: Description<'_> =
    gauge("kubelet_node_name", "[ALPHA] The node's name. The count is always 1.");
const RUNNING_PODS: Description<'_> =
    gauge("kubelet_running_pods", "[ALPHA] Number of pods that have a running pod sandbox");
const RUNNING_CONTAINERS: Description<'_> =
    gauge("kubelet_running_containers", "[ALPHA] Number of containers currently running");
const DESIRED_PODS: Description<'_> = gauge(
    "kubelet_desired_pods",
    "[ALPHA] The number of pods the kubelet is being instructed to run. static is true if the pod is not from the apiserver.",
);
const ACTIVE_PODS: Description<'_> = gauge(
    "kubelet_active_pods",
    "[ALPHA] The number of pods the kubelet considers active and which are being considered when admitting new pods. static is true if the pod is not from the apiserver.",
);
const POD_START: Description<'_> = histogram(
    "kubelet_pod_start_duration_seconds",
    "[ALPHA] Duration in seconds from kubelet seeing a pod for the first time to the pod starting to run",
);
const POD_START_TOTAL: Description<'_> = histogram(
    "kubelet_pod_start_total_duration_seconds",
    "[ALPHA] Duration in seconds to start a pod since creation, including time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const POD_START_SLI: Description<'_> = histogram(
    "kubelet_pod_start_sli_duration_seconds",
    "[ALPHA] Duration in seconds to start a pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const FIRST_POD_START: Description<'_> = gauge(
    "kubelet_first_network_pod_start_sli_duration_seconds",
    "[INTERNAL] Duration in seconds to start the first network pod, excluding time to pull images and run init containers, measured from pod creation timestamp to when all its containers are reported as started and observed via watch",
);
const CGROUP_VERSION: Description<'_> =
    gauge("kubelet_cgroup_version", "[ALPHA] cgroup version on the hosts.");
const SHUTDOWN_START: Description<'_> = gauge(
    "kubelet_graceful_shutdown_start_time_seconds",
    "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
);
const SHUTDOWN_END: Description<'_> = gauge(
    "kubelet_graceful_shutdown_end_time_seconds",
    "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
);
const PROVIDER: Description<'_> = gauge(
    "kubelet_metrics_provider",
    "[ALPHA] Metrics provider used by kubelet to collect container stats. Values can be 'cadvisor' and 'cri'",
);
const LOGS: Description<'_> = gauge(
    "kubelet_container_log_filesystem_used_bytes",
    "[ALPHA] Bytes used by the container's logs on the filesystem.",
);
const PROVIDER_CONFIG: Description<'_> = gauge(
    "kubelet_credential_provider_config_info",
    "[ALPHA] Information about the last applied credential provider configuration with hash as label",
);
const PROVIDER_ERRORS: Description<'_> = counter(
    "kubelet_credential_provider_plugin_errors_total",
    "[ALPHA] Number of errors from credential provider plugin",
);
const PROVIDER_DURATION: Description<'_> = histogram(
    "kubelet_credential_provider_plugin_duration",
    "[ALPHA] Duration of execution in seconds for credential provider plugin",
);
const BUILD: Description<'_> = gauge(
    "kubernetes_build_info",
    "[BETA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, and compiler from which Kubernetes was built, and platform on which it is running.",
);
const FEATURE: Description<'_> = gauge(
    "kubernetes_feature_enabled",
    "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
);
const CPU: Description<'_> =
    counter("process_cpu_seconds_total", "Total user and system CPU time spent in seconds.");
const OPEN_FDS: Description<'_> = gauge("process_open_fds", "Number of open file descriptors.");
const MAX_FDS: Description<'_> =
    gauge("process_max_fds", "Maximum number of open file descriptors.");
const RESIDENT: Description<'_> =
    gauge("process_resident_memory_bytes", "Resident memory size in bytes.");
const VIRTUAL: Description<'_> =
    gauge("process_virtual_memory_bytes", "Virtual memory size in bytes.");
const START: Description<'_> =
    gauge("process_start_time_seconds", "Start time of the process since unix epoch in seconds.");
const PROBES: Description<'_> = counter(
    "prober_probe_total",
    "[BETA] Cumulative number of a liveness, readiness or startup probe for a container by result.",
);
const PROBE_DURATION: Description<'_> =
    histogram("prober_probe_duration_seconds", "[ALPHA] Duration in seconds for a probe response.");

/// The inputs of `/metrics`.
#[derive(Debug)]
pub(crate) struct KubeletInputs<'a> {
    pub(crate) node: &'a str,
    /// The Kubernetes version, as in the node's status: `v1.36.2+crib0.1.0`.
    pub(crate) version: &'a str,
    /// The feature gates that the agent uses.
    pub(crate) gates: &'a [GateState],
    /// All sandboxes and containers; `None` if the runtime did not list them.
    pub(crate) lists: Option<&'a Lists>,
    /// The pods of all sources.
    pub(crate) pods: &'a [Pod],
    pub(crate) pod_starts: &'a Starts,
    pub(crate) cgroup_version: Option<u8>,
    /// The times of the last graceful node shutdown.
    pub(crate) shutdown: ShutdownTimes,
    pub(crate) process: &'a Process,
}

/// The metrics of the agent.
pub(crate) fn metrics(inputs: &KubeletInputs<'_>) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.add(&NODE_NAME, &[("node", inputs.node)], 1.0);
    if let Some((sandboxes, containers)) = inputs.lists {
        let ready = sandboxes.iter().filter(|sandbox| sandbox.ready).count();
        metrics.add(&RUNNING_PODS, &[], ready as f64);
        let mut states: Map<&str, f64> = Map::new();
        for container in containers {
            *states.entry(state(container.state)).or_default() += 1.0;
        }
        for (state, count) in states {
            metrics.add(&RUNNING_CONTAINERS, &[("container_state", state)], count);
        }
    }
    let seconds = |at: Option<Timestamp>| at.map_or(0, Timestamp::as_second).max(0) as f64;
    metrics.add(&SHUTDOWN_START, &[], seconds(inputs.shutdown.start_time));
    metrics.add(&SHUTDOWN_END, &[], seconds(inputs.shutdown.end_time));
    let count = |of: &dyn Fn(&Pod) -> bool| inputs.pods.iter().filter(|pod| of(pod)).count() as f64;
    for (label, wanted) in [("", false), ("true", true)] {
        let desired = count(&|pod| is_static(pod) == wanted);
        let active = count(&|pod| is_static(pod) == wanted && !has_ended(pod));
        metrics.add(&DESIRED_PODS, &[("static", label)], desired);
        metrics.add(&ACTIVE_PODS, &[("static", label)], active);
    }
    metrics.add_histogram(&POD_START, &[], &inputs.pod_starts.since_seen);
    metrics.add_histogram(&POD_START_TOTAL, &[], &inputs.pod_starts.since_creation);
    metrics.add_histogram(&POD_START_SLI, &[], &inputs.pod_starts.without_pulls);
    metrics.add(&FIRST_POD_START, &[], inputs.pod_starts.first_with_network);
    metrics.add(&PROVIDER, &[("provider", "cri")], 1.0);
    if let Some(version) = inputs.cgroup_version {
        metrics.add(&CGROUP_VERSION, &[], version.into());
    }
    for gate in inputs.gates {
        let labels = [("name", gate.name), ("stage", gate.stage)];
        metrics.add(&FEATURE, &labels, u8::from(gate.enabled).into());
    }
    add_build(&mut metrics, inputs.version);
    add_process(&mut metrics, inputs.process);
    metrics
}

fn state(state: ListedState) -> &'static str {
    match state {
        ListedState::Created => "created",
        ListedState::Running => "running",
        ListedState::Exited => "exited",
        ListedState::Unknown => "unknown",
    }
}

/// Whether a pod comes from another source than the API server.
pub(super) fn is_static(pod: &Pod) -> bool {
    let annotations = pod.metadata.annotations.as_ref();
    let source = annotations.and_then(|all| all.get("kubernetes.io/config.source"));
    source.is_none_or(|source| source != "api")
}

pub(super) fn has_ended(pod: &Pod) -> bool {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    matches!(phase, Some("Succeeded" | "Failed"))
}

/// Labels about Go and the Kubernetes build are empty.
fn add_build(metrics: &mut Metrics, version: &str) {
    let mut numbers = version.trim_start_matches('v').split('.');
    let (major, minor) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    let platform = format!("{}/{}", std::env::consts::OS, go_architecture());
    let labels = [
        ("major", major),
        ("minor", minor),
        ("git_version", version),
        ("git_commit", ""),
        ("git_tree_state", ""),
        ("build_date", ""),
        ("go_version", ""),
        ("compiler", "rustc"),
        ("platform", &platform),
    ];
    metrics.add(&BUILD, &labels, 1.0);
}

fn go_architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn add_process(metrics: &mut Metrics, process: &Process) {
    for (what, value) in [
        (&CPU, process.cpu_seconds),
        (&OPEN_FDS, process.open_fds),
        (&MAX_FDS, process.max_fds),
        (&RESIDENT, process.resident_bytes),
        (&VIRTUAL, process.virtual_bytes),
        (&START, process.started_at),
    ] {
        if let Some(value) = value {
            metrics.add(what, &[], value);
        }
    }
}

/// Adds the disk usage of containers' logs.
pub(crate) fn add_logs(metrics: &mut Metrics, logs: &[LogUsage]) {
    for LogUsage { pod, container, bytes } in logs {
        let labels = [
            ("uid", pod.uid.as_str()),
            ("namespace", &pod.namespace),
            ("pod", &pod.name),
            ("container", container),
        ];
        metrics.add(&LOGS, &labels, *bytes as f64);
    }
}

/// Adds the configuration and the runs of image credential providers.
pub(crate) fn add_providers(metrics: &mut Metrics, config: Option<&str>, all: &Map<String, Runs>) {
    if let Some(hash) = config {
        metrics.add(&PROVIDER_CONFIG, &[("hash", hash)], 1.0);
    }
    for (provider, runs) in all {
        let labels = [("plugin_name", provider.as_str())];
        metrics.add_histogram(&PROVIDER_DURATION, &labels, &runs.durations);
        if runs.errors > 0 {
            metrics.add(&PROVIDER_ERRORS, &labels, runs.errors as f64);
        }
    }
}

/// Adds the start time of the process.
pub(crate) fn add_process_start(metrics: &mut Metrics, process: &Process) {
    if let Some(started_at) = process.started_at {
        metrics.add(&START, &[], started_at);
    }
}

/// The metrics of probes.
pub(crate) fn probes(counts: &[(ProbeName, ProbeCount)], process: &Process) -> Metrics {
    let mut metrics = Metrics::default();
    add_process_start(&mut metrics, process);
    for (name, count) in counts {
        let of_probe = [
            ("probe_type", name.kind.as_str()),
            ("container", &name.container),
            ("pod", &name.pod),
            ("namespace", &name.namespace),
        ];
        for (result, number) in [("successful", count.successful), ("failed", count.failed)] {
            // As in the kubelet, a result that has not occurred is absent.
            if number > 0 {
                let more = [("result", result), ("pod_uid", name.uid.as_str())];
                let labels: Vec<(&str, &str)> = of_probe.iter().copied().chain(more).collect();
                metrics.add(&PROBES, &labels, number as f64);
            }
        }
        if count.durations.count() > 0 {
            metrics.add_histogram(&PROBE_DURATION, &of_probe, &count.durations);
        }
    }
    metrics
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use agent::cri::{ListedContainer, ListedSandbox};
    use agent::histogram::{DEFAULT_BOUNDS, Histogram};
    use serde_json::json;

    use super::*;

    fn pod(source: &str, phase: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"annotations": {"kubernetes.io/config.source": source}},
            "status": {"phase": phase},
        }))
        .unwrap()
    }

    fn listed() -> Lists {
        let pod = agent::cri::PodRef {
            uid: api::pod::PodUid::new("u"),
            namespace: "ns".to_owned(),
            name: "p".to_owned(),
            agent: None,
        };
        let at = jiff::Timestamp::UNIX_EPOCH;
        let sandbox = |ready| ListedSandbox {
            id: agent::observed::SandboxId::new("s"),
            pod: pod.clone(),
            ready,
            created_at: at,
        };
        let container = |state| ListedContainer {
            id: agent::observed::ContainerId::new("c"),
            sandbox_id: agent::observed::SandboxId::new("s"),
            pod: pod.clone(),
            name: "app".to_owned(),
            state,
            created_at: at,
        };
        let states = [ListedState::Running, ListedState::Exited, ListedState::Running];
        (vec![sandbox(true), sandbox(false)], states.map(container).to_vec())
    }

    #[test]
    fn agent_counts_pods_and_containers() {
        let (lists, process) = (listed(), Process::default());
        let mut pod_starts = Starts::default();
        pod_starts.since_seen.observe(0.1);
        pod_starts.without_pulls.observe(3.0);
        let inputs = KubeletInputs {
            node: "n1",
            version: "v1.36.2+crib0.1.0",
            gates: &[
                GateState { name: "MemoryQoS", stage: "ALPHA", enabled: false },
                GateState { name: "CustomCPUCFSQuotaPeriod", stage: "", enabled: true },
            ],
            lists: Some(&lists),
            pods: &[pod("api", "Running"), pod("api", "Failed"), pod("file", "Running")],
            pod_starts: &pod_starts,
            cgroup_version: Some(2),
            shutdown: ShutdownTimes { start_time: Timestamp::from_second(70).ok(), end_time: None },
            process: &process,
        };
        let text = metrics(&inputs).text();
        for line in [
            r#"kubelet_node_name{node="n1"} 1"#,
            r#"kubernetes_feature_enabled{name="MemoryQoS",stage="ALPHA"} 0"#,
            r#"kubernetes_feature_enabled{name="CustomCPUCFSQuotaPeriod",stage=""} 1"#,
            "kubelet_running_pods 1",
            "kubelet_graceful_shutdown_start_time_seconds 70",
            "kubelet_graceful_shutdown_end_time_seconds 0",
            r#"kubelet_running_containers{container_state="exited"} 1"#,
            r#"kubelet_running_containers{container_state="running"} 2"#,
            r#"kubelet_desired_pods{static=""} 2"#,
            r#"kubelet_active_pods{static=""} 1"#,
            r#"kubelet_active_pods{static="true"} 1"#,
            "kubelet_cgroup_version 2",
            r#"kubelet_pod_start_duration_seconds_bucket{le="0.5"} 1"#,
            "kubelet_pod_start_duration_seconds_count 1",
            "kubelet_pod_start_sli_duration_seconds_sum 3",
            "kubelet_first_network_pod_start_sli_duration_seconds 0",
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
        let build = r#"git_version="v1.36.2+crib0.1.0",go_version="",major="1",minor="36""#;
        assert!(text.contains(build), "{text}");
        assert!(!text.contains("process_"), "{text}");
        let unlisted = metrics(&KubeletInputs { lists: None, ..inputs }).text();
        assert!(!unlisted.contains("kubelet_running"), "{unlisted}");
    }

    #[test]
    fn logs_have_the_labels_of_a_kubelet() {
        let pod = crate::stats::summary::PodReference {
            name: "p".to_owned(),
            namespace: "ns".to_owned(),
            uid: "u".to_owned(),
        };
        let mut metrics = Metrics::default();
        add_logs(&mut metrics, &[LogUsage { pod, container: "app".to_owned(), bytes: 4096 }]);
        let line = r#"kubelet_container_log_filesystem_used_bytes{container="app",namespace="ns",pod="p",uid="u"} 4096"#;
        assert!(metrics.text().lines().any(|have| have == line), "{}", metrics.text());
    }

    #[test]
    fn providers_have_the_labels_of_a_kubelet() {
        let mut durations = Histogram::new(DEFAULT_BOUNDS);
        durations.observe(2.0);
        let runs = |errors| Runs { durations: durations.clone(), errors };
        let all = [("a".to_owned(), runs(0)), ("b".to_owned(), runs(1))].into();
        let mut metrics = Metrics::default();
        add_providers(&mut metrics, Some("sha256:01"), &all);
        let text = metrics.text();
        for line in [
            r#"kubelet_credential_provider_config_info{hash="sha256:01"} 1"#,
            r#"kubelet_credential_provider_plugin_duration_sum{plugin_name="a"} 2"#,
            r#"kubelet_credential_provider_plugin_errors_total{plugin_name="b"} 1"#,
        ] {
            assert!(text.lines().any(|have| have == line), "no {line} in {text}");
        }
        assert!(!text.contains(r#"errors_total{plugin_name="a"}"#), "{text}");
    }

    #[test]
    fn probes_are_counted_by_result() {
        let name = ProbeName {
            kind: "Liveness".to_owned(),
            container: "app".to_owned(),
            pod: "p".to_owned(),
            namespace: "ns".to_owned(),
            uid: "u".to_owned(),
        };
        let durations = Histogram::new(DEFAULT_BOUNDS);
        let count = ProbeCount { successful: 0, failed: 3, durations };
        let process = Process { started_at: Some(5.5), ..Process::default() };
        let text = probes(&[(name, count)], &process).text();
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"prober_probe_total{container="app",namespace="ns",pod="p",pod_uid="u",probe_type="Liveness",result="failed"} 3"#,
            "process_start_time_seconds 5.5",
        ];
        assert_eq!(values, expected);
    }
}
