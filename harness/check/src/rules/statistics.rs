//! Rules for statistics: fields, filters, and agreement between the calls.

pub(crate) mod accounting;
pub(crate) mod accuracy;
pub(crate) mod metrics;
pub(crate) mod network;
pub(crate) mod reclaim;

use compact::Set;
use cri::v1::ContainerStatsFilter;

use crate::context::RULE_LABEL;
use crate::prelude::*;
use crate::rules::sandbox::UNKNOWN;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STA-001": "ContainerStats includes the container's id, name and labels, and the timestamps of its CPU and memory measurements.",
        CRITEST, tags ["kubelet", "echo"], calls [ContainerStats],
        container_stats_are_complete given [container], faults [
            "ContainerStats drop stats.attributes.labels",
            "ContainerStats drop stats.attributes.metadata",
            "ContainerStats drop stats.cpu",
            "ContainerStats drop stats.memory.timestamp",
        ];
    Must "CRI-STA-002": "ListContainerStats filtered by id, sandbox or labels returns only the matching containers.",
        CONTAINERD, tags ["kubelet", "filter"], calls [ListContainerStats],
        container_stats_are_filtered, faults [
            "ListContainerStats request drop filter.id",
            "ListContainerStats request drop filter.pod_sandbox_id",
            "ListContainerStats request drop filter.label_selector",
            "ListContainerStats drop stats",
        ];
    Must "CRI-STA-003": "ListContainerStats and ContainerStats report the same attributes of a container, and its CPU time does not decrease.",
        KUBELET, tags ["kubelet", "agreement"], calls [ListContainerStats, ContainerStats],
        listed_stats_agree given [container], faults [
            "ListContainerStats drop stats.attributes.metadata",
            "ListContainerStats drop stats.cpu.usage_core_nano_seconds",
        ];
    Must "CRI-STA-004": "ContainerStats of an unknown container is refused.",
        API, tags ["codes"], calls [ContainerStats],
        stats_of_unknown_container_are_refused, faults ["ContainerStats swallow"];
    Should "CRI-STA-005": "PodSandboxStats has the sandbox's id and metadata, and the stats of its containers.",
        KUBELET, tags ["kubelet", "echo"], calls [PodSandboxStats],
        sandbox_stats_have_containers given [pod, container], faults [
            "PodSandboxStats drop stats.attributes.metadata.uid",
            "PodSandboxStats drop stats.linux.containers",
            "PodSandboxStats drop stats",
        ];
    Should "CRI-STA-006": "ListPodSandboxStats filtered by id or labels returns only the matching sandboxes.",
        API, tags ["kubelet", "filter"], calls [ListPodSandboxStats],
        sandbox_stats_are_filtered, faults [
            "ListPodSandboxStats request drop filter.id",
            "ListPodSandboxStats request drop filter.label_selector",
            "ListPodSandboxStats drop stats",
        ];
    Should "CRI-STA-007": "Every metric descriptor has a unique name, a help text and label keys.",
        CRITEST, tags ["metrics"], calls [ListMetricDescriptors],
        metric_descriptors_are_complete, faults [
            "ListMetricDescriptors drop descriptors",
            "ListMetricDescriptors drop descriptors.help",
            "ListMetricDescriptors set descriptors.name \"container_same\"",
        ];
    Should "CRI-STA-008": "Every metric in ListPodSandboxMetrics has a descriptor, with as many label keys as the metric has label values.",
        CRITEST, tags ["metrics", "agreement"], calls [ListMetricDescriptors, ListPodSandboxMetrics],
        metrics_have_descriptors given [pod, container], faults [
            "ListPodSandboxMetrics drop pod_metrics",
            "ListPodSandboxMetrics drop pod_metrics.container_metrics.metrics.label_values",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.name \"container_none\"",
        ];
};

/// Errors of containerd versions for a sandbox without a cgroup parent.
const WITHOUT_PARENT: [&str; 2] = ["cgroupPath is empty", "has no cgroup parent"];

/// A runtime's response for a sandbox's statistics. Some runtimes need a cgroup parent, which the kubelet always sets; without one
/// the error diverges.
pub(crate) fn without_cgroup_parent<T>(answer: Result<T, Status>) -> Verdict<T> {
    match answer {
        Err(status) => match WITHOUT_PARENT.iter().any(|words| status.message().contains(words)) {
            true => diverges(format!("needs a cgroup parent: {}", status.message())),
            false => Err(status.into()),
        },
        Ok(answer) => Ok(answer),
    }
}

/// Two pods with a running container each; the first container has a label that the second lacks.
async fn two(x: &Context) -> Verdict<[(Pod, String); 2]> {
    let (first, second) = (x.pod().await?, x.pod().await?);
    let mut config = x.forever("c");
    config.labels.insert("colour".to_owned(), "red".to_owned());
    let red = first.start(config).await?;
    x.logged(&first, "ready").await?;
    let other = x.running(&second).await?;
    Ok([(first, red), (second, other)])
}

async fn container_stats_are_complete(x: &Context, id: String) -> Verdict {
    let stats = x.client.container_stats(&id).await?;
    let attributes = stats.attributes.clone().unwrap_or_default();
    equal("the id", &attributes.id, &id)?;
    let name = attributes.metadata.clone().unwrap_or_default().name;
    equal("the name", name.as_str(), "c")?;
    let labels = [(RULE_LABEL.to_owned(), x.rule.to_owned())].into();
    includes("the labels", &attributes.labels, &labels)?;
    let (cpu, memory) = (stats.cpu.unwrap_or_default(), stats.memory.unwrap_or_default());
    ensure(cpu.timestamp > 0, "the time of cpu", "not 0", cpu)?;
    ensure(memory.timestamp > 0, "the time of memory", "not 0", memory)
}

