//! Rules of agreement: calls that tell the same fact tell it alike.

use std::collections::BTreeSet;

use cri::v1;
use cri::v1::{ContainerEventType, ContainerFilter, ContainerState, PodSandboxFilter};

use super::event::{events_of, kind, subscribe};
use super::limits::some_limits;
use super::listing::{two_containers, two_pods};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, equal, failed};
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-AGR-001",
        severity: Severity::Must,
        says: "ListPodSandbox and PodSandboxStatus say the same of a sandbox, while it is ready and after it was stopped.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ListPodSandbox", "PodSandboxStatus"],
        faults: &[
            "ListPodSandbox set items.runtime_handler \"other\"",
            "PodSandboxStatus set status.labels.more \"1\"",
            "ListPodSandbox set items.annotations.more \"1\"",
            "ListPodSandbox drop items.metadata.attempt",
            "PodSandboxStatus after 1 set status.state \"SANDBOX_READY\"",
            "PodSandboxStatus after 1 set status.created_at 1500000000000000000",
        ],
        body: |x| Box::pin(sandbox_list_agrees_with_status(x)),
    },
    Rule {
        id: "CRI-AGR-002",
        severity: Severity::Must,
        says: "ListContainers and ContainerStatus say the same of a container, while it is created, runs and has exited.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ListContainers", "ContainerStatus"],
        faults: &[
            "ListContainers drop containers.created_at",
            "ListContainers drop containers.metadata.attempt",
            "ContainerStatus set status.labels.more \"1\"",
            "ListContainers set containers.annotations.more \"1\"",
            "ListContainers after 2 set containers.state \"CONTAINER_RUNNING\"",
            "ContainerStatus after 1 set status.created_at 1500000000000000000",
        ],
        body: |x| Box::pin(container_list_agrees_with_status(x)),
    },
    Rule {
        id: "CRI-AGR-003",
        severity: Severity::Should,
        says: "The statuses of containers in PodSandboxStatus are those of ContainerStatus.",
        source: API,
        tags: &["kubelet", "evented-pleg", "agreement"],
        calls: &["PodSandboxStatus", "ContainerStatus"],
        faults: &[
            "PodSandboxStatus drop containers_statuses.log_path",
            "PodSandboxStatus drop containers_statuses.image_ref",
            "PodSandboxStatus set containers_statuses.exit_code 9",
            "PodSandboxStatus set containers_statuses.finished_at 1",
            "PodSandboxStatus drop containers_statuses.mounts.readonly",
            "PodSandboxStatus drop containers_statuses.metadata.attempt",
            "PodSandboxStatus set containers_statuses.metadata.name \"c\"",
            "PodSandboxStatus set containers_statuses [{\"id\": \"none\"}]",
        ],
        body: |x| Box::pin(statuses_in_sandbox_status_agree(x)),
    },
    Rule {
        id: "CRI-AGR-004",
        severity: Severity::Should,
        says: "The statuses in the event of a container's end are those of PodSandboxStatus and ContainerStatus.",
        source: KUBELET,
        tags: &["kubelet", "evented-pleg", "agreement"],
        calls: &["GetContainerEvents", "PodSandboxStatus", "ContainerStatus"],
        faults: &[
            "GetContainerEvents drop pod_sandbox_status.network",
            "GetContainerEvents drop pod_sandbox_status.metadata.uid",
            "GetContainerEvents drop containers_statuses.finished_at",
            "GetContainerEvents drop containers_statuses.labels",
            "GetContainerEvents drop containers_statuses.mounts",
            "GetContainerEvents drop pod_sandbox_status.metadata.attempt",
        ],
        body: |x| Box::pin(statuses_in_event_agree(x)),
    },
    Rule {
        id: "CRI-AGR-005",
        severity: Severity::Must,
        says: "The attributes in ContainerStats are those of ListContainers.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ContainerStats", "ListContainers"],
        faults: &[
            "ContainerStats drop stats.attributes.annotations",
            "ContainerStats set stats.attributes.labels.more \"1\"",
            "ContainerStats set stats.attributes.metadata.attempt 7",
        ],
        body: |x| Box::pin(attributes_of_container_stats_agree(x)),
    },
    Rule {
        id: "CRI-AGR-006",
        severity: Severity::Should,
        says: "The attributes in ListPodSandboxStats are those of ListPodSandbox.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ListPodSandboxStats", "ListPodSandbox"],
        faults: &[
            "ListPodSandboxStats drop stats.attributes.labels",
            "ListPodSandboxStats drop stats.attributes.annotations",
            "ListPodSandboxStats set stats.attributes.metadata.namespace \"other\"",
        ],
        body: |x| Box::pin(attributes_of_sandbox_stats_agree(x)),
    },
    Rule {
        id: "CRI-AGR-007",
        severity: Severity::Must,
        says: "What is stopped or removed is so in the very next list and status: no answer is an old one.",
        source: KUBELET,
        tags: &["kubelet", "agreement", "state"],
        calls: &[
            "ListContainers",
            "ListPodSandbox",
            "StopContainer",
            "RemoveContainer",
            "StopPodSandbox",
            "RemovePodSandbox",
        ],
        faults: &[
            "StopContainer swallow",
            "RemoveContainer swallow",
            "StopPodSandbox swallow",
            "RemovePodSandbox swallow",
            "ListContainers drop containers",
            "ListPodSandbox after 1 drop items",
        ],
        body: |x| Box::pin(answers_are_of_now(x)),
    },
    Rule {
        id: "CRI-AGR-008",
        severity: Severity::Must,
        says: "Each sandbox, container and image is once in its list.",
        source: KUBELET,
        tags: &["kubelet", "agreement"],
        calls: &["ListPodSandbox", "ListContainers", "ListImages"],
        faults: &[
            "ListPodSandbox set items.id \"same\"",
            "ListContainers set containers.id \"same\"",
            "ListImages set images [{\"id\": \"same\"}, {\"id\": \"same\"}]",
        ],
        body: |x| Box::pin(lists_have_no_duplicates(x)),
    },
];

