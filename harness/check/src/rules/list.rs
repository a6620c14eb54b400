//! Rules of lists: filters.

pub(crate) mod churn;
pub(crate) mod exact_matches;
pub(crate) mod members;
pub(crate) mod streams;

use compact::Set;
use cri::v1::{ContainerFilter, PodSandboxFilter};

use crate::context::{RULE_LABEL, RUN_LABEL};
use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-040": "ListPodSandbox filtered by id returns only the sandbox with that id.",
        CRITEST, tags ["kubelet", "filter"], calls [ListPodSandbox],
        sandboxes_are_filtered_by_id, faults [
            "ListPodSandbox request drop filter.id",
            "ListPodSandbox drop items",
        ];
    Must "CRI-SBX-041": "ListPodSandbox filtered by state returns the sandboxes in that state.",
        CRIO, tags ["kubelet", "filter"], calls [ListPodSandbox],
        sandboxes_are_filtered_by_state, faults ["ListPodSandbox request drop filter.state"];
    Must "CRI-SBX-042": "ListPodSandbox filtered by labels returns the sandboxes that have all of these labels.",
        CRIO, tags ["kubelet", "filter"], calls [ListPodSandbox],
        sandboxes_are_filtered_by_labels, faults [
            "ListPodSandbox request drop filter.label_selector",
            "ListPodSandbox request drop filter.label_selector.colour",
        ];
    Must "CRI-CTR-040": "ListContainers filtered by id returns only the container with that id.",
        CRITEST, tags ["kubelet", "filter"], calls [ListContainers],
        containers_are_filtered_by_id, faults [
            "ListContainers request drop filter.id",
            "ListContainers drop containers",
        ];
    Must "CRI-CTR-041": "ListContainers filtered by state returns the containers in that state.",
        CRIO, tags ["kubelet", "filter"], calls [ListContainers],
        containers_are_filtered_by_state, faults [
            "ListContainers request drop filter.state",
            "ListContainers if request.filter.state.state == \"CONTAINER_EXITED\" drop containers",
        ];
    Must "CRI-CTR-042": "ListContainers filtered by sandbox returns the containers of that sandbox.",
        CRIO, tags ["kubelet", "filter"], calls [ListContainers],
        containers_are_filtered_by_sandbox, faults ["ListContainers request drop filter.pod_sandbox_id"];
    Must "CRI-CTR-043": "ListContainers filtered by labels returns the containers that have all of these labels.",
        CRIO, tags ["kubelet", "filter"], calls [ListContainers],
        containers_are_filtered_by_labels, faults [
            "ListContainers request drop filter.label_selector",
            "ListContainers request drop filter.label_selector.colour",
        ];
    Must "CRI-SBX-044": "ListPodSandbox returns the sandboxes that match every field of the filter; an empty result is not an error.",
        CRIO, tags ["kubelet", "filter"], calls [ListPodSandbox],
        parts_of_sandbox_filter_are_all_met, faults [
            "ListPodSandbox if request.filter.id != \"\" request drop filter.state",
            "ListPodSandbox request drop filter.id",
            "ListPodSandbox if request.filter.id != \"\" request drop filter.label_selector",
            "ListPodSandbox after 1 answer NOT_FOUND",
            "ListPodSandbox if request.filter.id == \"\" and request.filter.state != null request drop filter.label_selector",
        ];
    Must "CRI-CTR-045": "ListContainers returns the containers that match every field of the filter; an empty result is not an error.",
        CRIO, tags ["kubelet", "filter"], calls [ListContainers],
        parts_of_container_filter_are_all_met, faults [
            "ListContainers if request.filter.id != \"\" request drop filter.state",
            "ListContainers request drop filter.id",
            "ListContainers if request.filter.id != \"\" request drop filter.pod_sandbox_id",
            "ListContainers if request.filter.id != \"\" request drop filter.label_selector",
            "ListContainers after 1 answer NOT_FOUND",
            "ListContainers if request.filter.id == \"\" and request.filter.state != null request drop filter.pod_sandbox_id",
            "ListContainers if request.filter.id == \"\" and request.filter.pod_sandbox_id != \"\" request drop filter.label_selector",
        ];
    Should "CRI-CTR-046": "List and status calls accept ids of containers and sandboxes truncated to 13 characters, as crictl shows them.",
        CONTAINERD, tags ["crictl", "names"], calls [ListContainers, ContainerStatus, ListPodSandbox, PodSandboxStatus],
        id_prefix_is_accepted_in_filters, faults [
            "ContainerStatus answer NOT_FOUND",
            "PodSandboxStatus answer NOT_FOUND",
            "ListContainers drop containers",
            "ListPodSandbox request drop filter.id",
        ];
};

