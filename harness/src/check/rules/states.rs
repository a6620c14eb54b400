//! Rules of what a status has in each state of a container, and what stays the same in all of them.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cri::v1;
use cri::v1::ContainerState::ContainerExited;

use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, equal};
use crate::check::rule::sources::{API, CRITEST, KUBELET};
use crate::check::rule::{Rule, Severity};

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-CTR-050",
        severity: Severity::Must,
        says: "What a client has set of a container, and its image, are the same in its status while it runs and when it has ended.",
        source: API,
        tags: &["kubelet", "echo", "state"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.log_path",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.image_ref",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.labels",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.mounts",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.metadata.attempt",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" drop status.annotations",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.created_at 1",
        ],
        body: |x| Box::pin(settings_stay_in_each_state(x)),
    },
    Rule {
        id: "CRI-CTR-051",
        severity: Severity::Must,
        says: "The status of a container that has not ended has no exit code, no reason, and no time of an end.",
        source: KUBELET,
        tags: &["kubelet", "state", "exit"],
        calls: &["ContainerStatus"],
        faults: &[
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.exit_code 5",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.reason \"Running\"",
            "ContainerStatus if status.state == \"CONTAINER_CREATED\" set status.exit_code 1",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.finished_at 1700000000000000000",
        ],
        body: |x| Box::pin(what_has_not_ended_has_no_end(x)),
    },
    Rule {
        id: "CRI-CTR-052",
        severity: Severity::Must,
        says: "A container that was not given standard input reads its end at once.",
        source: API,
        tags: &["process"],
        calls: &["CreateContainer"],
        faults: &["CreateContainer request set config.stdin true"],
        body: |x| Box::pin(absent_stdin_is_at_its_end(x)),
    },
    Rule {
        id: "CRI-SEC-013",
        severity: Severity::Must,
        says: "A container for which no seccomp profile is given has no filter, and one without no_new_privs may gain rights.",
        source: CRITEST,
        tags: &["kubelet", "seccomp"],
        calls: &["CreateContainer"],
        faults: &[
            "CreateContainer request set config.linux.security_context.no_new_privs true",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\":\"RuntimeDefault\"}",
        ],
        body: |x| Box::pin(nothing_is_confined_unasked(x)),
    },
    Rule {
        id: "CRI-AGR-009",
        severity: Severity::Should,
        says: "The containers in the status of a stopped sandbox have ended.",
        source: KUBELET,
        tags: &["kubelet", "agreement", "state"],
        calls: &["PodSandboxStatus"],
        faults: &[
            "PodSandboxStatus if status.state == \"SANDBOX_NOTREADY\" set containers_statuses.state \"CONTAINER_RUNNING\"",
        ],
        body: |x| Box::pin(containers_of_stopped_sandbox_have_ended(x)),
    },
    Rule {
        id: "CRI-CON-009",
        severity: Severity::Should,
        says: "Calls that only read are answered within 2 s, once in three times at least: a kubelet makes some of them each second.",
        source: KUBELET,
        tags: &["kubelet", "time"],
        calls: &[
            "Version",
            "Status",
            "ListPodSandbox",
            "ListContainers",
            "ListImages",
            "PodSandboxStatus",
            "ContainerStatus",
        ],
        faults: &[
            "Version delay 3",
            "Status delay 3",
            "ListPodSandbox delay 3",
            "ListContainers delay 3",
            "PodSandboxStatus delay 3",
            "ContainerStatus delay 3",
        ],
        body: |x| Box::pin(reading_calls_are_quick(x)),
    },
    Rule {
        id: "CRI-CON-010",
        severity: Severity::Should,
        says: "Each call of a pod's life with an image that is there is answered within 5 s, once in three times at least.",
        source: KUBELET,
        tags: &["kubelet", "time"],
        calls: &[
            "RunPodSandbox",
            "CreateContainer",
            "StartContainer",
            "StopContainer",
            "RemoveContainer",
            "StopPodSandbox",
            "RemovePodSandbox",
        ],
        faults: &[
            "RunPodSandbox delay 6",
            "CreateContainer delay 6",
            "StartContainer delay 6",
            "StopContainer delay 6",
            "RemoveContainer delay 6",
            "StopPodSandbox delay 6",
            "RemovePodSandbox delay 6",
        ],
        body: |x| Box::pin(life_of_pod_is_quick(x)),
    },
];

/// What of a status is the same from the creation on, by field.
fn settings(status: v1::ContainerStatus) -> BTreeMap<&'static str, String> {
    let annotations: BTreeMap<_, _> = status.annotations.into_iter().collect();
    let labels: BTreeMap<_, _> = status.labels.into_iter().collect();
    [
        ("id", status.id),
        ("metadata", format!("{:?}", status.metadata)),
        ("created_at", status.created_at.to_string()),
        ("image", format!("{:?}", status.image)),
        ("image_ref", status.image_ref),
        ("image_id", status.image_id),
        ("labels", format!("{labels:?}")),
        ("annotations", format!("{annotations:?}")),
        ("mounts", format!("{:?}", status.mounts)),
        ("log_path", status.log_path),
    ]
    .into()
}

