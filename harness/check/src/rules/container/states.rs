//! Rules of the fields of ContainerStatus: those of each state, those that never change, and the message of
//! a container that failed to start.

use std::time::Instant;

use compact::Map;
use cri::v1::ContainerState::ContainerExited;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CTR-050": "The settings and the image in ContainerStatus do not change when the container starts or exits.",
        API, tags ["kubelet", "echo", "state"], calls [ContainerStatus],
        settings_stay_in_each_state given [namespaces, pod], faults [
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.log_path",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.image_ref",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.labels",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.mounts",
            "ContainerStatus if status.state == \"CONTAINER_EXITED\" drop status.metadata.attempt",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" drop status.annotations",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.created_at 1",
        ];
    Must "CRI-CTR-051": "A container that has not exited has no exit code, no reason and no finish time.",
        KUBELET, tags ["kubelet", "state", "exit"], calls [ContainerStatus],
        unfinished_container_has_no_finish_time given [pod], faults [
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.exit_code 5",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.reason \"Running\"",
            "ContainerStatus if status.state == \"CONTAINER_CREATED\" set status.exit_code 1",
            "ContainerStatus if status.state == \"CONTAINER_RUNNING\" set status.finished_at 1700000000000000000",
        ];
    Must "CRI-CTR-052": "If a container was created without standard input, its process reads end of file from standard input immediately.",
        API, tags ["process"], calls [CreateContainer],
        absent_stdin_is_at_its_end given [pod], faults ["CreateContainer request set config.stdin true"];
    Must "CRI-SEC-013": "By default a container has no seccomp filter and no_new_privs is not set.",
        CRITEST, tags ["kubelet", "seccomp"], calls [CreateContainer],
        nothing_is_confined_by_default given [namespaces], faults [
            "CreateContainer request set config.linux.security_context.no_new_privs true",
            "CreateContainer request set config.linux.security_context.seccomp {\"profile_type\":\"RuntimeDefault\"}",
        ];
    Should "CRI-AGR-009": "The containers in the status of a stopped sandbox are CONTAINER_EXITED.",
        KUBELET, tags ["kubelet", "agreement", "state"], calls [PodSandboxStatus],
        containers_of_stopped_sandbox_have_ended given [pod], faults [
            "PodSandboxStatus if status.state == \"SANDBOX_NOTREADY\" set containers_statuses.state \"CONTAINER_RUNNING\"",
        ];
    Should "CRI-CON-009": "Each read-only call returns within 2 s in at least one of 3 attempts; the kubelet makes some of these calls every second.",
        KUBELET, tags ["kubelet", "time"], calls [Version, Status, ListPodSandbox, ListContainers, ListImages, PodSandboxStatus, ContainerStatus],
        reading_calls_are_quick given [pod, container], faults [
            "Version delay 3",
            "Status delay 3",
            "ListPodSandbox delay 3",
            "ListContainers delay 3",
            "PodSandboxStatus delay 3",
            "ContainerStatus delay 3",
        ];
    Should "CRI-CON-010": "Each lifecycle call for a pod whose image is present returns within 5 s in at least one of 3 attempts.",
        KUBELET, tags ["kubelet", "time"], calls [RunPodSandbox, CreateContainer, StartContainer, StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox],
        life_of_pod_is_quick, faults [
            "RunPodSandbox delay 6",
            "CreateContainer delay 6",
            "StartContainer delay 6",
            "StopContainer delay 6",
            "RemoveContainer delay 6",
            "StopPodSandbox delay 6",
            "RemovePodSandbox delay 6",
        ];
};

/// The fields of a status that never change after the creation.
fn settings(status: v1::ContainerStatus) -> Map<&'static str, String> {
    let annotations: Map<_, _> = status.annotations.into_iter().collect();
    let labels: Map<_, _> = status.labels.into_iter().collect();
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

async fn settings_stay_in_each_state(x: &Context, pod: Pod) -> Verdict {
    let mut config = x.forever("c");
    config.annotations.insert("note".to_owned(), "kept".to_owned());
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
    for (what, seen) in [("a running", &running), ("an exited", &ended)] {
        for (field, expected) in &created {
            let what = format!("{field} in the status of {what} container");
            equal(&what, &seen[field].as_str(), &expected.as_str())?;
        }
    }
    Ok(())
}

