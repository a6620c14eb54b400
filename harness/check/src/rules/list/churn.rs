//! Rules of lists that are requested while other objects are created, exit and are removed.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::prelude::*;
use crate::rules::image;
use crate::rules::list::members::answered;
use crate::rules::statistics::without_cgroup_parent;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CON-020": "While objects are created and removed, lists of sandboxes, containers, stats and metrics succeed, and include every object that exists the whole time.",
        KUBELET, tags ["kubelet", "concurrency", "state"], calls [ListPodSandbox, ListContainers, ListContainerStats, RunPodSandbox, RemovePodSandbox, RemoveContainer],
        lists_hold_while_members_change given [pod, container], faults [
            "ListPodSandbox after 3 fail NOT_FOUND",
            "ListPodSandbox after 3 drop items",
            "ListContainers after 3 fail NOT_FOUND",
            "ListContainers after 3 drop containers",
            "ListContainerStats after 3 fail NOT_FOUND",
            "ListContainerStats after 3 drop stats",
            "ListPodSandboxStats after 3 fail INTERNAL",
            "ListPodSandboxMetrics after 3 drop pod_metrics",
            "ListMetricDescriptors after 3 drop descriptors",
        ];
    Must "CRI-IMG-030": "While images are pulled and removed, ListImages succeeds, and returns every image that is present the whole time.",
        KUBELET, tags ["kubelet", "concurrency"], calls [ListImages, PullImage, RemoveImage],
        images_are_listed_while_others_change, faults [
            "ListImages after 3 fail NOT_FOUND",
            "ListImages after 3 drop images",
            "ListImages after 3 set images.repo_tags [\"a:1\"]",
        ];
};

/// How often objects are created and removed, and the minimum number of list calls.
const ROUNDS: usize = 6;

/// Repeats `look` until `change` has ended, and at least [`ROUNDS`] times.
async fn while_changing<F: Future<Output = Verdict>>(
    change: impl Future<Output = Verdict>,
    look: impl Fn() -> F,
) -> Verdict {
    let ended = AtomicBool::new(false);
    let changing = async {
        let changed = change.await;
        ended.store(true, Ordering::Relaxed);
        changed
    };
    let looking = async {
        let mut looks = 0;
        while looks < ROUNDS || !ended.load(Ordering::Relaxed) {
            look().await?;
            looks += 1;
        }
        Ok(())
    };
    tokio::try_join!(changing, looking).map(drop)
}

/// Fails unless the list contains this id once. Passes if the runtime does not implement the call, or does not support it for pods
/// without a cgroup parent.
fn has(what: &str, listed: Verdict<Vec<String>>, id: &str) -> Verdict {
    match listed {
        Err(Outcome::Refused { code: Code::Unimplemented, .. } | Outcome::Diverges(_)) => Ok(()),
        Err(outcome) => Err(outcome),
        Ok(all) => {
            let count = all.iter().filter(|one| *one == id).count();
            let what = format!("how often {what} returns an unchanged member while others change");
            equal(&what, &count, &1)
        }
    }
}

async fn churn_sandboxes(x: &Context, pod: &Pod) -> Verdict {
    for round in 0..ROUNDS {
        let other = x.pod().await?;
        let short = pod.start(x.script(&format!("short-{round}"), "exit 0")).await?;
        let long = other.start(x.forever("c")).await?;
        x.exited(&short).await?;
        x.client.stop(&long, 0).await?;
        x.client.remove(&short).await?;
        x.client.remove(&long).await?;
        x.client.stop_pod(&other.id).await?;
        x.client.remove_pod(&other.id).await?;
    }
    Ok(())
}

async fn lists_hold_while_members_change(x: &Context, pod: Pod, id: String) -> Verdict {
    while_changing(churn_sandboxes(x, &pod), || lists_name(x, &pod.id, &id)).await
}

/// Fails unless each list has this sandbox or this container.
async fn lists_name(x: &Context, pod: &str, id: &str) -> Verdict {
    let names = |what: &str, answer: Result<Vec<String>, Status>, id: &str| {
        has(what, answered(what, answer), id)
    };
    let runtime = || x.client.runtime.clone();
    let pods = x.client.pods(v1::PodSandboxFilter::default()).await;
    let pods = pods.map(|all| all.into_iter().map(|one| one.id).collect());
    names("ListPodSandbox", pods, pod)?;
    let containers = x.client.containers(v1::ContainerFilter::default()).await;
    let containers = containers.map(|all| all.into_iter().map(|one| one.id).collect());
    names("ListContainers", containers, id)?;
    let stats = x.client.list_container_stats(v1::ContainerStatsFilter::default()).await;
    let stats =
        stats.map(|all| all.into_iter().filter_map(|one| Some(one.attributes?.id)).collect());
    names("ListContainerStats", stats, id)?;
    let request = v1::ListPodSandboxStatsRequest::default();
    let what = "ListPodSandboxStats";
    let stats = match without_cgroup_parent(runtime().list_pod_sandbox_stats(request).await) {
        Err(Outcome::Refused { code, message }) => answered(what, Err(Status::new(code, message))),
        stats => stats,
    };
    let stats = stats.map(|answer| {
        let all = answer.into_inner().stats.into_iter();
        all.filter_map(|one| Some(one.attributes?.id)).collect()
    });
    has(what, stats, pod)?;
    let metrics = x.client.pod_metrics().await;
    let metrics = metrics.map(|all| all.into_iter().map(|one| one.pod_sandbox_id).collect());
    names("ListPodSandboxMetrics", metrics, pod)?;
    let descriptors = x.client.metric_descriptors().await;
    // Any descriptor will do.
    let descriptors = descriptors.map(|all| match all.is_empty() {
        true => vec![],
        false => vec!["some".to_owned()],
    });
    names("ListMetricDescriptors", descriptors, "some")
}

async fn images_are_listed_while_others_change(x: &Context) -> Verdict {
    let (stays, _) = image::pulled(x).await?;
    let mut others = Vec::new();
    for number in 0..ROUNDS {
        others.push(image::add(x, &format!("other-{number}"), |image| image)?.0);
    }
    let change = async {
        for other in &others {
            image::pull(x, other).await?;
            x.client.remove_image(other).await?;
        }
        Ok(())
    };
    while_changing(change, || list_names(x, &stays)).await
}

async fn list_names(x: &Context, image: &str) -> Verdict {
    let listed = answered("ListImages", x.client.list_images().await);
    let listed = listed.map(|all| all.into_iter().flat_map(|one| one.repo_tags).collect());
    has("ListImages", listed, image)
}
