//! Rules of cancelled calls: the runtime remains usable, and completes or undoes the work that it started.

use registry::Fault;
use tonic::Request;

use crate::prelude::*;
use crate::rules::event::{events_of, kind, subscribe};
use crate::rules::image;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CAN-001": "After RunPodSandbox is cancelled, a retry succeeds; the runtime may require that the client first removes the sandbox that the cancelled call created.",
        KUBELET, tags ["kubelet", "cancellation", "names"], calls [RunPodSandbox],
        pod_is_run_after_cancelled_run, faults [
            "RunPodSandbox if request config.annotations.turn = \"again\" answer UNKNOWN",
            "RunPodSandbox if request config.annotations.turn = \"again\" hang",
            "PodSandboxStatus set status.state \"SANDBOX_NOTREADY\"",
        ];
    Must "CRI-CAN-002": "After CreateContainer is cancelled, a retry succeeds; the runtime may require that the client first removes the container that the cancelled call created.",
        CRIO, tags ["kubelet", "cancellation", "names"], calls [CreateContainer],
        container_is_created_after_cancelled_create given [pod], faults [
            "CreateContainer if request config.annotations.turn = \"again\" answer UNKNOWN",
            "CreateContainer if request config.annotations.turn = \"again\" hang",
            "StartContainer swallow",
        ];
    Must "CRI-CAN-003": "After StopContainer is cancelled during the grace period, the container keeps running and can be stopped again.",
        KUBELET, tags ["kubelet", "cancellation", "signal"], calls [StopContainer, ContainerStatus],
        container_is_stopped_after_cancelled_stop given [pod], faults [
            "StopContainer if request timeout = null swallow",
            "StopContainer if request timeout = null answer FAILED_PRECONDITION",
            "StopContainer request drop timeout",
        ];
    Must "CRI-CAN-004": "After a cancelled ExecSync the container keeps running, and further commands run in it.",
        KUBELET, tags ["kubelet", "cancellation", "probe", "exec"], calls [ExecSync],
        container_is_usable_after_cancelled_exec, faults [
            "ExecSync if request cmd = \"echo usable\" answer UNKNOWN",
            "ExecSync if request cmd = \"echo usable\" drop stdout",
        ];
    Must "CRI-CAN-005": "While PullImage pulls an image, ImageStatus does not return this image; after PullImage is cancelled, a new PullImage succeeds.",
        KUBELET, tags ["kubelet", "cancellation", "image"], calls [PullImage, ImageStatus],
        image_is_pulled_after_cancelled_pull, faults [
            "ImageStatus drop image",
            "ImageStatus set image {\"id\": \"sha256:none\", \"size\": 1}",
            "PullImage swallow",
        ];
    Should "CRI-CAN-006": "A subscriber receives every event even if earlier subscribers have disconnected.",
        API, tags ["evented-pleg", "cancellation"], calls [GetContainerEvents],
        subscribers_that_leave_cost_nothing, faults [
            "GetContainerEvents lose",
            "GetContainerEvents repeat",
            "GetContainerEvents drop container_id",
        ];
    Must "CRI-CAN-007": "A call ends at the gRPC deadline that its client set, and the runtime still answers later calls.",
        API, tags ["cancellation", "time"], calls [ExecSync, Version],
        deadline_ends_call given [container], faults ["ExecSync swallow", "Version hang", "Version answer UNAVAILABLE"];
};

/// When calls are cancelled: early, midway and late.
const CANCEL_DELAYS: [Duration; 4] = [
    Duration::from_millis(1),
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(200),
];
/// The annotation by which faults distinguish the calls of a rule.
const ATTEMPT_ANNOTATION: &str = "turn";

fn attempt_annotation(word: &str) -> [(String, String); 1] {
    [(ATTEMPT_ANNOTATION.to_owned(), word.to_owned())]
}

async fn pod_is_run_after_cancelled_run(x: &Context) -> Verdict {
    for delay in CANCEL_DELAYS {
        let mut config = x.sandbox();
        drop(std::fs::create_dir_all(&config.log_directory));
        config.annotations.extend(attempt_annotation("given up"));
        // Dropping the call resets its stream.
        drop(tokio::time::timeout(delay, x.client.run_pod(config.clone())).await);
        config.annotations.extend(attempt_annotation("again"));
        let uid = config.metadata.clone().unwrap_or_default().uid;
        let id = x
            .until("RunPodSandbox to succeed after a cancelled one", async || {
                let refusal = match x.client.run_pod(config.clone()).await {
                    Ok(id) => return Ok(id),
                    Err(status) => status,
                };
                // The first call may have succeeded: the kubelet finds such a sandbox and removes it.
                let all = x.client.pods(v1::PodSandboxFilter::default()).await;
                let ours = |pod: &&v1::PodSandbox| {
                    let metadata = pod.metadata.as_ref();
                    metadata.is_some_and(|metadata| metadata.uid == uid)
                };
                for pod in all.iter().flatten().filter(ours) {
                    drop(x.client.stop_pod(&pod.id).await);
                    drop(x.client.remove_pod(&pod.id).await);
                }
                Err(refusal)
            })
            .await?;
        x.pod_is(&id, PodSandboxState::SandboxReady).await?;
    }
    Ok(())
}