async fn unfinished_container_has_no_finish_time(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    let created = x.client.container(&id).await?;
    x.client.start(&id).await?;
    let running = x.client.container(&id).await?;
    for (what, status) in [("created", created), ("running", running)] {
        let what = format!("exit code, reason and finish time of a {what} container");
        let seen = (status.exit_code, status.reason.as_str(), status.finished_at);
        equal(&what, &seen, &(0, "", 0))?;
    }
    Ok(())
}

async fn absent_stdin_is_at_its_end(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "cat; exit 4")).await?;
    let status = x.exited(&id).await?;
    equal("exit_code", &status.exit_code, &4)
}

async fn nothing_is_confined_by_default(x: &Context) -> Verdict {
    let filtered = |status: &str| status.lines().any(|line| line == "Seccomp:\t2");
    let own = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    if filtered(&own) || own.contains("NoNewPrivs:\t1") {
        return skipped(
            "this process has a seccomp filter or no_new_privs, which children inherit",
        );
    }
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let status = x.client.sh(&id, "cat /proc/1/status /proc/self/status").await?;
    ensure(!filtered(&status), "Seccomp", "0", &status)?;
    let free = !status.contains("NoNewPrivs:\t1");
    ensure(free, "NoNewPrivs", "0", &status)
}

async fn containers_of_stopped_sandbox_have_ended(x: &Context, pod: Pod) -> Verdict {
    x.running(&pod).await?;
    x.client.stop_pod(&pod.id).await?;
    let status = x.client.pod(&pod.id).await?;
    for container in status.containers_statuses {
        let what = format!("the state of container {}", container.id);
        equal(&what, &container.state(), &ContainerExited)?;
    }
    Ok(())
}

/// The time limit of a read-only call, and the number of attempts.
const QUICK: Duration = Duration::from_secs(2);
const TRIES: usize = 3;

/// Fails if a call took too long in every attempt.
fn is_quick(what: &str, took: &[Duration], limit: Duration) -> Verdict {
    let quick = took.iter().any(|took| *took < limit);
    let expected = format!("an answer within {limit:?} in one of {TRIES} attempts");
    ensure(quick, what, &expected, took)
}

async fn reading_calls_are_quick(x: &Context, pod: Pod, id: String) -> Verdict {
    let client = &x.client;
    let mut took: Map<&str, Vec<Duration>> = Map::new();
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
    took.iter().try_for_each(|(call, took)| is_quick(call, took, QUICK))
}

/// The time limit of a call of the pod lifecycle.
const CHANGED: Duration = Duration::from_secs(5);

async fn life_of_pod_is_quick(x: &Context) -> Verdict {
    let client = &x.client;
    let mut took: Map<&str, Vec<Duration>> = Map::new();
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
    took.iter().try_for_each(|(call, took)| is_quick(call, took, CHANGED))
}

pub(crate) const FAILED_START: &[Rule] = rules! {
    Should "CRI-CTR-054": "If a container failed to start, the message in its ContainerStatus contains the cause; the kubelet shows this message in the pod's status.",
        KUBELET, tags ["kubelet", "exit"], calls [StartContainer, ContainerStatus],
        status_says_why_it_did_not_start, faults [
            "ContainerStatus drop status.message",
            "ContainerStatus set status.message \"failed\"",
        ];
};

async fn status_says_why_it_did_not_start(x: &Context) -> Verdict {
    let command = "/no/such/command";
    let pod = x.pod().await?;
    let mut config = x.forever("c");
    config.command = vec![command.to_owned()];
    let id = match pod.create(config).await {
        Ok(id) => id,
        answer => {
            refused("CreateContainer of a missing command", answer)?;
            let how = "CreateContainer refuses a nonexistent command and creates no container";
            return Err(Outcome::Diverges(how.to_owned()));
        }
    };
    let start = x.client.start(&id).await;
    refused("StartContainer of a missing command", start)?;
    let status = x.client.container(&id).await?;
    if status.state() == ContainerState::ContainerCreated {
        let how = "a container that failed to start stays CONTAINER_CREATED";
        return Err(Outcome::Diverges(how.to_owned()));
    }
    let says = status.message.contains(command);
    ensure(says, "message in ContainerStatus", "the missing command", &status.message)
}
