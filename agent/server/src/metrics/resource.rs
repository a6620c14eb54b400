//! ◆ `/metrics/resource`: the metrics that metrics-server reads, from a summary. Pure.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/metrics/collectors/resource_metrics.go. `scrape_error`, deprecated since 1.29, is hidden there.

use jiff::Timestamp;

use super::text::{Description, Labels, Metrics, counter, gauge};
use crate::stats::summary::{CpuStats, MemoryStats, Summary, SwapStats, Time};

const NODE_CPU: Description<'_> = counter(
    "node_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the node in core-seconds",
);
const NODE_MEMORY: Description<'_> =
    gauge("node_memory_working_set_bytes", "[STABLE] Current working set of the node in bytes");
const NODE_SWAP: Description<'_> = gauge(
    "node_swap_usage_bytes",
    "[ALPHA] Current swap usage of the node in bytes. Reported only on non-windows systems",
);
const CONTAINER_CPU: Description<'_> = counter(
    "container_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the container in core-seconds",
);
const CONTAINER_MEMORY: Description<'_> = gauge(
    "container_memory_working_set_bytes",
    "[STABLE] Current working set of the container in bytes",
);
const CONTAINER_SWAP: Description<'_> = gauge(
    "container_swap_usage_bytes",
    "[ALPHA] Current amount of the container swap usage in bytes. Reported only on non-windows systems",
);
const CONTAINER_SWAP_LIMIT: Description<'_> = gauge(
    "container_swap_limit_bytes",
    "[ALPHA] Current amount of the container swap limit in bytes. Reported only on non-windows systems",
);
const CONTAINER_START: Description<'_> = gauge(
    "container_start_time_seconds",
    "[STABLE] Start time of the container since unix epoch in seconds",
);
const POD_CPU: Description<'_> = counter(
    "pod_cpu_usage_seconds_total",
    "[STABLE] Cumulative cpu time consumed by the pod in core-seconds",
);
const POD_MEMORY: Description<'_> =
    gauge("pod_memory_working_set_bytes", "[STABLE] Current working set of the pod in bytes");
const POD_SWAP: Description<'_> = gauge(
    "pod_swap_usage_bytes",
    "[ALPHA] Current amount of the pod swap usage in bytes. Reported only on non-windows systems",
);
const ERROR: Description<'_> = gauge(
    "resource_scrape_error",
    "[STABLE] 1 if there was an error while getting container metrics, 0 otherwise",
);

/// The metrics of a summary; `None` if it could not be collected.
pub(crate) fn metrics(summary: Option<&Summary>) -> Metrics {
    let mut metrics = Metrics::default();
    metrics.add(&ERROR, &[], if summary.is_some() { 0.0 } else { 1.0 });
    let Some(Summary { node, pods }) = summary else {
        return metrics;
    };
    add_cpu(&mut metrics, &NODE_CPU, &[], node.cpu.as_ref());
    add_memory(&mut metrics, &NODE_MEMORY, &[], node.memory.as_ref());
    add_swap(&mut metrics, &NODE_SWAP, &[], node.swap.as_ref());
    for pod in pods {
        let reference = &pod.pod_ref;
        let of_pod =
            [("namespace", reference.namespace.as_str()), ("pod", reference.name.as_str())];
        for container in &pod.containers {
            let [namespace, pod] = of_pod;
            let labels = [("container", container.name.as_str()), namespace, pod];
            if let Some(seconds) = container.start_time.0.and_then(since_1970) {
                metrics.add(&CONTAINER_START, &labels, seconds);
            }
            add_cpu(&mut metrics, &CONTAINER_CPU, &labels, container.cpu.as_ref());
            add_memory(&mut metrics, &CONTAINER_MEMORY, &labels, container.memory.as_ref());
            add_swap(&mut metrics, &CONTAINER_SWAP, &labels, container.swap.as_ref());
            let swap = container.swap.as_ref();
            if let Some((swap, free)) =
                swap.and_then(|swap| Some((swap, swap.swap_available_bytes?)))
            {
                let limit = free.saturating_add(swap.swap_usage_bytes.unwrap_or_default());
                add(&mut metrics, &CONTAINER_SWAP_LIMIT, &labels, Some(limit), swap.time);
            }
        }
        add_cpu(&mut metrics, &POD_CPU, &of_pod, pod.cpu.as_ref());
        add_memory(&mut metrics, &POD_MEMORY, &of_pod, pod.memory.as_ref());
        add_swap(&mut metrics, &POD_SWAP, &of_pod, pod.swap.as_ref());
    }
    metrics
}

