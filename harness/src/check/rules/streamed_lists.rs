//! Rules of the six streamed lists: each returns what its list returns, filtered alike, and ends by itself.

use std::fmt::Debug;

use cri::v1;
use tonic::{Response, Status, Streaming};

use super::image;
use super::listing::{is_ours, two_containers, two_pods};
use super::measured::agree;
use super::statistics::without_cgroup_parent;
use crate::check::context::Context;
use crate::check::numbers::{Numbers, numbers};
use crate::check::outcome::{Verdict, equal, failed};
use crate::check::rule::sources::API;
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-SBX-043",
        severity: Severity::Should,
        says: "StreamPodSandboxes returns what ListPodSandbox returns.",
        source: API,
        tags: &["filter", "agreement", "stream"],
        calls: &["StreamPodSandboxes", "ListPodSandbox"],
        faults: &[
            "StreamPodSandboxes lose",
            "StreamPodSandboxes repeat",
            "StreamPodSandboxes hang",
            "StreamPodSandboxes request drop filter",
            "StreamPodSandboxes drop pod_sandboxes.labels",
        ],
        body: |x| Box::pin(streamed_sandboxes_are_the_listed_ones(x)),
    },
    Rule {
        id: "CRI-CTR-044",
        severity: Severity::Should,
        says: "StreamContainers returns what ListContainers returns.",
        source: API,
        tags: &["filter", "agreement", "stream"],
        calls: &["StreamContainers", "ListContainers"],
        faults: &[
            "StreamContainers lose",
            "StreamContainers repeat",
            "StreamContainers request drop filter",
            "StreamContainers request drop filter.id",
            "StreamContainers request drop filter.pod_sandbox_id",
            "StreamContainers drop containers.pod_sandbox_id",
            "StreamContainers drop containers.annotations",
        ],
        body: |x| Box::pin(streamed_containers_are_the_listed_ones(x)),
    },
    Rule {
        id: "CRI-IMG-020",
        severity: Severity::Should,
        says: "StreamImages returns what ListImages returns.",
        source: API,
        tags: &["filter", "agreement", "stream"],
        calls: &["StreamImages", "ListImages"],
        faults: &[
            "StreamImages lose",
            "StreamImages repeat",
            "StreamImages request drop filter",
            "StreamImages drop images.repo_digests",
        ],
        body: |x| Box::pin(streamed_images_are_the_listed_ones(x)),
    },
    Rule {
        id: "CRI-STA-010",
        severity: Severity::Should,
        says: "StreamContainerStats returns the containers that ListContainerStats returns.",
        source: API,
        tags: &["filter", "agreement", "stream"],
        calls: &["StreamContainerStats", "ListContainerStats"],
        faults: &[
            "StreamContainerStats lose",
            "StreamContainerStats repeat",
            "StreamContainerStats request drop filter",
            "StreamContainerStats request drop filter.id",
            "StreamContainerStats drop container_stats.attributes.labels",
            "StreamContainerStats drop container_stats.memory",
            "StreamContainerStats set container_stats.cpu.timestamp 1800000000",
        ],
        body: |x| Box::pin(streamed_container_stats_are_the_listed_ones(x)),
    },
    Rule {
        id: "CRI-STA-011",
        severity: Severity::Should,
        says: "StreamPodSandboxStats returns the sandboxes that ListPodSandboxStats returns.",
        source: API,
        tags: &["filter", "agreement", "stream"],
        calls: &["StreamPodSandboxStats", "ListPodSandboxStats"],
        faults: &[
            "StreamPodSandboxStats lose",
            "StreamPodSandboxStats repeat",
            "StreamPodSandboxStats request drop filter",
            "StreamPodSandboxStats request drop filter.label_selector",
            "StreamPodSandboxStats drop pod_sandbox_stats.attributes.metadata",
            "StreamPodSandboxStats drop pod_sandbox_stats.linux.network",
            "StreamPodSandboxStats drop pod_sandbox_stats.linux.containers",
            "StreamPodSandboxStats set pod_sandbox_stats.linux.memory.rss_bytes.value \"123456789\"",
        ],
        body: |x| Box::pin(streamed_sandbox_stats_are_the_listed_ones(x)),
    },
    Rule {
        id: "CRI-STA-012",
        severity: Severity::Should,
        says: "StreamPodSandboxMetrics returns the sandboxes that ListPodSandboxMetrics returns, with the same metrics.",
        source: API,
        tags: &["metrics", "agreement", "stream"],
        calls: &["StreamPodSandboxMetrics", "ListPodSandboxMetrics"],
        faults: &[
            "StreamPodSandboxMetrics lose",
            "StreamPodSandboxMetrics repeat",
            "StreamPodSandboxMetrics drop pod_sandbox_metrics.metrics",
            "StreamPodSandboxMetrics drop pod_sandbox_metrics.container_metrics",
        ],
        body: |x| Box::pin(streamed_metrics_are_the_listed_ones(x)),
    },
];

