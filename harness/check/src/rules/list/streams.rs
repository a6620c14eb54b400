//! Rules of the six streamed lists: each returns the items of its list, for the same filters, and then ends.

use std::fmt::Debug;

use tonic::{Response, Streaming};

use crate::numbers::{Numbers, numbers};
use crate::prelude::*;
use crate::rules::image;
use crate::rules::list::{is_ours, two_containers, two_pods};
use crate::rules::statistics::accuracy::agree;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-SBX-043": "StreamPodSandboxes returns the same sandboxes as ListPodSandbox.",
        API, tags ["filter", "agreement", "stream"], calls [StreamPodSandboxes, ListPodSandbox],
        streamed_sandboxes_are_the_listed_ones, faults [
            "StreamPodSandboxes lose",
            "StreamPodSandboxes repeat",
            "StreamPodSandboxes hang",
            "StreamPodSandboxes request drop filter",
            "StreamPodSandboxes drop pod_sandboxes.labels",
        ];
    Should "CRI-CTR-044": "StreamContainers returns the same containers as ListContainers.",
        API, tags ["filter", "agreement", "stream"], calls [StreamContainers, ListContainers],
        streamed_containers_are_the_listed_ones, faults [
            "StreamContainers lose",
            "StreamContainers repeat",
            "StreamContainers request drop filter",
            "StreamContainers request drop filter.id",
            "StreamContainers request drop filter.pod_sandbox_id",
            "StreamContainers drop containers.pod_sandbox_id",
            "StreamContainers drop containers.annotations",
        ];
    Should "CRI-IMG-020": "StreamImages returns the same images as ListImages.",
        API, tags ["filter", "agreement", "stream"], calls [StreamImages, ListImages],
        streamed_images_are_the_listed_ones, faults [
            "StreamImages lose",
            "StreamImages repeat",
            "StreamImages request drop filter",
            "StreamImages drop images.repo_digests",
        ];
    Should "CRI-STA-010": "StreamContainerStats returns the same containers as ListContainerStats, with consistent values.",
        API, tags ["filter", "agreement", "stream"], calls [StreamContainerStats, ListContainerStats],
        streamed_container_stats_are_the_listed_ones, faults [
            "StreamContainerStats lose",
            "StreamContainerStats repeat",
            "StreamContainerStats request drop filter",
            "StreamContainerStats request drop filter.id",
            "StreamContainerStats request drop filter.pod_sandbox_id",
            "StreamContainerStats drop container_stats.attributes.labels",
            "StreamContainerStats drop container_stats.memory",
            "StreamContainerStats set container_stats.cpu.timestamp 1800000000",
        ];
    Should "CRI-STA-011": "StreamPodSandboxStats returns the same sandboxes as ListPodSandboxStats, with consistent values.",
        API, tags ["filter", "agreement", "stream"], calls [StreamPodSandboxStats, ListPodSandboxStats],
        streamed_sandbox_stats_are_the_listed_ones, faults [
            "StreamPodSandboxStats lose",
            "StreamPodSandboxStats repeat",
            "StreamPodSandboxStats request drop filter",
            "StreamPodSandboxStats request drop filter.label_selector",
            "StreamPodSandboxStats drop pod_sandbox_stats.attributes.metadata",
            "StreamPodSandboxStats drop pod_sandbox_stats.linux.network",
            "StreamPodSandboxStats drop pod_sandbox_stats.linux.containers",
            "StreamPodSandboxStats set pod_sandbox_stats.linux.memory.rss_bytes.value \"123456789\"",
        ];
    Should "CRI-STA-012": "StreamPodSandboxMetrics returns the same sandboxes and metric names as ListPodSandboxMetrics.",
        API, tags ["metrics", "agreement", "stream"], calls [StreamPodSandboxMetrics, ListPodSandboxMetrics],
        streamed_metrics_are_the_listed_ones given [pod, container], faults [
            "StreamPodSandboxMetrics lose",
            "StreamPodSandboxMetrics repeat",
            "StreamPodSandboxMetrics drop pod_sandbox_metrics.metrics",
            "StreamPodSandboxMetrics drop pod_sandbox_metrics.container_metrics",
        ];
};

