//! Rules of the names of sandboxes: which of them are the same.

use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, refused};
use crate::check::rule::sources::{CONTAINERD, CRIO, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-SBX-011",
        severity: Severity::Must,
        says: "The name of a removed sandbox can be used again.",
        source: CRIO,
        tags: &["kubelet", "names"],
        calls: &["RunPodSandbox", "RemovePodSandbox"],
        faults: &["RunPodSandbox after 1 answer ALREADY_EXISTS"],
        body: |x| Box::pin(name_of_removed_sandbox_is_free(x)),
    },
    Rule {
        id: "CRI-SBX-012",
        severity: Severity::Must,
        says: "A second RunPodSandbox with the same metadata makes no second sandbox: it is refused, or returns the first one.",
        source: CONTAINERD,
        tags: &["kubelet", "names", "idempotence"],
        calls: &["RunPodSandbox"],
        faults: &["RunPodSandbox after 1 request set config.metadata.attempt 7"],
        body: |x| Box::pin(same_metadata_makes_no_second_sandbox(x)),
    },
    Rule {
        id: "CRI-SBX-013",
        severity: Severity::Must,
        says: "A sandbox of the same pod with another attempt is a sandbox of its own.",
        source: KUBELET,
        tags: &["kubelet", "names"],
        calls: &["RunPodSandbox"],
        faults: &["RunPodSandbox after 1 request set config.metadata.attempt 0"],
        body: |x| Box::pin(next_attempt_is_another_sandbox(x)),
    },
    Rule {
        id: "CRI-SBX-046",
        severity: Severity::Must,
        says: "Sandboxes with the same name and another uid or another namespace are there at once: a pod is often made anew before the old one is gone.",
        source: KUBELET,
        tags: &["kubelet", "names"],
        calls: &["RunPodSandbox", "ListPodSandbox"],
        faults: &[
            "RunPodSandbox after 1 answer ALREADY_EXISTS",
            "RunPodSandbox after 2 answer ALREADY_EXISTS",
            "RunPodSandbox after 1 answer UNKNOWN",
        ],
        body: |x| Box::pin(names_are_told_apart(x)),
    },
];

async fn name_of_removed_sandbox_is_free(x: &Context) -> Verdict {
    let first = x.pod().await?;
    x.client.stop_pod(&first.id).await?;
    x.client.remove_pod(&first.id).await?;
    let second = x.pod_of(first.config.clone()).await?;
    ensure(
        second.id != first.id,
        "the id of the second sandbox",
        "another one",
        second.id,
    )
}

async fn same_metadata_makes_no_second_sandbox(x: &Context) -> Verdict {
    let first = x.pod().await?;
    match x.client.run_pod(first.config.clone()).await {
        Ok(second) => equal("the id of the second RunPodSandbox", &second, &first.id),
        answer => refused("the second RunPodSandbox", answer).map(drop),
    }
}

async fn next_attempt_is_another_sandbox(x: &Context) -> Verdict {
    let first = x.pod().await?;
    x.client.stop_pod(&first.id).await?;
    let mut config = first.config.clone();
    config.metadata.get_or_insert_default().attempt = 1;
    let second = x.pod_of(config).await?;
    ensure(
        second.id != first.id,
        "the id of the second attempt",
        "another one",
        &second.id,
    )?;
    let attempt = x
        .pod_status(&second.id)
        .await?
        .metadata
        .unwrap_or_default()
        .attempt;
    equal("the attempt of the second sandbox", &attempt, &1)
}

async fn names_are_told_apart(x: &Context) -> Verdict {
    let first = x.pod().await?;
    let mut other_uid = first.config.clone();
    let metadata = other_uid.metadata.get_or_insert_default();
    metadata.uid = x.unique("uid");
    let mut other_namespace = first.config.clone();
    let metadata = other_namespace.metadata.get_or_insert_default();
    metadata.namespace.push_str("-other");
    let second = x.pod_of(other_uid).await?;
    let third = x.pod_of(other_namespace).await?;
    for pod in [&first, &second, &third] {
        let listed = x.listed_pod(&pod.id).await?;
        let metadata = listed.and_then(|listed| listed.metadata);
        equal(
            "the metadata in ListPodSandbox",
            &metadata,
            &pod.config.metadata,
        )?;
    }
    Ok(())
}
