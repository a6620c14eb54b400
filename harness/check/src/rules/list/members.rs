//! Rules of complete lists: they contain objects in every state and exited ones, but no removed ones.

use std::collections::HashMap;

use cri::v1::{ContainerFilter, ContainerStatsFilter, PodSandboxFilter, PodSandboxStatsFilter};

use crate::prelude::*;
use crate::rules::list::{containers, ids, pods};
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CTR-060": "Without a state filter, ListContainers returns containers in every state until their removal, including containers of stopped pods.",
        KUBELET, tags ["kubelet", "filter", "state"], calls [ListContainers],
        containers_of_every_state_are_listed, faults [
            "ListContainers if request.filter.label_selector[\"colour\"] == \"red\" and request.filter.state == null request set filter.state.state \"CONTAINER_RUNNING\"",
            "ListContainers if request.filter.id != \"\" request set filter.state.state \"CONTAINER_RUNNING\"",
            "ListContainers if request.filter.pod_sandbox_id != \"\" request set filter.state.state \"CONTAINER_EXITED\"",
            "ListContainers if request.filter.id == \"\" and request.filter.pod_sandbox_id == \"\" request set filter.state.state \"CONTAINER_EXITED\"",
            "ListContainers request drop filter.state",
            "ListContainers after 6 stale",
            "RemoveContainer swallow",
            "RemovePodSandbox swallow",
        ];
    Must "CRI-SBX-060": "Without a state filter, ListPodSandbox returns ready and not-ready sandboxes until their removal.",
        KUBELET, tags ["kubelet", "filter", "state"], calls [ListPodSandbox],
        sandboxes_of_every_state_are_listed, faults [
            "ListPodSandbox if request.filter.id != \"\" request set filter.state.state \"SANDBOX_READY\"",
            "ListPodSandbox if request.filter.label_selector[\"colour\"] == \"red\" request set filter.state.state \"SANDBOX_READY\"",
            "ListPodSandbox if request.filter.id == \"\" request set filter.state.state \"SANDBOX_NOTREADY\"",
            "ListPodSandbox stale",
            "RemovePodSandbox swallow",
        ];
    Must "CRI-STA-040": "With any filter, ListContainerStats returns each matching running container once, and no removed container.",
        API, tags ["kubelet", "filter", "state"], calls [ListContainerStats],
        running_containers_are_measured, faults [
            "ListContainerStats set stats.attributes.id \"same\"",
            "ListContainerStats if request.filter.id == \"\" and request.filter.pod_sandbox_id != \"\" drop stats",
            "ListContainerStats if request.filter.label_selector[\"colour\"] == \"red\" drop stats",
            "ListContainerStats if request.filter.id != \"\" request drop filter.id",
            "ListContainerStats request drop filter.pod_sandbox_id",
            "ListContainerStats after 3 fail NOT_FOUND",
            "RemoveContainer swallow",
        ];
    Should "CRI-STA-041": "ListPodSandboxStats and ListPodSandboxMetrics return each ready sandbox once, with its running container, and no removed sandbox.",
        API, tags ["filter", "state", "metrics"], calls [ListPodSandboxStats, ListPodSandboxMetrics],
        ready_sandboxes_are_measured, faults [
            "ListPodSandboxStats set stats.attributes.id \"same\"",
            "ListPodSandboxStats drop stats.linux.containers",
            "ListPodSandboxStats if request.filter.label_selector[\"colour\"] == \"red\" drop stats",
            "ListPodSandboxStats fail NOT_FOUND",
            "ListPodSandboxMetrics set pod_metrics.pod_sandbox_id \"same\"",
            "ListPodSandboxMetrics drop pod_metrics.container_metrics",
            "ListPodSandboxMetrics fail NOT_FOUND",
            "RemovePodSandbox swallow",
        ];
};

fn red() -> HashMap<String, String> {
    [("colour".to_owned(), "red".to_owned())].into()
}

/// A pod with a container in each state, and a stopped pod with an exited one.
struct Members {
    pod: Pod,
    stopped: Pod,
    created: String,
    running: String,
    exited: String,
    of_stopped: String,
    /// Already removed.
    removed: String,
}

async fn red_pod(x: &Context) -> Verdict<Pod> {
    let mut config = x.sandbox();
    config.labels.extend(red());
    x.pod_of(config).await
}

