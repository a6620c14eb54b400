//! Rules of agreement between calls that report the same data.

use compact::Set;
use cri::v1::{ContainerEventType, ContainerFilter, PodSandboxFilter};

use crate::prelude::*;
use crate::rules::event::{events_of, kind, subscribe};
use crate::rules::limits::some_limits;
use crate::rules::list::{two_containers, two_pods};
use crate::rules::sandbox::handlers::pod_of_other_handler;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-AGR-001": "ListPodSandbox and PodSandboxStatus report the same data for a sandbox, both while it is ready and after it is stopped.",
        KUBELET, tags ["kubelet", "agreement"], calls [ListPodSandbox, PodSandboxStatus],
        sandbox_list_agrees_with_status, faults [
            "ListPodSandbox set items.runtime_handler \"other\"",
            "PodSandboxStatus set status.labels.more \"1\"",
            "ListPodSandbox set items.annotations.more \"1\"",
            "ListPodSandbox drop items.metadata.attempt",
            "PodSandboxStatus after 1 set status.state \"SANDBOX_READY\"",
            "PodSandboxStatus after 1 set status.created_at 1500000000000000000",
        ];
    Must "CRI-AGR-002": "ListContainers and ContainerStatus report the same data for a container while it is created, running and exited.",
        KUBELET, tags ["kubelet", "agreement"], calls [ListContainers, ContainerStatus],
        container_list_agrees_with_status given [pod], faults [
            "ListContainers drop containers.created_at",
            "ListContainers drop containers.metadata.attempt",
            "ContainerStatus set status.labels.more \"1\"",
            "ListContainers set containers.annotations.more \"1\"",
            "ListContainers after 2 set containers.state \"CONTAINER_RUNNING\"",
            "ContainerStatus after 1 set status.created_at 1500000000000000000",
        ];
    Should "CRI-AGR-003": "PodSandboxStatus returns the same status of each container as ContainerStatus, in every container state, and omits removed containers.",
        API, tags ["kubelet", "evented-pleg", "agreement"], calls [PodSandboxStatus, ContainerStatus],
        statuses_in_sandbox_status_agree, faults [
            "RemoveContainer swallow",
            "PodSandboxStatus drop containers_statuses.log_path",
            "PodSandboxStatus drop containers_statuses.image_ref",
            "PodSandboxStatus set containers_statuses.exit_code 9",
            "PodSandboxStatus set containers_statuses.finished_at 1",
            "PodSandboxStatus drop containers_statuses.mounts.readonly",
            "PodSandboxStatus drop containers_statuses.metadata.attempt",
            "PodSandboxStatus set containers_statuses.metadata.name \"c\"",
            "PodSandboxStatus set containers_statuses [{\"id\": \"none\"}]",
        ];
    Should "CRI-AGR-004": "The statuses in a container's CONTAINER_STOPPED_EVENT match PodSandboxStatus and ContainerStatus.",
        KUBELET, tags ["kubelet", "evented-pleg", "agreement"], calls [GetContainerEvents, PodSandboxStatus, ContainerStatus],
        statuses_in_event_agree, faults [
            "GetContainerEvents drop pod_sandbox_status.network",
            "GetContainerEvents drop pod_sandbox_status.metadata.uid",
            "GetContainerEvents drop containers_statuses.finished_at",
            "GetContainerEvents drop containers_statuses.labels",
            "GetContainerEvents drop containers_statuses.mounts",
            "GetContainerEvents drop pod_sandbox_status.metadata.attempt",
        ];
    Must "CRI-AGR-005": "ContainerStats and ListContainers report the same attributes of a container.",
        KUBELET, tags ["kubelet", "agreement"], calls [ContainerStats, ListContainers],
        attributes_of_container_stats_agree given [pod], faults [
            "ContainerStats drop stats.attributes.annotations",
            "ContainerStats set stats.attributes.labels.more \"1\"",
            "ContainerStats set stats.attributes.metadata.attempt 7",
        ];
    Should "CRI-AGR-006": "ListPodSandboxStats and ListPodSandbox report the same attributes of a sandbox.",
        KUBELET, tags ["kubelet", "agreement"], calls [ListPodSandboxStats, ListPodSandbox],
        attributes_of_sandbox_stats_agree, faults [
            "ListPodSandboxStats drop stats.attributes.labels",
            "ListPodSandboxStats drop stats.attributes.annotations",
            "ListPodSandboxStats set stats.attributes.metadata.namespace \"other\"",
        ];
    Must "CRI-AGR-007": "Lists and statuses are up to date as soon as a stop or remove call returns.",
        KUBELET, tags ["kubelet", "agreement", "state"], calls [ListContainers, ListPodSandbox, StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox],
        answers_are_current given [pod], faults [
            "StopContainer swallow",
            "RemoveContainer swallow",
            "StopPodSandbox swallow",
            "RemovePodSandbox swallow",
            "ListContainers drop containers",
            "ListPodSandbox after 1 drop items",
        ];
    Must "CRI-AGR-008": "ListPodSandbox, ListContainers and ListImages return each sandbox, container or image once.",
        KUBELET, tags ["kubelet", "agreement"], calls [ListPodSandbox, ListContainers, ListImages],
        lists_have_no_duplicates, faults [
            "ListPodSandbox set items.id \"same\"",
            "ListContainers set containers.id \"same\"",
            "ListImages set images [{\"id\": \"same\"}, {\"id\": \"same\"}]",
        ];
};