/// All that a stream carries up to its end.
pub(super) async fn drained<M, T>(
    x: &Context,
    what: &str,
    answer: Result<Response<Streaming<M>>, Status>,
    items: fn(M) -> Vec<T>,
) -> Verdict<Vec<T>> {
    let mut stream = answer?.into_inner();
    let mut all = Vec::new();
    let reading = async {
        while let Some(message) = stream.message().await? {
            all.extend(items(message));
        }
        Ok::<(), Status>(())
    };
    match tokio::time::timeout(x.shared.patience, reading).await {
        Ok(read) => read?,
        Err(_) => return failed(what, "to end by itself", "no end"),
    }
    Ok(all)
}

/// Fails unless the stream has each item of the list once, and no other.
fn same<T: PartialEq + Debug>(
    what: &str,
    mut streamed: Vec<T>,
    mut listed: Vec<T>,
    id: fn(&T) -> String,
) -> Verdict {
    streamed.sort_by_key(id);
    listed.sort_by_key(id);
    equal(&beside(what), &streamed, &listed)
}

/// What is compared: either may be wrong.
fn beside(stream: &str) -> String {
    format!("what {stream} returns, beside what its list returns, which is shown as expected")
}

/// Fails unless the stream has each item of the later list once, and no other, with numbers that are near those of the list.
fn same_measured<T: PartialEq + Debug + Clone>(
    what: &str,
    mut streamed: Vec<(T, Numbers)>,
    mut listed: Vec<(T, Numbers)>,
    id: fn(&T) -> String,
) -> Verdict {
    streamed.sort_by_key(|(of, _)| id(of));
    listed.sort_by_key(|(of, _)| id(of));
    let all =
        |items: &[(T, Numbers)]| -> Vec<T> { items.iter().map(|(of, _)| of.clone()).collect() };
    equal(&beside(what), &all(&streamed), &all(&listed))?;
    for ((_, streamed), (_, listed)) in streamed.into_iter().zip(listed) {
        agree(&[("the list", listed), (what, streamed)])?;
    }
    Ok(())
}

fn red() -> std::collections::HashMap<String, String> {
    [("colour".to_owned(), "red".to_owned())].into()
}

async fn streamed_sandboxes_are_the_listed_ones(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    x.client.stop_pod(&second.id).await?;
    let by_state = v1::PodSandboxFilter {
        state: Some(v1::PodSandboxStateValue {
            state: v1::PodSandboxState::SandboxNotready.into(),
        }),
        ..Default::default()
    };
    let by_labels = v1::PodSandboxFilter {
        label_selector: red(),
        ..Default::default()
    };
    let by_id = v1::PodSandboxFilter {
        id: first.id.clone(),
        ..Default::default()
    };
    let what = "StreamPodSandboxes";
    for filter in [Default::default(), by_labels, by_state, by_id] {
        let mut listed = x.client.pods(filter.clone()).await?;
        let filter = Some(filter);
        let request = v1::StreamPodSandboxesRequest { filter };
        let answer = x.client.runtime.clone().stream_pod_sandboxes(request).await;
        let mut streamed = drained(x, what, answer, |one| one.pod_sandboxes).await?;
        listed.retain(|pod| is_ours(x, &pod.labels));
        streamed.retain(|pod| is_ours(x, &pod.labels));
        same(what, streamed, listed, |pod| pod.id.clone())?;
    }
    Ok(())
}

