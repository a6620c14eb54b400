//! Rules for sandbox fields that runtimes report back: metadata, labels, annotations, times, namespaces.

use std::collections::HashMap;

use crate::prelude::*;
use crate::rules::sandbox::handlers::{handler_is, pod_of_other_handler};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-030": "PodSandboxStatus and ListPodSandbox report a sandbox's name, uid, namespace and attempt.",
        CRITEST, tags ["kubelet", "echo"], calls [PodSandboxStatus, ListPodSandbox],
        sandbox_metadata_is_echoed, faults [
            "PodSandboxStatus drop status.metadata.uid",
            "PodSandboxStatus drop status.metadata.attempt",
            "ListPodSandbox drop items.metadata",
            "ListPodSandbox set items.metadata.namespace \"default\"",
        ];
    Must "CRI-SBX-031": "PodSandboxStatus and ListPodSandbox report a sandbox's labels.",
        CRITEST, tags ["kubelet", "echo"], calls [PodSandboxStatus, ListPodSandbox],
        sandbox_labels_are_echoed, faults [
            "PodSandboxStatus drop status.labels",
            "ListPodSandbox set items.labels.empty \"full\"",
        ];
    Must "CRI-SBX-032": "PodSandboxStatus and ListPodSandbox report a sandbox's annotations byte for byte.",
        CRITEST, tags ["kubelet", "echo"], calls [PodSandboxStatus, ListPodSandbox],
        sandbox_annotations_are_echoed, faults [
            "PodSandboxStatus drop status.annotations.text",
            "ListPodSandbox drop items.annotations",
        ];
    Must "CRI-SBX-033": "A sandbox's created_at is in nanoseconds, lies between the start and the end of the RunPodSandbox call, and is the same in PodSandboxStatus and ListPodSandbox.",
        KUBELET, tags ["kubelet", "time"], calls [PodSandboxStatus, ListPodSandbox],
        sandbox_time_is_that_of_its_creation, faults [
            "PodSandboxStatus drop status.created_at",
            "ListPodSandbox drop items.created_at",
            "PodSandboxStatus set status.created_at 1500000000",
        ];
    Must "CRI-SBX-034": "PodSandboxStatus reports a sandbox's namespace modes; the kubelet recreates a sandbox whose network mode differs from the pod's.",
        KUBELET, tags ["kubelet", "echo", "namespaces"], calls [PodSandboxStatus],
        sandbox_namespaces_are_echoed given [namespaces, pod], faults [
            "PodSandboxStatus drop status.linux",
            "PodSandboxStatus set status.linux.namespaces.options.network \"NODE\"",
            "PodSandboxStatus set status.linux.namespaces.options.pid \"POD\"",
        ];
    Should "CRI-SBX-021": "PodSandboxStatus and ListPodSandbox report a sandbox's runtime handler, which is empty for the default handler.",
        API, tags ["echo"], calls [Status, RunPodSandbox, PodSandboxStatus, ListPodSandbox],
        runtime_handler_is_echoed given [pod], faults [
            "PodSandboxStatus set status.runtime_handler \"other\"",
            "ListPodSandbox set items.runtime_handler \"other\"",
        ];
};

pub(crate) fn odd_values() -> HashMap<String, String> {
    // An API server accepts 256 KiB of annotations.
    let long = "a long value, ".repeat(1000);
    [
        ("empty", ""),
        ("a.example.com/b-c_d.e", "A.b-c_1"),
        ("text", " two\nlines, \"quoted\" é\n"),
        ("long", &long),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

pub(crate) fn odd_labels() -> HashMap<String, String> {
    let mut labels = odd_values();
    labels.retain(|key, _| !matches!(key.as_str(), "text" | "long"));
    labels
}

pub(crate) fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// How far the time of a measurement may be from now: runtimes measure every few seconds.
const MEASURED: i64 = 300_000_000_000;

/// Fails unless a timestamp is current, in nanoseconds.
pub(crate) fn of_now(what: &str, time: i64) -> Verdict {
    let now = now();
    let near = now.saturating_sub(time).abs() < MEASURED;
    ensure(near, what, &format!("near {now}"), time)
}

async fn both_pods(x: &Context, pod: &Pod) -> Verdict<(v1::PodSandboxStatus, v1::PodSandbox)> {
    match x.listed_pod(&pod.id).await? {
        Some(listed) => Ok((x.pod_status(&pod.id).await?, listed)),
        None => failed("the sandbox in ListPodSandbox", "to be listed", "missing"),
    }
}

async fn sandbox_metadata_is_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.metadata.get_or_insert_default().attempt = 3;
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    equal("the metadata in PodSandboxStatus", &status.metadata, &pod.config.metadata)?;
    equal("the metadata in ListPodSandbox", &listed.metadata, &pod.config.metadata)
}

async fn sandbox_labels_are_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.labels.extend(odd_labels());
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    includes("the labels in PodSandboxStatus", &status.labels, &pod.config.labels)?;
    includes("the labels in ListPodSandbox", &listed.labels, &pod.config.labels)
}

async fn sandbox_annotations_are_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.annotations.extend(odd_values());
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    includes("the annotations in PodSandboxStatus", &status.annotations, &pod.config.annotations)?;
    includes("the annotations in ListPodSandbox", &listed.annotations, &pod.config.annotations)
}

async fn sandbox_time_is_that_of_its_creation(x: &Context) -> Verdict {
    let before = now();
    let pod = x.pod().await?;
    let after = now();
    let (status, listed) = both_pods(x, &pod).await?;
    let within = (before..=after).contains(&status.created_at);
    ensure(within, "created_at", &format!("between {before} and {after}"), status.created_at)?;
    equal("created_at in ListPodSandbox", &listed.created_at, &status.created_at)
}

async fn sandbox_namespaces_are_echoed(x: &Context, pod: Pod) -> Verdict {
    let status = x.pod_status(&pod.id).await?;
    let options = status.linux.unwrap_or_default().namespaces.unwrap_or_default();
    let options = present(options.options, "linux.namespaces.options", "to be set", "nothing")?;
    equal("network", &options.network(), &NamespaceMode::Pod)?;
    equal("pid", &options.pid(), &NamespaceMode::Container)?;
    equal("ipc", &options.ipc(), &NamespaceMode::Pod)
}

async fn runtime_handler_is_echoed(x: &Context, pod: Pod) -> Verdict {
    handler_is(x, &pod, "").await?;
    match pod_of_other_handler(x, &x.sandbox()).await? {
        Some((pod, handler)) => handler_is(x, &pod, &handler).await,
        None => Ok(()),
    }
}
