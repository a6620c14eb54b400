//! Rules of statistics: what they carry, filters, and agreement between the calls.

use std::collections::BTreeSet;

use cri::v1;
use cri::v1::ContainerStatsFilter;
use tonic::Status;

use super::sandbox::UNKNOWN;
use crate::check::context::{Context, RULE_LABEL};
use crate::check::outcome::{Outcome, Verdict, ensure, equal, failed, includes, refused};
use crate::check::rule::sources::{API, CONTAINERD, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-STA-001",
        severity: Severity::Must,
        says: "ContainerStats of a running container has its id, name and labels, and the times of its CPU and memory.",
        source: CRITEST,
        tags: &["kubelet", "echo"],
        calls: &["ContainerStats"],
        faults: &[
            "ContainerStats drop stats.attributes.labels",
            "ContainerStats drop stats.attributes.metadata",
            "ContainerStats drop stats.cpu",
            "ContainerStats drop stats.memory.timestamp",
        ],
        body: |x| Box::pin(container_stats_are_complete(x)),
    },
    Rule {
        id: "CRI-STA-002",
        severity: Severity::Must,
        says: "ListContainerStats filtered by id, by sandbox and by labels returns those containers alone.",
        source: CONTAINERD,
        tags: &["kubelet", "filter"],
        calls: &["ListContainerStats"],
        faults: &[
            "ListContainerStats request drop filter.id",
            "ListContainerStats request drop filter.pod_sandbox_id",
            "ListContainerStats request drop filter.label_selector",
            "ListContainerStats drop stats",
        ],
        body: |x| Box::pin(container_stats_are_filtered(x)),
    },
    Rule {
        id: "CRI-STA-003",
        severity: Severity::Must,
        says: "ListContainerStats and ContainerStats tell the same of a container, and CPU time does not go back.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ListContainerStats", "ContainerStats"],
        faults: &[
            "ListContainerStats drop stats.attributes.metadata",
            "ListContainerStats drop stats.cpu.usage_core_nano_seconds",
        ],
        body: |x| Box::pin(listed_stats_agree(x)),
    },
    Rule {
        id: "CRI-STA-004",
        severity: Severity::Must,
        says: "ContainerStats of an unknown container is refused.",
        source: API,
        tags: &["codes"],
        calls: &["ContainerStats"],
        faults: &["ContainerStats swallow"],
        body: |x| Box::pin(stats_of_unknown_container_are_refused(x)),
    },
    Rule {
        id: "CRI-STA-005",
        severity: Severity::Should,
        says: "PodSandboxStats has the sandbox's name and uid, and the statistics of its containers.",
        source: KUBELET,
        tags: &["kubelet", "echo"],
        calls: &["PodSandboxStats"],
        faults: &[
            "PodSandboxStats drop stats.attributes.metadata.uid",
            "PodSandboxStats drop stats.linux.containers",
            "PodSandboxStats drop stats",
        ],
        body: |x| Box::pin(sandbox_stats_have_containers(x)),
    },
    Rule {
        id: "CRI-STA-006",
        severity: Severity::Should,
        says: "ListPodSandboxStats filtered by id and by labels returns those sandboxes alone.",
        source: API,
        tags: &["kubelet", "filter"],
        calls: &["ListPodSandboxStats"],
        faults: &[
            "ListPodSandboxStats request drop filter.id",
            "ListPodSandboxStats request drop filter.label_selector",
            "ListPodSandboxStats drop stats",
        ],
        body: |x| Box::pin(sandbox_stats_are_filtered(x)),
    },
    Rule {
        id: "CRI-STA-007",
        severity: Severity::Should,
        says: "Every metric descriptor has a name, a help text and label keys, and no name is there twice.",
        source: CRITEST,
        tags: &["metrics"],
        calls: &["ListMetricDescriptors"],
        faults: &[
            "ListMetricDescriptors drop descriptors",
            "ListMetricDescriptors drop descriptors.help",
            "ListMetricDescriptors set descriptors.name \"container_same\"",
        ],
        body: |x| Box::pin(metric_descriptors_are_complete(x)),
    },
    Rule {
        id: "CRI-STA-008",
        severity: Severity::Should,
        says: "Every metric of a sandbox has a descriptor, with as many keys as the metric has label values.",
        source: CRITEST,
        tags: &["metrics", "agreement"],
        calls: &["ListMetricDescriptors", "ListPodSandboxMetrics"],
        faults: &[
            "ListPodSandboxMetrics drop pod_metrics",
            "ListPodSandboxMetrics drop pod_metrics.container_metrics.metrics.label_values",
            "ListPodSandboxMetrics set pod_metrics.container_metrics.metrics.name \"container_none\"",
        ],
        body: |x| Box::pin(metrics_have_descriptors(x)),
    },
];