async fn streamed_containers_are_the_listed_ones(x: &Context) -> Verdict {
    let (pod, [_, second]) = two_containers(x).await?;
    x.client.start(&second).await?;
    let by_state = v1::ContainerFilter {
        state: Some(v1::ContainerStateValue {
            state: v1::ContainerState::ContainerRunning.into(),
        }),
        ..Default::default()
    };
    let by_labels = v1::ContainerFilter {
        label_selector: red(),
        ..Default::default()
    };
    let by_sandbox = v1::ContainerFilter {
        pod_sandbox_id: pod.id.clone(),
        ..Default::default()
    };
    let by_id = v1::ContainerFilter {
        id: second.clone(),
        ..Default::default()
    };
    // One in another sandbox.
    x.pod().await?.create(x.forever("c")).await?;
    let what = "StreamContainers";
    for filter in [Default::default(), by_labels, by_state, by_sandbox, by_id] {
        let mut listed = x.client.containers(filter.clone()).await?;
        let filter = Some(filter);
        let request = v1::StreamContainersRequest { filter };
        let answer = x.client.runtime.clone().stream_containers(request).await;
        let mut streamed = drained(x, what, answer, |one| one.containers).await?;
        listed.retain(|one| is_ours(x, &one.labels));
        streamed.retain(|one| is_ours(x, &one.labels));
        same(what, streamed, listed, |one| one.id.clone())?;
    }
    Ok(())
}

async fn streamed_images_are_the_listed_ones(x: &Context) -> Verdict {
    let mut names = Vec::new();
    for tag in ["1", "2"] {
        let (name, _) = image::add(x, tag, |image| image)?;
        image::pull(x, &name).await?;
        names.push(name);
    }
    let by_name = v1::ImageFilter {
        image: names.first().map(|name| v1::ImageSpec {
            image: name.clone(),
            ..Default::default()
        }),
    };
    let what = "StreamImages";
    for filter in [None, Some(by_name)] {
        let request = v1::ListImagesRequest {
            filter: filter.clone(),
        };
        let answer = x.client.images.clone().list_images(request).await?;
        let mut listed = answer.into_inner().images;
        let request = v1::StreamImagesRequest { filter };
        let answer = x.client.images.clone().stream_images(request).await;
        let mut streamed = drained(x, what, answer, |one| one.images).await?;
        let ours = |image: &v1::Image| image.repo_tags.iter().any(|tag| names.contains(tag));
        listed.retain(ours);
        streamed.retain(ours);
        same(what, streamed, listed, |image| image.id.clone())?;
    }
    Ok(())
}

async fn streamed_container_stats_are_the_listed_ones(x: &Context) -> Verdict {
    let (pod, [first, second]) = two_containers(x).await?;
    x.client.start(&first).await?;
    x.client.start(&second).await?;
    // What has just begun is measured otherwise a moment later.
    x.until("both containers to idle", async || {
        let ready = |name: &str| {
            let log = std::fs::read_to_string(pod.log_directory().join(name));
            log.is_ok_and(|log| log.contains("ready"))
        };
        match ready("c.log") && ready("d.log") {
            true => Ok(()),
            false => Err("no line \"ready\" in both logs"),
        }
    })
    .await?;
    let by_labels = v1::ContainerStatsFilter {
        label_selector: red(),
        ..Default::default()
    };
    let by_id = v1::ContainerStatsFilter {
        id: first.clone(),
        ..Default::default()
    };
    let what = "StreamContainerStats";
    for filter in [Default::default(), by_labels, by_id] {
        let filter = Some(filter);
        let request = v1::ListContainerStatsRequest {
            filter: filter.clone(),
        };
        let mut runtime = x.client.runtime.clone();
        let listed = runtime.list_container_stats(request).await?.into_inner();
        let request = v1::StreamContainerStatsRequest { filter };
        let answer = runtime.stream_container_stats(request).await;
        let streamed = drained(x, what, answer, |one| one.container_stats).await?;
        let ours = |all: Vec<v1::ContainerStats>| -> Vec<(v1::ContainerAttributes, Numbers)> {
            let all = all.into_iter().filter_map(|one| {
                let measured = numbers("ContainerStats", &one);
                Some((one.attributes?, measured))
            });
            all.filter(|(of, _)| of.id == first || of.id == second)
                .collect()
        };
        same_measured(what, ours(streamed), ours(listed.stats), |of| of.id.clone())?;
    }
    Ok(())
}