async fn container_stats_are_filtered(x: &Context) -> Verdict {
    let [(first, red), (_, other)] = two(x).await?;
    let by_id = ContainerStatsFilter { id: red.clone(), ..Default::default() };
    let by_sandbox =
        ContainerStatsFilter { pod_sandbox_id: first.id.clone(), ..Default::default() };
    let by_labels = ContainerStatsFilter {
        label_selector: [("colour".to_owned(), "red".to_owned())].into(),
        ..Default::default()
    };
    for (what, filter) in [("id", by_id), ("sandbox", by_sandbox), ("labels", by_labels)] {
        let all = x.client.list_container_stats(filter).await?.into_iter();
        let ids: Set<String> = all.filter_map(|stats| Some(stats.attributes?.id)).collect();
        let what = format!("ListContainerStats by {what}");
        let ours = ids.contains(&red) && !ids.contains(&other);
        ensure(ours, &what, &format!("{red} and not {other}"), ids)?;
    }
    Ok(())
}

async fn listed_stats_agree(x: &Context, id: String) -> Verdict {
    let single = x.client.container_stats(&id).await?;
    let all = x.client.list_container_stats(ContainerStatsFilter::default()).await?;
    let same = |stats: &&v1::ContainerStats| stats.attributes.as_ref().is_some_and(|a| a.id == id);
    let Some(listed) = all.iter().find(same) else {
        return failed(
            "the container in ListContainerStats",
            "to be listed",
            format!("{} others", all.len()),
        );
    };
    equal("the attributes in ListContainerStats", &listed.attributes, &single.attributes)?;
    let used = |stats: &v1::ContainerStats| {
        stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds).map(|used| used.value)
    };
    let forward = used(listed) >= used(&single);
    let expected = "at least that of the earlier ContainerStats";
    ensure(forward, "the CPU time in ListContainerStats", expected, (used(&single), used(listed)))
}

async fn stats_of_unknown_container_are_refused(x: &Context) -> Verdict {
    refused("ContainerStats of an unknown container", x.client.container_stats(UNKNOWN).await)
        .map(drop)
}

async fn sandbox_stats_have_containers(x: &Context, pod: Pod, id: String) -> Verdict {
    let stats = without_cgroup_parent(x.client.pod_stats(&pod.id).await)?;
    let attributes = stats.attributes.unwrap_or_default();
    equal("the id", &attributes.id, &pod.id)?;
    equal("the metadata", &attributes.metadata, &pod.config.metadata)?;
    let containers = stats.linux.unwrap_or_default().containers;
    let ids: Vec<String> =
        containers.into_iter().filter_map(|one| Some(one.attributes?.id)).collect();
    equal("the containers", &ids, &vec![id])
}

async fn sandbox_stats_are_filtered(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.labels.insert("colour".to_owned(), "red".to_owned());
    let (first, second) = (x.pod_of(config).await?, x.pod().await?);
    let by_id = v1::PodSandboxStatsFilter { id: first.id.clone(), ..Default::default() };
    let by_labels = v1::PodSandboxStatsFilter {
        label_selector: [("colour".to_owned(), "red".to_owned())].into(),
        ..Default::default()
    };
    for (what, filter) in [("id", by_id), ("labels", by_labels)] {
        let all = without_cgroup_parent(x.client.list_pod_stats(filter).await)?.into_iter();
        let ids: Set<String> = all.filter_map(|stats| Some(stats.attributes?.id)).collect();
        let ours = ids.contains(&first.id) && !ids.contains(&second.id);
        let expected = format!("{} and not {}", first.id, second.id);
        ensure(ours, &format!("ListPodSandboxStats by {what}"), &expected, ids)?;
    }
    Ok(())
}

async fn descriptors(x: &Context) -> Verdict<Vec<v1::MetricDescriptor>> {
    let descriptors = x.client.metric_descriptors().await?;
    ensure(!descriptors.is_empty(), "the descriptors", "at least one", &descriptors)?;
    Ok(descriptors)
}

async fn metric_descriptors_are_complete(x: &Context) -> Verdict {
    let mut names = Set::new();
    for descriptor in descriptors(x).await? {
        let complete = !descriptor.name.is_empty()
            && !descriptor.help.is_empty()
            && !descriptor.label_keys.is_empty();
        ensure(complete, "a descriptor", "a name, a help text and label keys", &descriptor)?;
        ensure(names.insert(descriptor.name.clone()), "a name", "unique", &descriptor.name)?;
    }
    Ok(())
}

async fn metrics_have_descriptors(x: &Context, pod: Pod, id: String) -> Verdict {
    let descriptors = descriptors(x).await?;
    let all = x.client.pod_metrics().await?;
    let Some(ours) = all.iter().find(|one| one.pod_sandbox_id == pod.id) else {
        return failed(
            "the sandbox in ListPodSandboxMetrics",
            "to be listed",
            format!("{} others", all.len()),
        );
    };
    let container = ours.container_metrics.iter().find(|one| one.container_id == id);
    let Some(container) = container.filter(|one| !one.metrics.is_empty()) else {
        return failed("the metrics of the container", "some", format!("{ours:?}"));
    };
    for metric in ours.metrics.iter().chain(&container.metrics) {
        let descriptor = descriptors.iter().find(|one| one.name == metric.name);
        let keys = descriptor.map(|descriptor| descriptor.label_keys.len());
        let what = format!("the number of label keys of {}", metric.name);
        equal(&what, &keys, &Some(metric.label_values.len()))?;
    }
    Ok(())
}