async fn members(x: &Context) -> Verdict<Members> {
    let (pod, stopped) = (red_pod(x).await?, red_pod(x).await?);
    let config = |name: &str, script: Option<&str>| {
        let mut config = match script {
            Some(script) => x.script(name, script),
            None => x.forever(name),
        };
        config.labels.extend(red());
        config
    };
    let created = pod.create(config("created", None)).await?;
    let running = x.start_ready(&pod, config("c", None)).await?;
    let exited = pod.start(config("exited", Some("exit 0"))).await?;
    let removed = pod.start(config("removed", None)).await?;
    let of_stopped = stopped.start(config("c", None)).await?;
    x.exited(&exited).await?;
    x.client.stop_pod(&stopped.id).await?;
    x.client.remove(&removed).await?;
    Ok(Members { pod, stopped, created, running, exited, of_stopped, removed })
}

async fn containers_of_every_state_are_listed(x: &Context) -> Verdict {
    let all = members(x).await?;
    let Members { pod, stopped, created, running, exited, of_stopped, removed } = &all;
    let base = ContainerFilter::default;
    let of_id = |id: &String| ContainerFilter { id: id.clone(), ..base() };
    let of_pod = |pod: &Pod| ContainerFilter { pod_sandbox_id: pod.id.clone(), ..base() };
    let of_red = || ContainerFilter { label_selector: red(), ..base() };
    let in_state = |state: ContainerState| ContainerFilter {
        state: Some(v1::ContainerStateValue { state: state.into() }),
        ..of_red()
    };
    let expect = async |what: &str, filter: ContainerFilter, expected: &[&String]| {
        let what = format!("ListContainers {what}");
        equal(&what, &containers(x, filter).await?, &ids(expected.iter().copied()))
    };
    for id in [created, running, exited, of_stopped] {
        expect("by id", of_id(id), &[id]).await?;
    }
    expect("by the id of a removed container", of_id(removed), &[]).await?;
    expect("by a sandbox", of_pod(pod), &[created, running, exited]).await?;
    expect("by a stopped sandbox", of_pod(stopped), &[of_stopped]).await?;
    let every = [created, running, exited, of_stopped];
    expect("without a filter", base(), &every).await?;
    expect("by labels", of_red(), &every).await?;
    for (state, expected) in [
        (ContainerState::ContainerCreated, vec![created]),
        (ContainerState::ContainerRunning, vec![running]),
        (ContainerState::ContainerExited, vec![exited, of_stopped]),
    ] {
        let what = format!("by labels and {}", state.as_str_name());
        expect(&what, in_state(state), &expected).await?;
    }
    x.client.remove(exited).await?;
    x.client.remove_pod(&stopped.id).await?;
    expect("by labels after removals", of_red(), &[created, running]).await?;
    expect("by a removed sandbox", of_pod(stopped), &[]).await
}

async fn sandboxes_of_every_state_are_listed(x: &Context) -> Verdict {
    let (ready, stopped, removed) = (red_pod(x).await?, red_pod(x).await?, red_pod(x).await?);
    let of_id = |pod: &Pod| PodSandboxFilter { id: pod.id.clone(), ..Default::default() };
    let of_red = || PodSandboxFilter { label_selector: red(), ..Default::default() };
    let expect = async |what: &str, filter: PodSandboxFilter, expected: &[&Pod]| {
        let expected = ids(expected.iter().map(|pod| &pod.id));
        equal(&format!("ListPodSandbox {what}"), &pods(x, filter).await?, &expected)
    };
    expect("by labels", of_red(), &[&ready, &stopped, &removed]).await?;
    for pod in [&stopped, &removed] {
        x.client.stop_pod(&pod.id).await?;
    }
    x.client.remove_pod(&removed.id).await?;
    expect("by the id of a ready sandbox", of_id(&ready), &[&ready]).await?;
    expect("by the id of a stopped sandbox", of_id(&stopped), &[&stopped]).await?;
    expect("by the id of a removed sandbox", of_id(&removed), &[]).await?;
    expect("by labels after a removal", of_red(), &[&ready, &stopped]).await?;
    expect("without a filter", PodSandboxFilter::default(), &[&ready, &stopped]).await
}

/// The response of a list call, which must not fail because an object was removed.
pub(crate) fn answered<T>(what: &str, answer: Result<T, Status>) -> Verdict<T> {
    match answer {
        Err(status) if !matches!(status.code(), Code::Unimplemented | Code::Unavailable) => {
            failed(what, "success", format!("{:?}: {}", status.code(), status.message()))
        }
        answer => Ok(answer?),
    }
}