/// All items of a stream up to its end.
pub(crate) async fn drained<M, T>(
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
    match tokio::time::timeout(x.shared.wait_limit, reading).await {
        Ok(read) => read?,
        Err(_) => return failed(what, "to end after its items", "no end"),
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
    compact::sort_by_key(&mut streamed, id);
    compact::sort_by_key(&mut listed, id);
    equal(&beside(what), &streamed, &listed)
}

/// The name of the comparison: either side may be wrong.
fn beside(stream: &str) -> String {
    format!("the items of {stream}, compared with those of its list (shown as expected)")
}

/// Fails unless the stream contains each item of the later list once, and no other, with similar numbers.
fn same_measured<T: PartialEq + Debug + Clone>(
    what: &str,
    mut streamed: Vec<(T, Numbers)>,
    mut listed: Vec<(T, Numbers)>,
    id: fn(&T) -> String,
) -> Verdict {
    compact::sort_by_key(&mut streamed, |(of, _)| id(of));
    compact::sort_by_key(&mut listed, |(of, _)| id(of));
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
        state: Some(v1::PodSandboxStateValue { state: PodSandboxState::SandboxNotready.into() }),
        ..Default::default()
    };
    let by_labels = v1::PodSandboxFilter { label_selector: red(), ..Default::default() };
    let by_id = v1::PodSandboxFilter { id: first.id.clone(), ..Default::default() };
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
        state: Some(v1::ContainerStateValue { state: ContainerState::ContainerRunning.into() }),
        ..Default::default()
    };
    let by_labels = v1::ContainerFilter { label_selector: red(), ..Default::default() };
    let by_sandbox = v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let by_id = v1::ContainerFilter { id: second.clone(), ..Default::default() };
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
        image: names
            .first()
            .map(|name| v1::ImageSpec { image: name.clone(), ..Default::default() }),
    };
    let what = "StreamImages";
    for filter in [None, Some(by_name)] {
        let request = v1::ListImagesRequest { filter: filter.clone() };
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
    // The measurements of a starting container change quickly.
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
    let by_labels = v1::ContainerStatsFilter { label_selector: red(), ..Default::default() };
    let by_id = v1::ContainerStatsFilter { id: first.clone(), ..Default::default() };
    let of_pod = |pod: &Pod| v1::ContainerStatsFilter {
        pod_sandbox_id: pod.id.clone(),
        ..Default::default()
    };
    let (by_sandbox, by_other) = (of_pod(&pod), of_pod(&x.pod().await?));
    let what = "StreamContainerStats";
    for filter in [Default::default(), by_labels, by_id, by_sandbox, by_other] {
        let listed = x.client.list_container_stats(filter.clone()).await?;
        let request = v1::StreamContainerStatsRequest { filter: Some(filter) };
        let answer = x.client.runtime.clone().stream_container_stats(request).await;
        let streamed = drained(x, what, answer, |one| one.container_stats).await?;
        let ours = |all: Vec<v1::ContainerStats>| -> Vec<(v1::ContainerAttributes, Numbers)> {
            let all = all.into_iter().filter_map(|one| {
                let measured = numbers("ContainerStats", &one);
                Some((one.attributes?, measured))
            });
            all.filter(|(of, _)| of.id == first || of.id == second).collect()
        };
        same_measured(what, ours(streamed), ours(listed), |of| of.id.clone())?;
    }
    Ok(())
}

async fn streamed_sandbox_stats_are_the_listed_ones(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    first.start(x.forever("c")).await?;
    x.logged(&first, "ready").await?;
    let by_id = v1::PodSandboxStatsFilter { id: first.id.clone(), ..Default::default() };
    let by_labels = v1::PodSandboxStatsFilter { label_selector: red(), ..Default::default() };
    let what = "StreamPodSandboxStats";
    for filter in [Default::default(), by_labels, by_id] {
        let request = v1::StreamPodSandboxStatsRequest { filter: Some(filter.clone()) };
        // The optional call comes first, so that the rule is unsupported if it is missing.
        let answer = x.client.runtime.clone().stream_pod_sandbox_stats(request).await;
        let answer = Ok(without_cgroup_parent(answer)?);
        let streamed = drained(x, what, answer, |one| one.pod_sandbox_stats).await?;
        let listed = without_cgroup_parent(x.client.list_pod_stats(filter).await)?;
        // With the attributes of each sandbox's containers; other rules compare the numbers.
        type Of = (v1::PodSandboxAttributes, Vec<Option<v1::ContainerAttributes>>);
        let ours = |all: Vec<v1::PodSandboxStats>| -> Vec<(Of, Numbers)> {
            let all = all.into_iter().filter_map(|one| {
                let measured = numbers("PodSandboxStats", &one);
                let containers = one.linux.unwrap_or_default().containers;
                let containers = containers.into_iter().map(|one| one.attributes);
                Some(((one.attributes?, containers.collect()), measured))
            });
            all.filter(|((of, _), _)| of.id == first.id || of.id == second.id).collect()
        };
        same_measured(what, ours(streamed), ours(listed), |(of, _)| of.id.clone())?;
    }
    Ok(())
}

async fn streamed_metrics_are_the_listed_ones(x: &Context, pod: Pod, id: String) -> Verdict {
    let request = v1::StreamPodSandboxMetricsRequest {};
    let answer = x.client.runtime.clone().stream_pod_sandbox_metrics(request).await;
    let what = "StreamPodSandboxMetrics";
    let streamed = drained(x, what, answer, |one| one.pod_sandbox_metrics).await?;
    let listed = x.client.pod_metrics().await?;
    // The values change; their names do not.
    let names = |all: Vec<v1::PodSandboxMetrics>| -> Vec<(Vec<String>, Vec<String>)> {
        let names = |metrics: &[v1::Metric]| {
            let names = metrics.iter().map(|metric| metric.name.clone());
            names.collect::<compact::Set<String>>()
        };
        let ours = all.into_iter().filter(|one| one.pod_sandbox_id == pod.id);
        ours.map(|one| {
            let of_container = one.container_metrics.iter();
            let of_container = of_container.filter(|metrics| metrics.container_id == id);
            let of_container = of_container.flat_map(|metrics| names(&metrics.metrics));
            (names(&one.metrics).into_iter().collect(), of_container.collect())
        })
        .collect()
    };
    let (streamed, listed) = (names(streamed), names(listed));
    equal(&beside(what), &streamed, &listed)
}
