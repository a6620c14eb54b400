//! Removes what a check or a benchmark made, found by its labels: of this run, and of earlier runs that were killed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use cri::v1;

use super::cgroup;
use super::context::{DIRECTORY_ANNOTATION, RULE_LABEL, RUN_LABEL};
use super::directory::{lives, remove_directory};
use crate::client::{Answer, Client};

/// How the directories of checks begin.
pub(super) const PREFIX: &str = "crib-check-";
/// How the directories of benchmarks begin.
pub(crate) const BENCH_PREFIX: &str = "crib-bench-";

/// Stops and removes the pods of a run; only those of one rule, if one is named. Returns what could not be removed.
pub(super) async fn remove_pods(client: &Client, run: &str, rule: Option<&str>) -> Vec<String> {
    let mut labels = vec![(RUN_LABEL.to_owned(), run.to_owned())];
    labels.extend(rule.map(|rule| (RULE_LABEL.to_owned(), rule.to_owned())));
    let filter = v1::PodSandboxFilter {
        label_selector: labels.iter().cloned().collect(),
        ..Default::default()
    };
    let pods = match client.pods(filter).await {
        Ok(pods) => pods,
        Err(status) => return vec![format!("ListPodSandbox: {}", status.message())],
    };
    let mut left = Vec::new();
    // A runtime that ignores filters must not cost others their pods.
    let ours = |pod: &&v1::PodSandbox| {
        let has = |(key, value): &(String, String)| pod.labels.get(key) == Some(value);
        labels.iter().all(has)
    };
    for pod in pods.iter().filter(ours) {
        if let Err(status) = remove_pod(client, &pod.id).await {
            left.push(format!("pod {}: {}", pod.id, status.message()));
        }
    }
    left
}

async fn remove_pod(client: &Client, id: &str) -> Answer<()> {
    client.stop_pod(id).await?;
    client.remove_pod(id).await
}

/// Removes the images whose names have the run in them.
pub(super) async fn remove_images(client: &Client, run: &str) -> Vec<String> {
    let images = match client.list_images().await {
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

/// Removes the pods, images and control groups of a run. Returns what could not be removed.
pub(crate) async fn remove_run(client: &Client, run: &str) -> Vec<String> {
    let mut left = remove_pods(client, run, None).await;
    left.extend(remove_images(client, run).await);
    left.extend(cgroup::remove(run));
    left
}

/// Removes what runs left that live no more.
pub(crate) async fn remove_dead_runs(runtime: &Client, images: &Client) -> Answer<()> {
    let mut dead: BTreeSet<(String, PathBuf)> = BTreeSet::new();
    for pod in runtime.pods(v1::PodSandboxFilter::default()).await? {
        let directory = pod.annotations.get(DIRECTORY_ANNOTATION);
        if let (Some(run), Some(directory)) = (pod.labels.get(RUN_LABEL), directory)
            && !lives(Path::new(directory))
        {
            dead.insert((run.clone(), directory.into()));
        }
    }
    for (run, directory) in dead {
        for left in remove_pods(runtime, &run, None).await {
            tracing::warn!(run, left, "failed to remove what an earlier run left");
        }
        remove_images(images, &run).await;
        // Label and annotation are the runtime's word: only what a check makes is removed.
        let name = directory.file_name().unwrap_or_default().to_string_lossy();
        if name == run
            && [PREFIX, BENCH_PREFIX]
                .iter()
                .any(|prefix| run.starts_with(prefix))
            && directory.parent() == Some(&std::env::temp_dir())
        {
            for left in cgroup::remove(&run) {
                tracing::warn!(run, left, "failed to remove what an earlier run left");
            }
            remove_directory(&directory);
        }
    }
    Ok(())
}