async fn stats(x: &Context, id: &str) -> Result<v1::ContainerStats, Status> {
    let request = v1::ContainerStatsRequest {
        container_id: id.to_owned(),
    };
    let answer = x.client.runtime.clone().container_stats(request).await?;
    Ok(answer.into_inner().stats.unwrap_or_default())
}

async fn listed(x: &Context, filter: ContainerStatsFilter) -> Verdict<Vec<v1::ContainerStats>> {
    let request = v1::ListContainerStatsRequest {
        filter: Some(filter),
    };
    let answer = x
        .client
        .runtime
        .clone()
        .list_container_stats(request)
        .await?;
    Ok(answer.into_inner().stats)
}

/// What versions of containerd say of a sandbox without a cgroup parent.
const WITHOUT_PARENT: [&str; 2] = ["cgroupPath is empty", "has no cgroup parent"];

/// What a runtime answers of a sandbox's statistics. A kubelet always names a cgroup parent, which some runtimes need; the pods
/// of a rule have none, because it would be left behind.
pub(super) fn without_cgroup_parent<T>(answer: Result<T, Status>) -> Verdict<T> {
    match answer {
        Err(status) => match WITHOUT_PARENT
            .iter()
            .any(|words| status.message().contains(words))
        {
            true => Err(Outcome::Diverges(format!(
                "needs a cgroup parent: {}",
                status.message()
            ))),
            false => Err(status.into()),
        },
        Ok(answer) => Ok(answer),
    }
}

/// Two pods with a running container each; the first container has a label that the second has not.
async fn two(x: &Context) -> Verdict<[(Pod, String); 2]> {
    let (first, second) = (x.pod().await?, x.pod().await?);
    let mut config = x.forever("c");
    config.labels.insert("colour".to_owned(), "red".to_owned());
    let red = first.start(config).await?;
    x.logged(&first, "ready").await?;
    let other = x.running(&second).await?;
    Ok([(first, red), (second, other)])
}

async fn container_stats_are_complete(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let stats = stats(x, &id).await?;
    let attributes = stats.attributes.clone().unwrap_or_default();
    equal("the id", &attributes.id, &id)?;
    let name = attributes.metadata.clone().unwrap_or_default().name;
    equal("the name", name.as_str(), "c")?;
    let labels = [(RULE_LABEL.to_owned(), x.rule.to_owned())].into();
    includes("the labels", &attributes.labels, &labels)?;
    let (cpu, memory) = (
        stats.cpu.unwrap_or_default(),
        stats.memory.unwrap_or_default(),
    );
    ensure(cpu.timestamp > 0, "the time of cpu", "not 0", cpu)?;
    ensure(memory.timestamp > 0, "the time of memory", "not 0", memory)
}

async fn container_stats_are_filtered(x: &Context) -> Verdict {
    let [(first, red), (_, other)] = two(x).await?;
    let by_id = ContainerStatsFilter {
        id: red.clone(),
        ..Default::default()
    };
    let by_sandbox = ContainerStatsFilter {
        pod_sandbox_id: first.id.clone(),
        ..Default::default()
    };
    let by_labels = ContainerStatsFilter {
        label_selector: [("colour".to_owned(), "red".to_owned())].into(),
        ..Default::default()
    };
    for (what, filter) in [
        ("id", by_id),
        ("sandbox", by_sandbox),
        ("labels", by_labels),
    ] {
        let all = listed(x, filter).await?.into_iter();
        let ids: BTreeSet<String> = all.filter_map(|stats| Some(stats.attributes?.id)).collect();
        let what = format!("ListContainerStats by {what}");
        let ours = ids.contains(&red) && !ids.contains(&other);
        ensure(ours, &what, &format!("{red} and not {other}"), ids)?;
    }
    Ok(())
}

async fn listed_stats_agree(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let single = stats(x, &id).await?;
    let all = listed(x, ContainerStatsFilter::default()).await?;
    let same = |stats: &&v1::ContainerStats| stats.attributes.as_ref().is_some_and(|a| a.id == id);
    let Some(listed) = all.iter().find(same) else {
        return failed(
            "the container in ListContainerStats",
            "to be there",
            format!("{} others", all.len()),
        );
    };
    equal(
        "the attributes in ListContainerStats",
        &listed.attributes,
        &single.attributes,
    )?;
    let used = |stats: &v1::ContainerStats| {
        stats
            .cpu
            .and_then(|cpu| cpu.usage_core_nano_seconds)
            .map(|used| used.value)
    };
    let forward = used(listed) >= used(&single);
    ensure(
        forward,
        "the CPU time in ListContainerStats",
        "at least that of an earlier ContainerStats",
        (used(&single), used(listed)),
    )
}