/// The ids of this rule's sandboxes in the list.
pub(crate) async fn pods(x: &Context, filter: PodSandboxFilter) -> Verdict<Set<String>> {
    let all = x.client.pods(filter).await?.into_iter();
    let ours = all.filter(|pod| is_ours(x, &pod.labels));
    Ok(ours.map(|pod| pod.id).collect())
}

pub(crate) async fn containers(x: &Context, filter: ContainerFilter) -> Verdict<Set<String>> {
    let all = x.client.containers(filter).await?.into_iter();
    let ours = all.filter(|container| is_ours(x, &container.labels));
    Ok(ours.map(|container| container.id).collect())
}

/// Other clients use the runtime, too: only this rule's objects are compared.
pub(crate) fn is_ours(x: &Context, labels: &std::collections::HashMap<String, String>) -> bool {
    labels.get(RUN_LABEL) == Some(&x.shared.run)
        && labels.get(RULE_LABEL).is_some_and(|rule| rule == x.rule)
}

pub(crate) fn ids<'a>(all: impl IntoIterator<Item = &'a String>) -> Set<String> {
    all.into_iter().cloned().collect()
}

pub(crate) fn colour(
    labels: &mut std::collections::HashMap<String, String>,
    colour: &str,
    size: &str,
) {
    labels.insert("colour".to_owned(), colour.to_owned());
    labels.insert("size".to_owned(), size.to_owned());
}

pub(crate) async fn two_pods(x: &Context) -> Verdict<[Pod; 2]> {
    let mut first = x.sandbox();
    colour(&mut first.labels, "red", "small");
    let mut second = x.sandbox();
    colour(&mut second.labels, "blue", "small");
    Ok([x.pod_of(first).await?, x.pod_of(second).await?])
}

pub(crate) async fn two_containers(x: &Context) -> Verdict<(Pod, [String; 2])> {
    let pod = x.pod().await?;
    let mut first = x.forever("c");
    colour(&mut first.labels, "red", "small");
    let note = ("note".to_owned(), "of the first".to_owned());
    first.annotations.extend([note]);
    let mut second = x.forever("d");
    colour(&mut second.labels, "blue", "small");
    let both = [pod.create(first).await?, pod.create(second).await?];
    Ok((pod, both))
}

async fn sandboxes_are_filtered_by_id(x: &Context) -> Verdict {
    let [first, _] = two_pods(x).await?;
    let filter = PodSandboxFilter { id: first.id.clone(), ..Default::default() };
    equal("ListPodSandbox by id", &pods(x, filter).await?, &ids([&first.id]))
}

async fn sandboxes_are_filtered_by_state(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    x.client.stop_pod(&second.id).await?;
    for (state, expected) in
        [(PodSandboxState::SandboxReady, &first.id), (PodSandboxState::SandboxNotready, &second.id)]
    {
        let filter = PodSandboxFilter {
            state: Some(v1::PodSandboxStateValue { state: state.into() }),
            ..Default::default()
        };
        let what = format!("ListPodSandbox by {}", state.as_str_name());
        equal(&what, &pods(x, filter).await?, &ids([expected]))?;
    }
    Ok(())
}

async fn sandboxes_are_filtered_by_labels(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    let filter = |pairs: &[(&str, &str)]| PodSandboxFilter {
        label_selector: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..Default::default()
    };
    let both = filter(&[("size", "small")]);
    equal("ListPodSandbox by one label", &pods(x, both).await?, &ids([&first.id, &second.id]))?;
    let red = filter(&[("size", "small"), ("colour", "red")]);
    equal("ListPodSandbox by two labels", &pods(x, red).await?, &ids([&first.id]))?;
    let none = filter(&[("size", "large"), ("colour", "red")]);
    equal("ListPodSandbox by labels that no sandbox has", &pods(x, none).await?, &ids([]))
}

async fn containers_are_filtered_by_id(x: &Context) -> Verdict {
    let (_pod, [first, _]) = two_containers(x).await?;
    let filter = ContainerFilter { id: first.clone(), ..Default::default() };
    equal("ListContainers by id", &containers(x, filter).await?, &ids([&first]))
}

async fn containers_are_filtered_by_state(x: &Context) -> Verdict {
    let (pod, [first, second]) = two_containers(x).await?;
    x.client.start(&second).await?;
    let third = pod.start(x.script("third", "exit 0")).await?;
    x.exited(&third).await?;
    for (state, expected) in [
        (ContainerState::ContainerCreated, &first),
        (ContainerState::ContainerRunning, &second),
        (ContainerState::ContainerExited, &third),
    ] {
        let filter = ContainerFilter {
            state: Some(v1::ContainerStateValue { state: state.into() }),
            ..Default::default()
        };
        let what = format!("ListContainers by {}", state.as_str_name());
        equal(&what, &containers(x, filter).await?, &ids([expected]))?;
    }
    Ok(())
}