/// A pod whose labels, annotations and attempt are not the default ones.
async fn particular_pod(x: &Context) -> Verdict<Pod> {
    let mut config = x.sandbox();
    config.metadata.get_or_insert_default().attempt = 2;
    config.labels.insert("colour".to_owned(), "red".to_owned());
    x.pod_of(config).await
}

/// The configuration of a container with annotations and an attempt that are not the default ones.
fn particular(x: &Context) -> v1::ContainerConfig {
    let mut config = x.forever("c");
    config.metadata.get_or_insert_default().attempt = 2;
    let note = ("note".to_owned(), "of the container".to_owned());
    config.annotations.extend([note]);
    config
}

/// A container that exits with 3, and has something in each field of its status.
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

/// How a container is named in the list differs among runtimes: image and image_ref are not compared.
async fn containers_agree(x: &Context, id: &str) -> Verdict {
    let status = x.client.container(id).await?;
    let Some(listed) = x.listed_container(id).await? else {
        return failed(
            "the container in ListContainers",
            "to be there",
            "it is not",
        );
    };
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

async fn container_list_agrees_with_status(x: &Context) -> Verdict {
    let pod = x.pod().await?;
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
    let id = pod.start(rich(x)?).await?;
    let other = pod.start(x.forever("d")).await?;
    let mut alone = vec![x.exited(&id).await?, x.client.container(&other).await?];
    let mut answer = x.client.pod(&pod.id).await?;
    if answer.containers_statuses.is_empty() && answer.timestamp == 0 {
        return Err(Outcome::Unsupported(
            "PodSandboxStatus has neither the statuses of containers nor their time".to_owned(),
        ));
    }
    for statuses in [&mut alone, &mut answer.containers_statuses] {
        statuses.sort_by(|one, other| one.id.cmp(&other.id));
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
        return failed("the event of the container's end", "to come", "it did not");
    };
    equal(
        "pod_sandbox_status in the event",
        &event.pod_sandbox_status,
        &Some(sandbox),
    )?;
    equal(
        "containers_statuses in the event",
        &event.containers_statuses,
        &vec![status],
    )
}

async fn attributes_of_container_stats_agree(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.start(particular(x)).await?;
    x.logged(&pod, "ready").await?;
    let Some(listed) = x.listed_container(&id).await? else {
        return failed(
            "the container in ListContainers",
            "to be there",
            "it is not",
        );
    };
    let expected = v1::ContainerAttributes {
        id: listed.id,
        metadata: listed.metadata,
        labels: listed.labels,
        annotations: listed.annotations,
    };
    let request = v1::ContainerStatsRequest { container_id: id };
    let answer = x.client.runtime.clone().container_stats(request).await?;
    let seen = answer.into_inner().stats.unwrap_or_default().attributes;
    equal("the attributes in ContainerStats", &seen, &Some(expected))
}

async fn attributes_of_sandbox_stats_agree(x: &Context) -> Verdict {
    let pod = particular_pod(x).await?;
    let Some(listed) = x.listed_pod(&pod.id).await? else {
        return failed("the sandbox in ListPodSandbox", "to be there", "it is not");
    };
    let expected = v1::PodSandboxAttributes {
        id: listed.id,
        metadata: listed.metadata,
        labels: listed.labels,
        annotations: listed.annotations,
    };
    let filter = v1::PodSandboxStatsFilter {
        id: pod.id.clone(),
        ..Default::default()
    };
    let request = v1::ListPodSandboxStatsRequest {
        filter: Some(filter),
    };
    let mut runtime = x.client.runtime.clone();
    let answer = runtime.list_pod_sandbox_stats(request).await;
    let answer = super::statistics::without_cgroup_parent(answer)?.into_inner();
    let seen: Vec<_> = answer.stats.into_iter().map(|one| one.attributes).collect();
    let what = "the attributes in ListPodSandboxStats";
    equal(what, &seen, &vec![Some(expected)])
}

async fn answers_are_of_now(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let listed = x.listed_pod(&pod.id).await?.is_some();
    equal("whether the new sandbox is listed", &listed, &true)?;
    let id = x.running(&pod).await?;
    x.container_is(&id, ContainerState::ContainerRunning)
        .await?;
    x.client.stop(&id, 30).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    x.client.remove(&id).await?;
    let left = x.listed_container(&id).await?;
    equal("the removed container in ListContainers", &left, &None)?;
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, v1::PodSandboxState::SandboxNotready)
        .await?;
    x.client.remove_pod(&pod.id).await?;
    let left = x.listed_pod(&pod.id).await?;
    equal("the removed sandbox in ListPodSandbox", &left, &None)
}

fn no_duplicates(what: &str, all: impl IntoIterator<Item = String>) -> Verdict {
    let mut seen = BTreeSet::new();
    let twice = all.into_iter().find(|id| !seen.insert(id.clone()));
    equal(&format!("an id that is twice in {what}"), &twice, &None)
}

async fn lists_have_no_duplicates(x: &Context) -> Verdict {
    let _pods = two_pods(x).await?;
    let _containers = two_containers(x).await?;
    let all = x
        .client
        .pods(PodSandboxFilter::default())
        .await?
        .into_iter();
    no_duplicates("ListPodSandbox", all.map(|one| one.id))?;
    let all = x
        .client
        .containers(ContainerFilter::default())
        .await?
        .into_iter();
    no_duplicates("ListContainers", all.map(|one| one.id))?;
    let all = x.client.list_images().await?.into_iter();
    no_duplicates("ListImages", all.map(|one| one.id))
}
