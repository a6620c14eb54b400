//! Rules for large messages: a request, a list, and streamed lists, which may exceed one message.

use crate::prelude::*;
use crate::rules::list::is_ours;
use crate::rules::list::streams::drained;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-OPT-010": "A request of 8 MiB is accepted: runtimes have the same message limit as the kubelet, 16 MiB.",
        CONTAINERD, tags ["kubelet", "large"], calls [ListPodSandbox, ListContainers],
        large_request_is_read given [pod], faults [
            "ListPodSandbox answer RESOURCE_EXHAUSTED",
            "ListContainers answer OUT_OF_RANGE",
            "ListContainers request drop filter",
        ];
    Should "CRI-OPT-011": "ListContainers returns every container even if the response exceeds 4 MiB, the default limit of gRPC clients: the kubelet accepts 16 MiB.",
        KUBELET, tags ["kubelet", "large", ALONE], calls [ListContainers],
        large_list_is_whole given [pod], faults [
            "ListContainers answer RESOURCE_EXHAUSTED",
            "ListContainers drop containers.annotations",
        ];
    Should "CRI-OPT-012": "The streaming list calls, such as StreamContainers, return complete lists even if a list exceeds 1 MiB.",
        API, tags ["large", "agreement", "stream", ALONE], calls [StreamPodSandboxes, StreamContainers, StreamContainerStats, StreamPodSandboxStats],
        large_streams_are_whole, faults [
            "StreamPodSandboxes lose",
            "StreamPodSandboxes message 2.. lose",
            "StreamContainers message 2.. lose",
            "StreamContainers drop containers.annotations",
            "StreamContainerStats message 2.. lose",
            "StreamPodSandboxStats lose",
        ];
};

async fn large_request_is_read(x: &Context, pod: Pod) -> Verdict {
    pod.create(x.forever("c")).await?;
    let no_one = || [("no-such-label".to_owned(), "x".repeat(8 << 20))].into();
    let pods =
        x.client.pods(v1::PodSandboxFilter { label_selector: no_one(), ..Default::default() });
    let found = pods.await?.into_iter().map(|pod| pod.id);
    let none: &[String] = &[];
    let what = "the sandboxes with an unused label";
    equal(what, found.collect::<Vec<_>>().as_slice(), none)?;
    let containers =
        x.client.containers(v1::ContainerFilter { label_selector: no_one(), ..Default::default() });
    let found = containers.await?.into_iter().map(|container| container.id);
    let what = "the containers with an unused label";
    equal(what, found.collect::<Vec<_>>().as_slice(), none)
}

/// Kubernetes accepts annotations of 256 KiB in total (ValidateAnnotations).
const ANNOTATION: usize = 240 << 10;

fn annotate(annotations: &mut std::collections::HashMap<String, String>) {
    annotations.insert("large".to_owned(), "x".repeat(ANNOTATION));
}

/// An id, and the size of the object's annotations.
type Found = (String, usize);

fn sized(id: &str, annotations: &std::collections::HashMap<String, String>) -> Found {
    let sizes = annotations.get("large").map_or(0, String::len);
    (id.to_owned(), sizes)
}

fn in_order(items: impl IntoIterator<Item = Found>) -> Vec<Found> {
    let mut items: Vec<_> = items.into_iter().collect();
    items.sort();
    items
}

async fn large_list_is_whole(x: &Context, pod: Pod) -> Verdict {
    const COUNT: usize = 18;
    let mut expected = Vec::new();
    for number in 0..COUNT {
        let mut config = x.forever(&format!("c{number}"));
        annotate(&mut config.annotations);
        expected.push((pod.create(config).await?, ANNOTATION));
    }
    let filter = v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let listed = x.client.containers(filter).await?;
    let listed = listed.iter().map(|one| sized(&one.id, &one.annotations));
    let what = "the containers in ListContainers, and the size of their annotations";
    equal(what, &in_order(listed), &in_order(expected))
}

/// Runs a pod with a container; both have large annotations.
async fn annotated(x: &Context) -> Verdict<(String, String)> {
    let mut config = x.sandbox();
    annotate(&mut config.annotations);
    let pod = x.pod_of(config).await?;
    let mut config = x.forever("c");
    annotate(&mut config.annotations);
    let id = x.start_ready(&pod, config).await?;
    Ok((pod.id, id))
}

async fn large_streams_are_whole(x: &Context) -> Verdict {
    const COUNT: usize = 5;
    // A runtime without streamed lists fails here, before pods are created.
    let mut runtime = x.client.runtime.clone();
    let request = v1::StreamPodSandboxesRequest::default();
    runtime.stream_pod_sandboxes(request).await?;

    let (mut pods, mut containers) = (Vec::new(), Vec::new());
    for _ in 0..COUNT {
        let (pod, container) = annotated(x).await?;
        pods.push((pod, ANNOTATION));
        containers.push((container, ANNOTATION));
    }
    let (pods, containers) = (in_order(pods), in_order(containers));
    let subject = |call: &str| format!("the objects in {call}, and the size of their annotations");

    let what = "StreamPodSandboxes";
    let request = v1::StreamPodSandboxesRequest::default();
    let answer = runtime.stream_pod_sandboxes(request).await;
    let streamed = drained(x, what, answer, |one| one.pod_sandboxes).await?;
    let ours = streamed.iter().filter(|pod| is_ours(x, &pod.labels));
    let ours = in_order(ours.map(|pod| sized(&pod.id, &pod.annotations)));
    equal(&subject(what), &ours, &pods)?;

    let what = "StreamContainers";
    let request = v1::StreamContainersRequest::default();
    let answer = runtime.stream_containers(request).await;
    let streamed = drained(x, what, answer, |one| one.containers).await?;
    let ours = streamed.iter().filter(|one| is_ours(x, &one.labels));
    let ours = in_order(ours.map(|one| sized(&one.id, &one.annotations)));
    equal(&subject(what), &ours, &containers)?;

    let what = "StreamContainerStats";
    let request = v1::StreamContainerStatsRequest::default();
    let answer = runtime.stream_container_stats(request).await;
    let streamed = drained(x, what, answer, |one| one.container_stats).await?;
    let ours = streamed.iter().filter_map(|one| one.attributes.as_ref());
    let ours = ours.filter(|one| is_ours(x, &one.labels));
    let ours = in_order(ours.map(|one| sized(&one.id, &one.annotations)));
    equal(&subject(what), &ours, &containers)?;

    let what = "StreamPodSandboxStats";
    let request = v1::StreamPodSandboxStatsRequest::default();
    let answer = without_cgroup_parent(runtime.stream_pod_sandbox_stats(request).await)?;
    let streamed = drained(x, what, Ok(answer), |one| one.pod_sandbox_stats).await?;
    let ours = streamed.iter().filter_map(|one| one.attributes.as_ref());
    let ours = ours.filter(|one| is_ours(x, &one.labels));
    let ours = in_order(ours.map(|one| sized(&one.id, &one.annotations)));
    equal(&subject(what), &ours, &pods)
}