async fn settings_stay_in_each_state(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config
        .annotations
        .insert("note".to_owned(), "kept".to_owned());
    config.mounts.push(v1::Mount {
        container_path: "/from-host".to_owned(),
        host_path: x.shared.directory.display().to_string(),
        ..Default::default()
    });
    if let Some(metadata) = &mut config.metadata {
        metadata.attempt = 3;
    }
    let id = pod.create(config).await?;
    let created = settings(x.client.container(&id).await?);
    x.client.start(&id).await?;
    let running = settings(x.client.container(&id).await?);
    x.client.stop(&id, 30).await?;
    let ended = settings(x.exited(&id).await?);
    for (what, seen) in [("a running", &running), ("an ended", &ended)] {
        for (field, expected) in &created {
            let what = format!("{field} in the status of {what} container");
            equal(&what, &seen[field].as_str(), &expected.as_str())?;
        }
    }
    Ok(())
}

async fn what_has_not_ended_has_no_end(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.create(x.forever("c")).await?;
    let created = x.client.container(&id).await?;
    x.client.start(&id).await?;
    let running = x.client.container(&id).await?;
    for (what, status) in [("created", created), ("running", running)] {
        let what = format!("exit code, reason and end of a {what} container");
        let seen = (status.exit_code, status.reason.as_str(), status.finished_at);
        equal(&what, &seen, &(0, "", 0))?;
    }
    Ok(())
}

async fn absent_stdin_is_at_its_end(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = pod.start(x.script("c", "cat; exit 4")).await?;
    let status = x.exited(&id).await?;
    equal("exit_code", &status.exit_code, &4)
}

async fn nothing_is_confined_unasked(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let filtered = |status: &str| status.lines().any(|line| line == "Seccomp:\t2");
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if filtered(&own) || own.contains("NoNewPrivs:\t1") {
        return Err(Outcome::Skipped(
            "this process is confined itself, and so is what it starts".to_owned(),
        ));
    }
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let status = x
        .client
        .sh(&id, "cat /proc/1/status /proc/self/status")
        .await?;
    ensure(!filtered(&status), "Seccomp", "0", &status)?;
    let free = !status.contains("NoNewPrivs:\t1");
    ensure(free, "NoNewPrivs", "0", &status)
}

async fn containers_of_stopped_sandbox_have_ended(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    x.running(&pod).await?;
    x.client.stop_pod(&pod.id).await?;
    let status = x.client.pod(&pod.id).await?;
    for container in status.containers_statuses {
        let what = format!("the state of container {}", container.id);
        equal(&what, &container.state(), &ContainerExited)?;
    }
    Ok(())
}

/// How long a call that only reads may take, and how often it is tried.
const QUICK: Duration = Duration::from_secs(2);
const TRIES: usize = 3;

/// Fails if a call took too long each time.
fn is_quick(what: &str, took: &[Duration], limit: Duration) -> Verdict {
    let quick = took.iter().any(|took| *took < limit);
    let expected = format!("an answer within {limit:?}, once in {TRIES} times");
    ensure(quick, what, &expected, took)
}

async fn reading_calls_are_quick(x: &Context) -> Verdict {
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let client = &x.client;
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..TRIES {
        let mut began = Instant::now();
        let mut note = |call| {
            took.entry(call).or_default().push(began.elapsed());
            began = Instant::now();
        };
        client.version().await?;
        note("Version");
        client.status().await?;
        note("Status");
        client.pods(v1::PodSandboxFilter::default()).await?;
        note("ListPodSandbox");
        client.containers(v1::ContainerFilter::default()).await?;
        note("ListContainers");
        client.list_images().await?;
        note("ListImages");
        client.pod(&pod.id).await?;
        note("PodSandboxStatus");
        client.container(&id).await?;
        note("ContainerStatus");
        if took.values().flatten().all(|took| *took < QUICK) {
            break;
        }
    }
    took.iter()
        .try_for_each(|(call, took)| is_quick(call, took, QUICK))
}

/// How long a call of a pod's life may take.
const CHANGED: Duration = Duration::from_secs(5);

async fn life_of_pod_is_quick(x: &Context) -> Verdict {
    let client = &x.client;
    let mut took: BTreeMap<&str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..TRIES {
        let mut note = |call, began: Instant| took.entry(call).or_default().push(began.elapsed());
        let mut began = Instant::now();
        let pod = x.pod().await?;
        note("RunPodSandbox", began);
        began = Instant::now();
        let id = pod.create(x.forever("c")).await?;
        note("CreateContainer", began);
        began = Instant::now();
        client.start(&id).await?;
        note("StartContainer", began);
        x.logged(&pod, "ready").await?;
        began = Instant::now();
        client.stop(&id, 60).await?;
        note("StopContainer", began);
        began = Instant::now();
        client.remove(&id).await?;
        note("RemoveContainer", began);
        began = Instant::now();
        client.stop_pod(&pod.id).await?;
        note("StopPodSandbox", began);
        began = Instant::now();
        client.remove_pod(&pod.id).await?;
        note("RemovePodSandbox", began);
        if took.values().flatten().all(|took| *took < CHANGED) {
            break;
        }
    }
    took.iter()
        .try_for_each(|(call, took)| is_quick(call, took, CHANGED))
}
