//! Rules for the names of sandboxes: which ones conflict.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-011": "The name of a removed sandbox can be used again.",
        CRIO, tags ["kubelet", "names"], calls [RunPodSandbox, RemovePodSandbox],
        name_of_removed_sandbox_is_free, faults ["RunPodSandbox after 1 answer ALREADY_EXISTS"];
    Must "CRI-SBX-012": "A second RunPodSandbox with the same metadata is refused, or returns the id of the first sandbox.",
        CONTAINERD, tags ["kubelet", "names", "idempotence"], calls [RunPodSandbox],
        same_metadata_makes_no_second_sandbox, faults [
            "RunPodSandbox after 1 request set config.metadata.attempt 7",
        ];
    Must "CRI-SBX-013": "RunPodSandbox of the same pod with another attempt creates a new sandbox.",
        KUBELET, tags ["kubelet", "names"], calls [RunPodSandbox],
        next_attempt_is_another_sandbox, faults [
            "RunPodSandbox after 1 request set config.metadata.attempt 0",
        ];
    Must "CRI-SBX-046": "Sandboxes with the same name but a different uid or namespace can coexist: a pod is often recreated before its old sandbox is removed.",
        KUBELET, tags ["kubelet", "names"], calls [RunPodSandbox, ListPodSandbox],
        names_are_distinguished, faults [
            "RunPodSandbox after 1 answer ALREADY_EXISTS",
            "RunPodSandbox after 2 answer ALREADY_EXISTS",
            "RunPodSandbox after 1 answer UNKNOWN",
        ];
};

async fn name_of_removed_sandbox_is_free(x: &Context) -> Verdict {
    let first = x.pod().await?;
    x.client.stop_pod(&first.id).await?;
    x.client.remove_pod(&first.id).await?;
    let second = x.pod_of(first.config.clone()).await?;
    ensure(second.id != first.id, "the id of the second sandbox", "a new id", second.id)
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
    ensure(second.id != first.id, "the id of the second attempt", "a new id", &second.id)?;
    let attempt = x.pod_status(&second.id).await?.metadata.unwrap_or_default().attempt;
    equal("the attempt of the second sandbox", &attempt, &1)
}

async fn names_are_distinguished(x: &Context) -> Verdict {
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
        equal("the metadata in ListPodSandbox", &metadata, &pod.config.metadata)?;
    }
    Ok(())
}
