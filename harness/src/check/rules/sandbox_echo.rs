//! Rules of what runtimes echo of sandboxes: metadata, labels, annotations, times, namespaces.

use std::collections::HashMap;

use cri::v1;
use cri::v1::NamespaceMode;

use crate::check::context::Context;
use crate::check::outcome::{Verdict, ensure, equal, failed, includes};
use crate::check::rule::sources::{API, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-SBX-030",
        severity: Severity::Must,
        says: "Name, uid, namespace and attempt of a sandbox are echoed by its status and by the list.",
        source: CRITEST,
        tags: &["kubelet", "echo"],
        calls: &["PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "PodSandboxStatus drop status.metadata.uid",
            "PodSandboxStatus drop status.metadata.attempt",
            "ListPodSandbox drop items.metadata",
            "ListPodSandbox set items.metadata.namespace \"default\"",
        ],
        body: |x| Box::pin(sandbox_metadata_is_echoed(x)),
    },
    Rule {
        id: "CRI-SBX-031",
        severity: Severity::Must,
        says: "Labels of a sandbox are echoed by its status and by the list.",
        source: CRITEST,
        tags: &["kubelet", "echo"],
        calls: &["PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "PodSandboxStatus drop status.labels",
            "ListPodSandbox set items.labels.empty \"full\"",
        ],
        body: |x| Box::pin(sandbox_labels_are_echoed(x)),
    },
    Rule {
        id: "CRI-SBX-032",
        severity: Severity::Must,
        says: "Annotations of a sandbox are echoed by its status and by the list, byte for byte.",
        source: CRITEST,
        tags: &["kubelet", "echo"],
        calls: &["PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "PodSandboxStatus drop status.annotations.text",
            "ListPodSandbox drop items.annotations",
        ],
        body: |x| Box::pin(sandbox_annotations_are_echoed(x)),
    },
    Rule {
        id: "CRI-SBX-033",
        severity: Severity::Must,
        says: "The time of a sandbox's creation lies within the call, in nanoseconds, and is the same in its status and in the list.",
        source: KUBELET,
        tags: &["kubelet", "time"],
        calls: &["PodSandboxStatus", "ListPodSandbox"],
        faults: &[
            "PodSandboxStatus drop status.created_at",
            "ListPodSandbox drop items.created_at",
            "PodSandboxStatus set status.created_at 1500000000",
        ],
        body: |x| Box::pin(sandbox_time_is_that_of_its_creation(x)),
    },
    Rule {
        id: "CRI-SBX-034",
        severity: Severity::Must,
        says: "The namespaces of a sandbox are echoed by its status; a kubelet makes the sandbox anew when its network differs.",
        source: KUBELET,
        tags: &["kubelet", "echo", "namespaces"],
        calls: &["PodSandboxStatus"],
        faults: &[
            "PodSandboxStatus drop status.linux",
            "PodSandboxStatus set status.linux.namespaces.options.network \"NODE\"",
            "PodSandboxStatus set status.linux.namespaces.options.pid \"POD\"",
        ],
        body: |x| Box::pin(sandbox_namespaces_are_echoed(x)),
    },
    Rule {
        id: "CRI-SBX-021",
        severity: Severity::Should,
        says: "The runtime handler of a sandbox is echoed by its status and by the list: the one that was named, or none.",
        source: API,
        tags: &["echo"],
        calls: &[
            "Status",
            "RunPodSandbox",
            "PodSandboxStatus",
            "ListPodSandbox",
        ],
        faults: &[
            "PodSandboxStatus set status.runtime_handler \"other\"",
            "ListPodSandbox set items.runtime_handler \"other\"",
        ],
        body: |x| Box::pin(runtime_handler_is_echoed(x)),
    },
];