/// Fails unless `seen` contains each id of `once` once and no id of `never`.
fn expect_once(what: &str, seen: &[String], once: &[&String], never: &[&String]) -> Verdict {
    let ours = seen.iter().filter(|id| once.contains(id) || never.contains(id));
    let mut ours: Vec<&String> = ours.collect();
    ours.sort_unstable();
    let mut expected = once.to_vec();
    expected.sort_unstable();
    equal(what, &ours, &expected)
}

async fn running_containers_are_measured(x: &Context) -> Verdict {
    let all = members(x).await?;
    let Members { pod, stopped, created, running, exited, removed, .. } = &all;
    let base = ContainerStatsFilter::default;
    let of_id = |id: &String| ContainerStatsFilter { id: id.clone(), ..base() };
    let of_pod = |pod: &Pod| ContainerStatsFilter { pod_sandbox_id: pod.id.clone(), ..base() };
    let of_red = || ContainerStatsFilter { label_selector: red(), ..base() };
    // Runtimes may also return containers that are not running.
    let one: &[&String] = &[running];
    for (what, filter, once, never) in [
        ("without a filter", base(), one, &[removed] as &[_]),
        ("by a sandbox", of_pod(pod), one, &[removed]),
        ("by labels", of_red(), one, &[removed]),
        ("by its id", of_id(running), one, &[created, exited, removed]),
        ("by a created container's id", of_id(created), &[], &[running, exited, removed]),
        ("by an exited container's id", of_id(exited), &[], &[running, created, removed]),
        ("by a removed container's id", of_id(removed), &[], &[running, created, exited, removed]),
        ("by a stopped sandbox", of_pod(stopped), &[], &[running, created, exited, removed]),
    ] {
        let what = format!("ListContainerStats {what}");
        let listed = answered(&what, x.client.list_container_stats(filter).await)?.into_iter();
        let listed: Vec<String> = listed.filter_map(|one| Some(one.attributes?.id)).collect();
        expect_once(&what, &listed, once, never)?;
    }
    Ok(())
}

async fn ready_sandboxes_are_measured(x: &Context) -> Verdict {
    let removed = red_pod(x).await?;
    let all = members(x).await?;
    x.client.stop_pod(&removed.id).await?;
    x.client.remove_pod(&removed.id).await?;
    let (running, gone) = (&all.running, &all.removed);
    let of_id = |pod: &Pod| PodSandboxStatsFilter { id: pod.id.clone(), ..Default::default() };
    let of_red = PodSandboxStatsFilter { label_selector: red(), ..Default::default() };
    let one: &[&String] = &[&all.pod.id];
    for (what, filter, once) in [
        ("by labels", of_red, one),
        ("without a filter", PodSandboxStatsFilter::default(), one),
        ("by its id", of_id(&all.pod), one),
        ("by the id of a stopped sandbox", of_id(&all.stopped), &[]),
        ("by the id of a removed sandbox", of_id(&removed), &[]),
    ] {
        let what = format!("ListPodSandboxStats {what}");
        // Some runtimes need the cgroup parent, which the kubelet always sets.
        let listed = match without_cgroup_parent(x.client.list_pod_stats(filter).await) {
            Err(Outcome::Refused { code, message }) => {
                answered(&what, Err(Status::new(code, message)))?
            }
            listed => listed?,
        };
        let seen: Vec<String> =
            listed.iter().filter_map(|one| Some(one.attributes.clone()?.id)).collect();
        let never: &[&String] = if once.is_empty() { &[&all.pod.id] } else { &[] };
        expect_once(&what, &seen, once, &[never, &[&removed.id]].concat())?;
        for stats in listed {
            if stats.attributes.is_none_or(|of| of.id != all.pod.id) {
                continue;
            }
            let inside = stats.linux.unwrap_or_default().containers.into_iter();
            let inside: Vec<String> = inside.filter_map(|one| Some(one.attributes?.id)).collect();
            expect_once(
                &format!("the containers of the sandbox, {what}"),
                &inside,
                &[running],
                &[gone],
            )?;
        }
    }
    let what = "ListPodSandboxMetrics";
    let listed = answered(what, x.client.pod_metrics().await)?;
    let seen: Vec<String> = listed.iter().map(|one| one.pod_sandbox_id.clone()).collect();
    expect_once(what, &seen, &[&all.pod.id], &[&removed.id])?;
    let ours = listed.into_iter().filter(|one| one.pod_sandbox_id == all.pod.id);
    let inside: Vec<String> =
        ours.flat_map(|one| one.container_metrics).map(|one| one.container_id).collect();
    expect_once("the containers in ListPodSandboxMetrics", &inside, &[running], &[gone])
}
