//! Rules for metrics: their types, timestamps, labels and units.

use compact::Map;

use crate::prelude::*;
use crate::rules::limits::with;
use crate::rules::sandbox::echo::of_now;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-STA-017": "Each metric has a value, a current timestamp, and the type that the metric's name implies; counters never decrease.",
        API, tags ["metrics", "time"], calls [ListPodSandboxMetrics],
        metrics_are_measured given [pod], faults [
            "ListPodSandboxMetrics drop pod_metrics.container_metrics.metrics.value",
            "ListPodSandboxMetrics drop pod_metrics.metrics.value",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.timestamp 1800000000",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.metric_type \"GAUGE\"",
            "ListPodSandboxMetrics set pod_metrics.metrics.metric_type \"COUNTER\"",
            "ListPodSandboxMetrics after 1 set pod_metrics.container_metrics.metrics.value.value \"0\"",
        ];
    Should "CRI-STA-018": "The labels of container metrics name the pod, its namespace and the container; the kubelet serves these metrics in place of cAdvisor's.",
        KUBELET, tags ["metrics", "kubelet"], calls [ListMetricDescriptors, ListPodSandboxMetrics],
        labels_name_container given [pod], faults [
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.label_values [\"none\", \"none\", \"none\", \"none\", \"none\", \"none\"]",
            "ListMetricDescriptors drop descriptors",
        ];
    Should "CRI-STA-029": "The values of container metrics have the units that the metrics' names state. There are metrics of the container's processes, threads and CPU shares.",
        KUBELET, tags ["metrics", "kubelet", "resources"], calls [ListPodSandboxMetrics, ContainerStatus],
        metrics_have_their_units given [limits, pod], faults [
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.value.value \"0\"",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.value.value \"1\"",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.value.value \"1795000000000\"",
        ];
};

/// The metrics of a pod.
pub(crate) async fn metrics(x: &Context, pod: &str) -> Verdict<v1::PodSandboxMetrics> {
    let mut all = x.client.pod_metrics().await?.into_iter();
    present(all.find(|one| one.pod_sandbox_id == pod), "ListPodSandboxMetrics", "the pod", "others")
}

/// The metrics of a pod, and those of its only container.
fn apart(all: v1::PodSandboxMetrics) -> Verdict<[Vec<v1::Metric>; 2]> {
    let containers = <[v1::ContainerMetrics; 1]>::try_from(all.container_metrics);
    match containers {
        Ok([container]) => Ok([all.metrics, container.metrics]),
        Err(others) => failed("container_metrics", "one container", format!("{others:?}")),
    }
}

/// Whether the name is that of a counter. The number of inodes of a filesystem is a gauge.
fn is_counter(name: &str) -> bool {
    name.ends_with("_total") && name != "container_fs_inodes_total"
}

/// Fails unless a metric has a value, a current timestamp, and the type that its Prometheus name implies.
fn is_measured(metric: &v1::Metric) -> Verdict {
    ensure(metric.value.is_some(), "the value of a metric", "set", metric)?;
    // 0 means the time of the answer.
    if metric.timestamp != 0 {
        of_now(&format!("the time of {}", metric.name), metric.timestamp)?;
    }
    let kind = match metric.name.as_str() {
        name if is_counter(name) => v1::MetricType::Counter,
        "container_fs_inodes_total"
        | "container_memory_working_set_bytes"
        | "container_memory_usage_bytes"
        | "container_memory_rss"
        | "container_processes" => v1::MetricType::Gauge,
        _ => return Ok(()),
    };
    let what = format!("the type of {}", metric.name);
    equal(&what, &metric.metric_type(), &kind)
}

type Counters = Map<(String, Vec<String>), u64>;

fn counters(metrics: &[v1::Metric]) -> Counters {
    let counters = metrics.iter().filter(|metric| is_counter(&metric.name));
    counters
        .map(|metric| {
            let name = (metric.name.clone(), metric.label_values.clone());
            (name, metric.value.map_or(0, |value| value.value))
        })
        .collect()
}

async fn metrics_are_measured(x: &Context, pod: Pod) -> Verdict {
    x.running(&pod).await?;
    let before = apart(metrics(x, &pod.id).await?)?;
    let after = apart(metrics(x, &pod.id).await?)?;
    for (before, after) in before.iter().zip(&after) {
        for metric in before {
            is_measured(metric)?;
        }
        let later = counters(after);
        for (name, value) in counters(before) {
            let grown = later.get(&name).is_none_or(|later| *later >= value);
            let expected = format!("at least {value}");
            ensure(grown, &format!("a later {name:?}"), &expected, later.get(&name))?;
        }
    }
    let [_, container] = &after;
    let memory =
        container.iter().find(|metric| metric.name == "container_memory_working_set_bytes");
    let memory = memory.and_then(|metric| metric.value);
    let used = x.needs_limits().is_err() || memory.is_none_or(|memory| memory.value > 0);
    ensure(used, "container_memory_working_set_bytes", "not 0", memory)
}

async fn labels_name_container(x: &Context, pod: Pod) -> Verdict {
    x.running(&pod).await?;
    let descriptors = x.client.metric_descriptors().await?;
    let [_, container] = apart(metrics(x, &pod.id).await?)?;
    let metadata = pod.config.metadata.clone().unwrap_or_default();
    let expected =
        [("pod", metadata.name), ("namespace", metadata.namespace), ("container", "c".to_owned())];
    for metric in &container {
        let mut all = descriptors.iter();
        let Some(descriptor) = all.find(|one| one.name == metric.name) else {
            return failed("the descriptor of a metric", "to exist", metric.name.as_str());
        };
        let labels: Map<_, _> = descriptor.label_keys.iter().zip(&metric.label_values).collect();
        for (key, value) in &expected {
            let what = format!("the label {key} of {}", metric.name);
            match labels.get(&(*key).to_owned()) {
                Some(seen) => equal(&what, seen, &value)?,
                None => {
                    let without = format!("{} has no label {key}", metric.name);
                    return Err(Outcome::Diverges(without));
                }
            }
        }
    }
    Ok(())
}

async fn metrics_have_their_units(x: &Context, pod: Pod) -> Verdict {
    // Three processes with one thread each.
    let text = "sleep 1000 & sleep 1000 & echo ready; wait";
    let resources = v1::LinuxContainerResources { cpu_shares: 512, ..Default::default() };
    let id = x.start_ready(&pod, with(x.script("c", text), resources)).await?;
    let started = x.client.container(&id).await?.started_at / 1_000_000_000;
    let [_, container] = apart(metrics(x, &pod.id).await?)?;
    let started = u64::try_from(started).unwrap_or_default();
    let mut known = 0;
    for (name, least, most) in [
        ("container_processes", 3, 3),
        ("container_threads", 3, 3),
        ("container_spec_cpu_shares", 512, 512),
        ("container_start_time_seconds", started.saturating_sub(2), started + 2),
        ("container_cpu_usage_seconds_total", 0, 60),
    ] {
        let mut all = container.iter().filter(|metric| metric.name == name);
        let Some(metric) = all.next() else { continue };
        known += 1;
        let value = metric.value.map(|value| value.value);
        let within = value.is_some_and(|value| (least..=most).contains(&value));
        ensure(within, name, &format!("{least} to {most}"), value)?;
    }
    match known {
        0 => unsupported("container metrics have other names"),
        _ => Ok(()),
    }
}