pub(super) fn odd_values() -> HashMap<String, String> {
    // An API server takes 256 KiB of annotations.
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

pub(super) fn odd_labels() -> HashMap<String, String> {
    let mut labels = odd_values();
    labels.retain(|key, _| !matches!(key.as_str(), "text" | "long"));
    labels
}

pub(super) fn now() -> i64 {
    i64::try_from(jiff::Timestamp::now().as_nanosecond()).unwrap_or(i64::MAX)
}

/// How far a time of measurement may be from now: runtimes measure every few seconds.
const MEASURED: i64 = 300_000_000_000;

/// Fails unless a time is of now, in nanoseconds.
pub(super) fn of_now(what: &str, time: i64) -> Verdict {
    let now = now();
    let near = now.saturating_sub(time).abs() < MEASURED;
    ensure(near, what, &format!("near {now}"), time)
}

async fn both_pods(x: &Context, pod: &Pod) -> Verdict<(v1::PodSandboxStatus, v1::PodSandbox)> {
    match x.listed_pod(&pod.id).await? {
        Some(listed) => Ok((x.pod_status(&pod.id).await?, listed)),
        None => failed("the sandbox in ListPodSandbox", "to be there", "it is not"),
    }
}

async fn sandbox_metadata_is_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.metadata.get_or_insert_default().attempt = 3;
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    equal(
        "the metadata in PodSandboxStatus",
        &status.metadata,
        &pod.config.metadata,
    )?;
    equal(
        "the metadata in ListPodSandbox",
        &listed.metadata,
        &pod.config.metadata,
    )
}

async fn sandbox_labels_are_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.labels.extend(odd_labels());
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    includes(
        "the labels in PodSandboxStatus",
        &status.labels,
        &pod.config.labels,
    )?;
    includes(
        "the labels in ListPodSandbox",
        &listed.labels,
        &pod.config.labels,
    )
}

async fn sandbox_annotations_are_echoed(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.annotations.extend(odd_values());
    let pod = x.pod_of(config).await?;
    let (status, listed) = both_pods(x, &pod).await?;
    includes(
        "the annotations in PodSandboxStatus",
        &status.annotations,
        &pod.config.annotations,
    )?;
    includes(
        "the annotations in ListPodSandbox",
        &listed.annotations,
        &pod.config.annotations,
    )
}

async fn sandbox_time_is_that_of_its_creation(x: &Context) -> Verdict {
    let before = now();
    let pod = x.pod().await?;
    let after = now();
    let (status, listed) = both_pods(x, &pod).await?;
    let within = (before..=after).contains(&status.created_at);
    ensure(
        within,
        "created_at",
        &format!("between {before} and {after}"),
        status.created_at,
    )?;
    equal(
        "created_at in ListPodSandbox",
        &listed.created_at,
        &status.created_at,
    )
}

async fn sandbox_namespaces_are_echoed(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let status = x.pod_status(&pod.id).await?;
    let options = status
        .linux
        .unwrap_or_default()
        .namespaces
        .unwrap_or_default();
    let Some(options) = options.options else {
        return failed("linux.namespaces.options", "to be set", "nothing");
    };
    equal("network", &options.network(), &NamespaceMode::Pod)?;
    equal("pid", &options.pid(), &NamespaceMode::Container)?;
    equal("ipc", &options.ipc(), &NamespaceMode::Pod)
}

async fn handler_is(x: &Context, pod: &Pod, handler: &str) -> Verdict {
    let (status, listed) = both_pods(x, pod).await?;
    let of_status = status.runtime_handler.as_str();
    equal("runtime_handler in PodSandboxStatus", of_status, handler)?;
    let of_list = listed.runtime_handler.as_str();
    equal("runtime_handler in ListPodSandbox", of_list, handler)
}

async fn runtime_handler_is_echoed(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    handler_is(x, &pod, "").await?;
    let handlers = x.client.status().await?.runtime_handlers.into_iter();
    for handler in handlers.map(|handler| handler.name) {
        if handler.is_empty() {
            continue;
        }
        let config = x.sandbox();
        // Where it cannot be made, the runtime says so.
        drop(std::fs::create_dir_all(&config.log_directory));
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: handler.clone(),
        };
        // A handler may be configured without its program.
        let Ok(answer) = x.client.runtime.clone().run_pod_sandbox(request).await else {
            continue;
        };
        let pod = Pod {
            id: answer.into_inner().pod_sandbox_id,
            config,
            client: x.client.clone(),
        };
        return handler_is(x, &pod, &handler).await;
    }
    Ok(())
}