async fn container_is_created_after_cancelled_create(x: &Context, pod: Pod) -> Verdict {
    for (attempt, delay) in (0..).zip(CANCEL_DELAYS) {
        let mut config = x.forever("c");
        config.metadata.get_or_insert_default().attempt = attempt;
        config.annotations.extend(attempt_annotation("given up"));
        drop(tokio::time::timeout(delay, pod.create(config.clone())).await);
        config.annotations.extend(attempt_annotation("again"));
        let id = x
            .until("CreateContainer to succeed after a cancelled one", async || {
                let refusal = match pod.create(config.clone()).await {
                    Ok(id) => return Ok(id),
                    Err(status) => status,
                };
                let filter =
                    v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
                let all = x.client.containers(filter).await;
                let ours = |one: &&v1::Container| one.metadata == config.metadata;
                for container in all.iter().flatten().filter(ours) {
                    drop(x.client.remove(&container.id).await);
                }
                Err(refusal)
            })
            .await?;
        x.client.start(&id).await?;
        x.container_is(&id, ContainerState::ContainerRunning).await?;
        x.client.stop(&id, 0).await?;
    }
    Ok(())
}

async fn container_is_stopped_after_cancelled_stop(x: &Context, pod: Pod) -> Verdict {
    let script = "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = x.start_ready(&pod, x.script("c", script)).await?;
    let (client, stopped) = (x.client.clone(), id.clone());
    let stop = tasks::spawn(async move { client.stop(&stopped, 3600).await });
    x.logged(&pod, "asked").await?;
    stop.abort();
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    x.client.stop(&id, 0).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    equal("the exit code", &x.client.container(&id).await?.exit_code, &137)
}

async fn container_is_usable_after_cancelled_exec(x: &Context) -> Verdict {
    // The command writes to the log through the container's first process.
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let (client, container) = (x.client.clone(), id.clone());
    let script = "echo begun >/proc/1/fd/1; exec sleep 1000";
    let exec =
        tasks::spawn(async move { client.exec(&container, ["/bin/sh", "-c", script], 0).await });
    x.logged(&pod, "begun").await?;
    exec.abort();
    let answer = x.client.exec(&id, ["/bin/sh", "-c", "echo usable"], 30).await?;
    let stdout = String::from_utf8_lossy(&answer.stdout).into_owned();
    equal("the output of the next command", stdout.as_str(), "usable\n")?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn image_is_pulled_after_cancelled_pull(x: &Context) -> Verdict {
    let (name, digest) = image::add(x, "1", |image| image)?;
    let images = x.images()?;
    let blobs = format!("{}/blobs/", images.repository(&x.rule.to_lowercase()));
    // The registry stalls the first blob.
    images.fail(Fault::stall(0).method("GET").on(&blobs).times(1));
    let (pulling, client) = (name.clone(), x.client.clone());
    let mut pull = tasks::spawn(async move { client.pull(&pulling).await });
    let requested = x.until("PullImage to request a blob", async || match images.seen(&blobs) {
        0 => Err(digest.clone()),
        _ => Ok(()),
    });
    tokio::select! {
        ended = &mut pull => {
            return match ended {
                Ok(Err(status)) => Err(image::refusal(status)),
                other => failed("PullImage of an image whose blob stalls", "to wait", format!("{other:?}")),
            };
        }
        requested = requested => requested?,
    }
    let early = x.client.image(&name).await?;
    equal("ImageStatus while PullImage waits", &early, &None)?;
    pull.abort();
    image::pull(x, &name).await?;
    let status = image::status(x, &name).await?;
    ensure(status.size > 0, "the size", "not 0", &status)
}

async fn subscribers_that_leave_cost_nothing(x: &Context) -> Verdict {
    for _ in 0..4 {
        // Dropping the stream closes it.
        let gone = subscribe(x).await?;
        gone.abort();
    }
    let subscription = subscribe(x).await?;
    let pod = x.pod().await?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    let events = events_of(x, subscription, &[&pod.id]).await?;
    let kinds: Vec<_> = events.iter().map(|event| kind(event).1).collect();
    let expected = [
        v1::ContainerEventType::ContainerCreatedEvent,
        v1::ContainerEventType::ContainerStartedEvent,
        v1::ContainerEventType::ContainerStoppedEvent,
        v1::ContainerEventType::ContainerDeletedEvent,
    ];
    equal("the events of the last subscriber", &kinds, &expected.to_vec())
}

async fn deadline_ends_call(x: &Context, id: String) -> Verdict {
    let mut request = Request::new(v1::ExecSyncRequest {
        container_id: id,
        cmd: ["/bin/sh", "-c", "exec sleep 1000"].map(str::to_owned).into(),
        timeout: 0,
    });
    request.set_timeout(Duration::from_secs(1));
    let answer = x.client.runtime.clone().exec_sync(request).await;
    match answer {
        Err(status) if matches!(status.code(), Code::DeadlineExceeded | Code::Cancelled) => {}
        Err(status) => return Err(Outcome::from(status)),
        Ok(answer) => {
            return failed(
                "ExecSync of a command that takes 1000 s, with a deadline of 1 s",
                "DEADLINE_EXCEEDED",
                format!("{answer:?}"),
            );
        }
    }
    Ok(x.client.version().await.map(drop)?)
}
