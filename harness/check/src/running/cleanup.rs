//! Removes the objects of a check or a benchmark. It finds them by their labels and, for runtimes that lose labels, by the ids that
//! RunPodSandbox returned.

use std::time::Duration;

use compact::Set;
use cri::v1;
use harness::client::{CallResult, Client};
use proxy::Call;
use tonic::{Code, Status};

use crate::cgroup;
use crate::context::{NAMESPACE, RULE_LABEL, RUN_LABEL};

/// The name prefix of checks' directories.
pub(crate) const PREFIX: &str = "crib-check-";
/// The name prefix of benchmarks' directories.
pub const BENCH_PREFIX: &str = "crib-bench-";

/// The time limit of a list of pods or images. After it, only the objects with known ids are removed.
pub(crate) const LISTING: Duration = Duration::from_secs(5);

/// The response to a list call, or DEADLINE_EXCEEDED after the time limit.
async fn in_time<T>(limit: Duration, list: impl Future<Output = CallResult<T>>) -> CallResult<T> {
    let late = |_| Err(Status::deadline_exceeded("no answer"));
    let answer = tokio::time::timeout(limit, list).await;
    answer.unwrap_or_else(late)
}

/// The pod ids that RunPodSandbox returned.
pub(crate) fn created_pods<'a>(calls: impl IntoIterator<Item = &'a Call>) -> Set<String> {
    let calls = calls.into_iter().filter(|call| call.method == "RunPodSandbox");
    let ids = calls.filter_map(|call| {
        let response = call.response();
        Some(response.get("pod_sandbox_id")?.as_str()?.to_owned())
    });
    ids.filter(|id| !id.is_empty()).collect()
}

/// Stops and removes the pods of a run, or only those of `rule`: the pods with the labels and those in `answered`. The time limit
/// of ListPodSandbox is `listing`. Returns what could not be removed.
pub(crate) async fn remove_pods(
    client: &Client,
    run: &str,
    rule: Option<&str>,
    answered: &Set<String>,
    listing: Duration,
) -> Vec<String> {
    let mut labels = vec![(RUN_LABEL.to_owned(), run.to_owned())];
    labels.extend(rule.map(|rule| (RULE_LABEL.to_owned(), rule.to_owned())));
    let filter = v1::PodSandboxFilter {
        label_selector: labels.iter().cloned().collect(),
        ..Default::default()
    };
    let mut left = Vec::new();
    let listed = in_time(listing, client.pods(filter)).await;
    let pods = listed.unwrap_or_else(|status| {
        left.push(format!("ListPodSandbox: {}", status.message()));
        Vec::new()
    });
    // If a runtime ignores filters, the pods of others must not be removed.
    let ours = |pod: &&v1::PodSandbox| {
        let has = |(key, value): &(String, String)| pod.labels.get(key) == Some(value);
        labels.iter().all(has)
    };
    let mut ids: Set<&String> = pods.iter().filter(ours).map(|pod| &pod.id).collect();
    for id in answered {
        if !ids.contains(id) && is_of_check(client, run, id).await {
            ids.insert(id);
        }
    }
    for id in ids {
        if let Err(status) = remove_pod(client, id).await {
            left.push(format!("pod {id}: {}", status.message()));
        }
    }
    left
}

/// Whether a pod exists and belongs to the check. If a runtime returns the id of another pod from RunPodSandbox, that pod must not
/// be removed.
async fn is_of_check(client: &Client, run: &str, id: &str) -> bool {
    match client.pod(id).await {
        Ok(answer) => answer.status.is_none_or(|status| {
            let namespace = status.metadata.map(|metadata| metadata.namespace);
            status.labels.get(RUN_LABEL).is_some_and(|label| label == run)
                || namespace.is_none_or(|namespace| namespace == NAMESPACE)
        }),
        Err(status) => status.code() != Code::NotFound,
    }
}

async fn remove_pod(client: &Client, id: &str) -> CallResult<()> {
    client.stop_pod(id).await?;
    client.remove_pod(id).await
}

/// Removes the images whose names contain the run's name.
pub(crate) async fn remove_images(client: &Client, run: &str) -> Vec<String> {
    let images = match in_time(LISTING, client.list_images()).await {
        Ok(images) => images,
        Err(status) => return vec![format!("ListImages: {}", status.message())],
    };
    let part = format!("/{run}/");
    let mut left = Vec::new();
    for image in images {
        let names = image.repo_tags.iter().chain(&image.repo_digests);
        let ours: Vec<&String> = names.filter(|name| name.contains(&part)).collect();
        for name in ours {
            if let Err(status) = client.remove_image(name).await {
                left.push(format!("image {name}: {}", status.message()));
            }
        }
    }
    left
}

/// Removes the pods, images and cgroups of a run: the pods with the run's label and those in `answered`. Returns what could not be
/// removed.
pub async fn remove_run(client: &Client, run: &str, answered: &Set<String>) -> Vec<String> {
    let mut left = remove_pods(client, run, None, answered, LISTING).await;
    left.extend(remove_images(client, run).await);
    left.extend(cgroup::remove(run));
    left
}