async fn containers_are_filtered_by_sandbox(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    let in_first = first.create(x.forever("c")).await?;
    second.create(x.forever("c")).await?;
    let filter = ContainerFilter { pod_sandbox_id: first.id.clone(), ..Default::default() };
    equal("ListContainers by sandbox", &containers(x, filter).await?, &ids([&in_first]))
}

async fn containers_are_filtered_by_labels(x: &Context) -> Verdict {
    let (_pod, [first, second]) = two_containers(x).await?;
    let filter = |pairs: &[(&str, &str)]| ContainerFilter {
        label_selector: pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        ..Default::default()
    };
    let both = filter(&[("size", "small")]);
    equal("ListContainers by one label", &containers(x, both).await?, &ids([&first, &second]))?;
    let red = filter(&[("size", "small"), ("colour", "red")]);
    equal("ListContainers by two labels", &containers(x, red).await?, &ids([&first]))?;
    let none = filter(&[("size", "large"), ("colour", "red")]);
    equal("ListContainers by labels that no container has", &containers(x, none).await?, &ids([]))
}

async fn parts_of_sandbox_filter_are_all_met(x: &Context) -> Verdict {
    let [first, second] = two_pods(x).await?;
    let filter = |id: &str, state: PodSandboxState, colour: &str| PodSandboxFilter {
        id: id.to_owned(),
        state: Some(v1::PodSandboxStateValue { state: state.into() }),
        label_selector: [("colour".to_owned(), colour.to_owned())].into(),
    };
    let (ready, not_ready) = (PodSandboxState::SandboxReady, PodSandboxState::SandboxNotready);
    for (what, filter, expected) in [
        ("all matching", filter(&first.id, ready, "red"), ids([&first.id])),
        ("another state", filter(&first.id, not_ready, "red"), ids([])),
        ("another label", filter(&first.id, ready, "blue"), ids([])),
        ("the other one's label", filter(&second.id, ready, "red"), ids([])),
        ("an unknown id", filter("no-such-id", ready, "red"), ids([])),
    ] {
        let what = format!("ListPodSandbox by id, state and label: {what}");
        equal(&what, &pods(x, filter).await?, &expected)?;
    }
    let without_id = filter("", ready, "red");
    equal("ListPodSandbox by state and label", &pods(x, without_id).await?, &ids([&first.id]))
}

async fn parts_of_container_filter_are_all_met(x: &Context) -> Verdict {
    let (pod, [first, second]) = two_containers(x).await?;
    let other = x.pod().await?;
    let filter = |id: &str, pod: &Pod, state: ContainerState, colour: &str| ContainerFilter {
        id: id.to_owned(),
        state: Some(v1::ContainerStateValue { state: state.into() }),
        pod_sandbox_id: pod.id.clone(),
        label_selector: [("colour".to_owned(), colour.to_owned())].into(),
    };
    let (created, exited) = (ContainerState::ContainerCreated, ContainerState::ContainerExited);
    for (what, filter, expected) in [
        ("all matching", filter(&first, &pod, created, "red"), ids([&first])),
        ("another state", filter(&first, &pod, exited, "red"), ids([])),
        ("another sandbox", filter(&first, &other, created, "red"), ids([])),
        ("another label", filter(&first, &pod, created, "blue"), ids([])),
        ("the other one's label", filter(&second, &pod, created, "red"), ids([])),
        ("an unknown id", filter("no-such-id", &pod, created, "red"), ids([])),
    ] {
        let what = format!("ListContainers by id, sandbox, state and label: {what}");
        equal(&what, &containers(x, filter).await?, &expected)?;
    }
    for (what, filter, expected) in [
        ("all matching", filter("", &pod, created, "red"), ids([&first])),
        ("another sandbox", filter("", &other, created, "red"), ids([])),
    ] {
        let what = format!("ListContainers by sandbox, state and label: {what}");
        equal(&what, &containers(x, filter).await?, &expected)?;
    }
    Ok(())
}

/// The length of the ids that crictl shows.
const SHOWN: usize = 13;

async fn id_prefix_is_accepted_in_filters(x: &Context) -> Verdict {
    let (pod, [first, _]) = two_containers(x).await?;
    let short = |id: &str| id.get(..SHOWN).unwrap_or(id).to_owned();
    let filter = ContainerFilter { id: short(&first), ..Default::default() };
    equal("ListContainers", &containers(x, filter).await?, &ids([&first]))?;
    let status = x.client.container(&short(&first)).await?;
    equal("the id in ContainerStatus", &status.id, &first)?;
    let other = x.pod().await?;
    let filter = PodSandboxFilter { id: short(&pod.id), ..Default::default() };
    ensure(other.id != pod.id, "the id of another sandbox", "a different id", &other.id)?;
    equal("ListPodSandbox", &pods(x, filter).await?, &ids([&pod.id]))?;
    let status = x.pod_status(&short(&pod.id)).await?;
    equal("the id in PodSandboxStatus", &status.id, &pod.id)
}