/// A pod with non-default labels, annotations, attempt and, if the runtime has another one, runtime handler.
async fn particular_pod(x: &Context) -> Verdict<Pod> {
    let mut config = x.sandbox();
    config.metadata.get_or_insert_default().attempt = 2;
    config.labels.insert("colour".to_owned(), "red".to_owned());
    match pod_of_other_handler(x, &config).await? {
        Some((pod, _)) => Ok(pod),
        None => x.pod_of(config).await,
    }
}

/// The configuration of a container with annotations and a non-default attempt.
fn particular(x: &Context) -> v1::ContainerConfig {
    let mut config = x.forever("c");
    config.metadata.get_or_insert_default().attempt = 2;
    let note = ("note".to_owned(), "of the container".to_owned());
    config.annotations.extend([note]);
    config
}

/// A container that exits with 3 and sets every field of its status.
fn rich(x: &Context) -> Verdict<v1::ContainerConfig> {
    let mut config = x.script("c", "echo said; exit 3");
    config.metadata.get_or_insert_default().attempt = 2;
    let note = ("note".to_owned(), "of the container".to_owned());
    config.annotations.extend([note]);
    // Without namespaces nothing can be mounted.
    if x.needs_namespaces().is_ok() {
        let directory = x.shared.directory.join(x.unique("mount"));
        std::fs::create_dir_all(&directory)
            .map_err(|error| Outcome::Skipped(format!("no directory to mount: {error}")))?;
        config.mounts.push(v1::Mount {
            host_path: directory.display().to_string(),
            container_path: "/tmp/mounted".to_owned(),
            readonly: true,
            ..Default::default()
        });
    }
    Ok(match x.needs_limits() {
        Ok(()) => some_limits(config),
        Err(_) => config,
    })
}

async fn sandboxes_agree(x: &Context, pod: &Pod) -> Verdict {
    let status = x.pod_status(&pod.id).await?;
    let expected = v1::PodSandbox {
        id: status.id.clone(),
        metadata: status.metadata.clone(),
        state: status.state,
        created_at: status.created_at,
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
        runtime_handler: status.runtime_handler.clone(),
    };
    let listed = x.listed_pod(&pod.id).await?;
    equal("the sandbox in ListPodSandbox", &listed, &Some(expected))
}

async fn sandbox_list_agrees_with_status(x: &Context) -> Verdict {
    let pod = particular_pod(x).await?;
    let before = x.pod_status(&pod.id).await?;
    sandboxes_agree(x, &pod).await?;
    x.client.stop_pod(&pod.id).await?;
    sandboxes_agree(x, &pod).await?;
    let after = x.pod_status(&pod.id).await?.created_at;
    equal("created_at after the stop", &after, &before.created_at)
}

/// Runtimes differ in image and image_ref of the list, so these are not compared.
async fn containers_agree(x: &Context, id: &str) -> Verdict {
    let status = x.client.container(id).await?;
    let listed = x.listed_container(id).await?;
    let listed = present(listed, "the container in ListContainers", "to be listed", "not listed")?;
    let expected = v1::Container {
        id: status.id,
        metadata: status.metadata,
        state: status.state,
        created_at: status.created_at,
        labels: status.labels,
        annotations: status.annotations,
        image_id: status.image_id,
        pod_sandbox_id: listed.pod_sandbox_id.clone(),
        image: listed.image.clone(),
        image_ref: listed.image_ref.clone(),
    };
    equal("the container in ListContainers", &listed, &expected)
}

async fn container_list_agrees_with_status(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(particular(x)).await?;
    containers_agree(x, &id).await?;
    x.client.start(&id).await?;
    x.logged(&pod, "ready").await?;
    containers_agree(x, &id).await?;
    x.client.stop(&id, 30).await?;
    containers_agree(x, &id).await
}