async fn streamed_sandbox_stats_are_the_listed_ones(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    first.start(x.forever("c")).await?;
    x.logged(&first, "ready").await?;
    let by_id = v1::PodSandboxStatsFilter {
        id: first.id.clone(),
        ..Default::default()
    };
    let by_labels = v1::PodSandboxStatsFilter {
        label_selector: red(),
        ..Default::default()
    };
    let what = "StreamPodSandboxStats";
    for filter in [Default::default(), by_labels, by_id] {
        let filter = Some(filter);
        let mut runtime = x.client.runtime.clone();
        let request = v1::StreamPodSandboxStatsRequest {
            filter: filter.clone(),
        };
        // First the call that a runtime may leave out.
        let answer = runtime.stream_pod_sandbox_stats(request).await;
        let answer = Ok(without_cgroup_parent(answer)?);
        let streamed = drained(x, what, answer, |one| one.pod_sandbox_stats).await?;
        let request = v1::ListPodSandboxStatsRequest { filter };
        let listed = without_cgroup_parent(runtime.list_pod_sandbox_stats(request).await)?;
        // With the containers of each, of which the numbers are compared elsewhere.
        type Of = (
            v1::PodSandboxAttributes,
            Vec<Option<v1::ContainerAttributes>>,
        );
        let ours = |all: Vec<v1::PodSandboxStats>| -> Vec<(Of, Numbers)> {
            let all = all.into_iter().filter_map(|one| {
                let measured = numbers("PodSandboxStats", &one);
                let containers = one.linux.unwrap_or_default().containers;
                let containers = containers.into_iter().map(|one| one.attributes);
                Some(((one.attributes?, containers.collect()), measured))
            });
            all.filter(|((of, _), _)| of.id == first.id || of.id == second.id)
                .collect()
        };
        let listed = ours(listed.into_inner().stats);
        same_measured(what, ours(streamed), listed, |(of, _)| of.id.clone())?;
    }
    Ok(())
}

async fn streamed_metrics_are_the_listed_ones(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let mut runtime = x.client.runtime.clone();
    let request = v1::StreamPodSandboxMetricsRequest {};
    let answer = runtime.stream_pod_sandbox_metrics(request).await;
    let what = "StreamPodSandboxMetrics";
    let streamed = drained(x, what, answer, |one| one.pod_sandbox_metrics).await?;
    let request = v1::ListPodSandboxMetricsRequest {};
    let listed = runtime.list_pod_sandbox_metrics(request).await?;
    // The values change; their names do not.
    let names = |all: Vec<v1::PodSandboxMetrics>| -> Vec<(Vec<String>, Vec<String>)> {
        let names = |metrics: &[v1::Metric]| {
            let names = metrics.iter().map(|metric| metric.name.clone());
            names.collect::<std::collections::BTreeSet<String>>()
        };
        let ours = all.into_iter().filter(|one| one.pod_sandbox_id == pod.id);
        ours.map(|one| {
            let of_container = one.container_metrics.iter();
            let of_container = of_container.filter(|metrics| metrics.container_id == id);
            let of_container = of_container.flat_map(|metrics| names(&metrics.metrics));
            (
                names(&one.metrics).into_iter().collect(),
                of_container.collect(),
            )
        })
        .collect()
    };
    let (streamed, listed) = (names(streamed), names(listed.into_inner().pod_metrics));
    equal(&beside(what), &streamed, &listed)
}