async fn stats_of_unknown_container_are_refused(x: &Context) -> Verdict {
    refused(
        "ContainerStats of an unknown container",
        stats(x, UNKNOWN).await,
    )
    .map(drop)
}

async fn sandbox_stats_have_containers(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let request = v1::PodSandboxStatsRequest {
        pod_sandbox_id: pod.id.clone(),
    };
    let answer = x.client.runtime.clone().pod_sandbox_stats(request).await;
    let answer = without_cgroup_parent(answer)?.into_inner();
    let stats = answer.stats.unwrap_or_default();
    let attributes = stats.attributes.unwrap_or_default();
    equal("the id", &attributes.id, &pod.id)?;
    equal("the metadata", &attributes.metadata, &pod.config.metadata)?;
    let containers = stats.linux.unwrap_or_default().containers;
    let ids: Vec<String> = containers
        .into_iter()
        .filter_map(|one| Some(one.attributes?.id))
        .collect();
    equal("the containers", &ids, &vec![id])
}

async fn sandbox_stats_are_filtered(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.labels.insert("colour".to_owned(), "red".to_owned());
    let (first, second) = (x.pod_of(config).await?, x.pod().await?);
    let by_id = v1::PodSandboxStatsFilter {
        id: first.id.clone(),
        ..Default::default()
    };
    let by_labels = v1::PodSandboxStatsFilter {
        label_selector: [("colour".to_owned(), "red".to_owned())].into(),
        ..Default::default()
    };
    for (what, filter) in [("id", by_id), ("labels", by_labels)] {
        let request = v1::ListPodSandboxStatsRequest {
            filter: Some(filter),
        };
        let answer = x
            .client
            .runtime
            .clone()
            .list_pod_sandbox_stats(request)
            .await;
        let answer = without_cgroup_parent(answer)?.into_inner();
        let all = answer.stats.into_iter();
        let ids: BTreeSet<String> = all.filter_map(|stats| Some(stats.attributes?.id)).collect();
        let ours = ids.contains(&first.id) && !ids.contains(&second.id);
        let expected = format!("{} and not {}", first.id, second.id);
        ensure(
            ours,
            &format!("ListPodSandboxStats by {what}"),
            &expected,
            ids,
        )?;
    }
    Ok(())
}

async fn descriptors(x: &Context) -> Verdict<Vec<v1::MetricDescriptor>> {
    let request = v1::ListMetricDescriptorsRequest {};
    let answer = x
        .client
        .runtime
        .clone()
        .list_metric_descriptors(request)
        .await?
        .into_inner();
    ensure(
        !answer.descriptors.is_empty(),
        "the descriptors",
        "one at least",
        &answer,
    )?;
    Ok(answer.descriptors)
}

async fn metric_descriptors_are_complete(x: &Context) -> Verdict {
    let mut names = BTreeSet::new();
    for descriptor in descriptors(x).await? {
        let complete = !descriptor.name.is_empty()
            && !descriptor.help.is_empty()
            && !descriptor.label_keys.is_empty();
        ensure(
            complete,
            "a descriptor",
            "a name, a help text and label keys",
            &descriptor,
        )?;
        ensure(
            names.insert(descriptor.name.clone()),
            "a name",
            "there once",
            &descriptor.name,
        )?;
    }
    Ok(())
}

async fn metrics_have_descriptors(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let descriptors = descriptors(x).await?;
    let request = v1::ListPodSandboxMetricsRequest {};
    let answer = x
        .client
        .runtime
        .clone()
        .list_pod_sandbox_metrics(request)
        .await?
        .into_inner();
    let Some(ours) = answer
        .pod_metrics
        .iter()
        .find(|one| one.pod_sandbox_id == pod.id)
    else {
        return failed(
            "the sandbox in ListPodSandboxMetrics",
            "to be there",
            format!("{} others", answer.pod_metrics.len()),
        );
    };
    let container = ours
        .container_metrics
        .iter()
        .find(|one| one.container_id == id);
    let Some(container) = container.filter(|one| !one.metrics.is_empty()) else {
        return failed("the metrics of the container", "some", format!("{ours:?}"));
    };
    for metric in ours.metrics.iter().chain(&container.metrics) {
        let descriptor = descriptors.iter().find(|one| one.name == metric.name);
        let keys = descriptor.map(|descriptor| descriptor.label_keys.len());
        equal(
            &format!("the number of label keys of {}", metric.name),
            &keys,
            &Some(metric.label_values.len()),
        )?;
    }
    Ok(())
}