async fn statuses_in_sandbox_status_agree(x: &Context) -> Verdict {
    let pod = particular_pod(x).await?;
    let removed = pod.start(x.forever("e")).await?;
    let id = pod.start(rich(x)?).await?;
    let other = pod.start(x.forever("d")).await?;
    let created = pod.create(x.forever("f")).await?;
    x.client.remove(&removed).await?;
    let mut alone = vec![x.exited(&id).await?];
    for id in [&other, &created] {
        alone.push(x.client.container(id).await?);
    }
    let mut answer = x.client.pod(&pod.id).await?;
    if answer.containers_statuses.is_empty() && answer.timestamp == 0 {
        return unsupported("PodSandboxStatus has neither container statuses nor their timestamp");
    }
    for statuses in [&mut alone, &mut answer.containers_statuses] {
        compact::sort_by(statuses, |one, other| one.id.cmp(&other.id));
    }
    let what = "containers_statuses in PodSandboxStatus";
    equal(what, &answer.containers_statuses, &alone)
}

async fn statuses_in_event_agree(x: &Context) -> Verdict {
    let subscription = subscribe(x).await?;
    let pod = particular_pod(x).await?;
    let id = pod.start(rich(x)?).await?;
    let status = x.exited(&id).await?;
    let sandbox = x.pod_status(&pod.id).await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let events = events_of(x, subscription, &[&pod.id, &id]).await?;
    let stopped = (id.clone(), ContainerEventType::ContainerStoppedEvent);
    let Some(event) = events.into_iter().find(|event| kind(event) == stopped) else {
        return failed("CONTAINER_STOPPED_EVENT of the container", "to arrive", "no event");
    };
    equal("pod_sandbox_status in the event", &event.pod_sandbox_status, &Some(sandbox))?;
    equal("containers_statuses in the event", &event.containers_statuses, &vec![status])
}

async fn attributes_of_container_stats_agree(x: &Context, pod: Pod) -> Verdict {
    let id = x.start_ready(&pod, particular(x)).await?;
    let listed = x.listed_container(&id).await?;
    let listed = present(listed, "the container in ListContainers", "to be listed", "not listed")?;
    let expected = v1::ContainerAttributes {
        id: listed.id,
        metadata: listed.metadata,
        labels: listed.labels,
        annotations: listed.annotations,
    };
    let seen = x.client.container_stats(&id).await?.attributes;
    equal("the attributes in ContainerStats", &seen, &Some(expected))
}

async fn attributes_of_sandbox_stats_agree(x: &Context) -> Verdict {
    let pod = particular_pod(x).await?;
    let listed = x.listed_pod(&pod.id).await?;
    let listed = present(listed, "the sandbox in ListPodSandbox", "to be listed", "not listed")?;
    let expected = v1::PodSandboxAttributes {
        id: listed.id,
        metadata: listed.metadata,
        labels: listed.labels,
        annotations: listed.annotations,
    };
    let filter = v1::PodSandboxStatsFilter { id: pod.id.clone(), ..Default::default() };
    let all = without_cgroup_parent(x.client.list_pod_stats(filter).await)?;
    let seen: Vec<_> = all.into_iter().map(|one| one.attributes).collect();
    let what = "the attributes in ListPodSandboxStats";
    equal(what, &seen, &vec![Some(expected)])
}

async fn answers_are_current(x: &Context, pod: Pod) -> Verdict {
    let listed = x.listed_pod(&pod.id).await?.is_some();
    equal("whether the new sandbox is listed", &listed, &true)?;
    let id = x.running(&pod).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    x.client.stop(&id, 30).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    x.client.remove(&id).await?;
    let left = x.listed_container(&id).await?;
    equal("the removed container in ListContainers", &left, &None)?;
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await?;
    x.client.remove_pod(&pod.id).await?;
    let left = x.listed_pod(&pod.id).await?;
    equal("the removed sandbox in ListPodSandbox", &left, &None)
}

fn no_duplicates(what: &str, all: impl IntoIterator<Item = String>) -> Verdict {
    let mut seen = Set::new();
    let twice = all.into_iter().find(|id| !seen.insert(id.clone()));
    equal(&format!("a duplicate id in {what}"), &twice, &None)
}

async fn lists_have_no_duplicates(x: &Context) -> Verdict {
    let _pods = two_pods(x).await?;
    let _containers = two_containers(x).await?;
    let all = x.client.pods(PodSandboxFilter::default()).await?.into_iter();
    no_duplicates("ListPodSandbox", all.map(|one| one.id))?;
    let all = x.client.containers(ContainerFilter::default()).await?.into_iter();
    no_duplicates("ListContainers", all.map(|one| one.id))?;
    let all = x.client.list_images().await?.into_iter();
    no_duplicates("ListImages", all.map(|one| one.id))
}