fn add_cpu(
    metrics: &mut Metrics,
    what: &Description<'_>,
    labels: &Labels<'_>,
    cpu: Option<&CpuStats>,
) {
    if let Some((at, total)) = cpu.and_then(|cpu| Some((cpu.time, cpu.usage_core_nano_seconds?))) {
        metrics.add_at(what, labels, total as f64 / 1e9, at.0);
    }
}

fn add_memory(
    metrics: &mut Metrics,
    what: &Description<'_>,
    labels: &Labels<'_>,
    memory: Option<&MemoryStats>,
) {
    if let Some(memory) = memory {
        add(metrics, what, labels, memory.working_set_bytes, memory.time);
    }
}

fn add_swap(
    metrics: &mut Metrics,
    what: &Description<'_>,
    labels: &Labels<'_>,
    swap: Option<&SwapStats>,
) {
    if let Some(swap) = swap {
        add(metrics, what, labels, swap.swap_usage_bytes, swap.time);
    }
}

fn add(
    metrics: &mut Metrics,
    what: &Description<'_>,
    labels: &Labels<'_>,
    bytes: Option<u64>,
    at: Time,
) {
    if let Some(bytes) = bytes {
        metrics.add_at(what, labels, bytes as f64, at.0);
    }
}

/// Seconds since 1970; `None` for an earlier time.
pub(super) fn since_1970(at: Timestamp) -> Option<f64> {
    (at.as_second() > 0).then(|| at.as_nanosecond() as f64 / 1e9)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::stats::summary::{ContainerStats, NodeStats, PodReference, PodStats};

    #[test]
    fn metrics_are_those_of_a_kubelet() {
        let at: Timestamp = "2026-01-02T03:04:05.678Z".parse().unwrap();
        let time = Time::from(at);
        let cpu = Some(CpuStats {
            time,
            usage_core_nano_seconds: Some(1_500_000_000),
            ..CpuStats::default()
        });
        let memory =
            Some(MemoryStats { time, working_set_bytes: Some(4096), ..MemoryStats::default() });
        let swap =
            Some(SwapStats { time, swap_usage_bytes: Some(1), swap_available_bytes: Some(2) });
        let container = ContainerStats {
            name: "app".to_owned(),
            start_time: time,
            cpu: cpu.clone(),
            memory: memory.clone(),
            swap: swap.clone(),
            ..ContainerStats::default()
        };
        // No measurement of this container exists.
        let other = ContainerStats { name: "other".to_owned(), ..ContainerStats::default() };
        let pod_ref =
            PodReference { name: "p".to_owned(), namespace: "ns".to_owned(), uid: "u".to_owned() };
        let pod = PodStats {
            pod_ref,
            containers: vec![container, other],
            cpu: cpu.clone(),
            memory: memory.clone(),
            ..PodStats::default()
        };
        let node = NodeStats { cpu, memory, swap, ..NodeStats::default() };
        let text = metrics(Some(&Summary { node, pods: vec![pod] })).text();
        let values: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        let expected = [
            r#"container_cpu_usage_seconds_total{container="app",namespace="ns",pod="p"} 1.5 1767323045678"#,
            r#"container_memory_working_set_bytes{container="app",namespace="ns",pod="p"} 4096 1767323045678"#,
            r#"container_start_time_seconds{container="app",namespace="ns",pod="p"} 1.7673230456780002e+09"#,
            r#"container_swap_limit_bytes{container="app",namespace="ns",pod="p"} 3 1767323045678"#,
            r#"container_swap_usage_bytes{container="app",namespace="ns",pod="p"} 1 1767323045678"#,
            "node_cpu_usage_seconds_total 1.5 1767323045678",
            "node_memory_working_set_bytes 4096 1767323045678",
            "node_swap_usage_bytes 1 1767323045678",
            r#"pod_cpu_usage_seconds_total{namespace="ns",pod="p"} 1.5 1767323045678"#,
            r#"pod_memory_working_set_bytes{namespace="ns",pod="p"} 4096 1767323045678"#,
            "resource_scrape_error 0",
        ];
        assert_eq!(values, expected);
        let help = "# HELP node_memory_working_set_bytes [STABLE] Current working set of the node in bytes\n\
                    # TYPE node_memory_working_set_bytes gauge\n";
        assert!(text.contains(help), "{text}");
    }

    #[test]
    fn failed_scrape_is_a_metric() {
        let text = metrics(None).text();
        assert!(text.ends_with("\nresource_scrape_error 1\n"), "{text}");
        assert_eq!(text.lines().count(), 3);
    }
}
