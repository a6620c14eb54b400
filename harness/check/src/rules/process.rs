//! Rules for processes: all processes of a container end with it, and its status reports how it ended.

pub(crate) mod children;
pub(crate) mod initial_state;
pub(crate) mod timestamps;

use tokio::time::Instant;

use crate::fifo::{LifetimeFifo, OPEN_FIFO};
use crate::prelude::*;
use crate::rules::sandbox::echo::now;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PRC-001": "No process of a container survives StopContainer, even if it ignores SIGTERM.",
        API, tags ["kubelet", "signal"], calls [StopContainer],
        stop_ends_every_process given [pod], faults ["StopContainer swallow", "StopContainer answer DEADLINE_EXCEEDED"];
    Must "CRI-PRC-002": "A container is reported as exited when its first process ends, and not earlier; the container's other processes then end, too.",
        KUBELET, tags ["kubelet", "exit", "state"], calls [ContainerStatus],
        exit_is_that_of_first_process given [pod], faults [
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_EXITED\"",
        ];
    Must "CRI-PRC-003": "No process of a pod survives StopPodSandbox.",
        API, tags ["kubelet", "signal"], calls [StopPodSandbox],
        pod_stop_ends_every_process given [pod], faults [
            "StopPodSandbox swallow",
            "StopPodSandbox answer DEADLINE_EXCEEDED",
        ];
    Must "CRI-PRC-004": "No process of a container survives RemoveContainer.",
        API, tags ["kubelet", "signal"], calls [RemoveContainer],
        removal_ends_every_process given [pod], faults ["RemoveContainer swallow"];
    Must "CRI-PRC-005": "No process of a pod survives RemovePodSandbox.",
        API, tags ["kubelet", "signal"], calls [RemovePodSandbox],
        pod_removal_ends_every_process given [pod], faults ["RemovePodSandbox swallow"];
    Must "CRI-PRC-006": "When a container is stopped, its ExecSync commands end and their calls return.",
        CRIO, tags ["exec", "signal"], calls [ExecSync, StopContainer],
        exec_ends_with_container given [pod], faults [
            "StopContainer swallow",
            "ExecSync hang",
            "ExecSync request set cmd [\"/bin/sh\", \"-c\", \"sleep 1000\"]",
        ];
    Must "CRI-PRC-007": "In a shared PID namespace, StopContainer ends the container's processes and leaves other containers running.",
        CRIO, tags ["kubelet", "signal", "namespaces"], calls [StopContainer, ContainerStatus],
        stop_in_shared_namespace_ends_one_container, faults [
            "StopContainer swallow",
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
        ];
    Must "CRI-PRC-008": "StopContainer does not kill a container that exits within the grace period, and ContainerStatus reports the container's own exit code.",
        KUBELET, tags ["kubelet", "signal", "time", "exit"], calls [StopContainer, ContainerStatus],
        grace_period_is_not_shortened given [pod], faults [
            "StopContainer request set timeout 1",
            "StopContainer request set timeout 10",
            "StopContainer request drop timeout",
            "ContainerStatus set status.exit_code 137",
        ];
    Must "CRI-PRC-009": "Exit codes from 0 to 255 are reported unchanged, with the reason Completed for 0 and Error for all others.",
        KUBELET, tags ["kubelet", "exit"], calls [ContainerStatus],
        exit_codes_are_reported given [pod], faults [
            "ContainerStatus if status.exit_code = 255 set status.exit_code -1",
            "ContainerStatus if status.exit_code = 2 set status.exit_code 1",
            "ContainerStatus if status.exit_code = 126 set status.reason \"ContainerCannotRun\"",
            "ContainerStatus drop status.exit_code",
        ];
    Must "CRI-PRC-010": "started_at and finished_at are the times at which the process started and ended.",
        KUBELET, tags ["kubelet", "time"], calls [ContainerStatus],
        times_are_those_of_process given [pod], faults [
            "ContainerStatus drop status.started_at",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" drop status.finished_at",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" set status.finished_at 1500000000000000000",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" set status.started_at 1500000000000000000",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" set status.finished_at 1800000000",
        ];
    Must "CRI-PRC-011": "StopContainer and StopPodSandbox do not change the status of an exited container.",
        KUBELET, tags ["kubelet", "exit", "state"], calls [ContainerStatus, StopContainer, StopPodSandbox],
        exit_is_reported_unchanged given [pod], faults [
            "ContainerStatus drop status.exit_code",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" drop status.reason",
            "ListContainers set containers.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-PRC-014": "After StopPodSandbox ends a running container, ContainerStatus reports the exit code 143 or 137, the reason Error, and the finish time.",
        KUBELET, tags ["kubelet", "exit", "signal"], calls [StopPodSandbox, ContainerStatus],
        exit_with_pod_is_reported given [pod, container], faults [
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" drop status.exit_code",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" set status.reason \"Completed\"",
            "ContainerStatus if status.state = \"CONTAINER_EXITED\" drop status.finished_at",
            "StopPodSandbox swallow",
        ];
    Must "CRI-PRC-012": "The configured process runs exactly once: it starts with StartContainer and is not restarted.",
        API, tags ["kubelet", "state", "restart"], calls [CreateContainer, StartContainer],
        process_runs_once given [pod], faults [
            "StartContainer swallow",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"echo up >>/mnt/log; echo up >>/mnt/log\"]",
        ];
};

/// Ignores SIGTERM, as its children do.
const IGNORES_SIGTERM: &str =
    "trap '' TERM; sleep 1000 & sleep 1000 & while :; do sleep 1000; done";

/// Starts a container whose processes hold a FIFO open, and waits until they do.
pub(crate) async fn start_with_fifo(
    x: &Context,
    pod: &Pod,
    name: &str,
    script: &str,
) -> Verdict<(String, LifetimeFifo)> {
    let mut fifo = LifetimeFifo::new(x)?;
    let mut config = x.script(name, &format!("{OPEN_FIFO}{script}"));
    fifo.mount(&mut config);
    let namespaces = fixture::security(&mut config).namespace_options.get_or_insert_default();
    let of_pod = pod.config.linux.as_ref();
    let of_pod =
        of_pod.and_then(|linux| linux.security_context.as_ref()?.namespace_options.as_ref());
    namespaces.pid = of_pod.map_or(namespaces.pid, |of_pod| of_pod.pid);
    let id = pod.start(config).await?;
    fifo.wait_opened(x, 1).await?;
    Ok((id, fifo))
}

async fn stop_ends_every_process(x: &Context, pod: Pod) -> Verdict {
    let (id, mut fifo) = start_with_fifo(x, &pod, "c", IGNORES_SIGTERM).await?;
    x.client.stop(&id, 1).await?;
    fifo.wait_closed(x, "StopContainer").await
}

async fn exit_is_that_of_first_process(x: &Context, pod: Pod) -> Verdict {
    let script = "(trap '' TERM HUP; sleep 1000) & while [ ! -e /mnt/go ]; do sleep 0.1; done";
    let (id, mut fifo) = start_with_fifo(x, &pod, "c", script).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    let go = fifo.directory.join("go");
    if let Err(error) = std::fs::write(&go, "") {
        return failed("the directory of the FIFO", "to be written", error.to_string());
    }
    x.exited(&id).await?;
    fifo.wait_closed(x, "the exit of the container").await
}

async fn pod_stop_ends_every_process(x: &Context, pod: Pod) -> Verdict {
    let (_, mut first) = start_with_fifo(x, &pod, "c", IGNORES_SIGTERM).await?;
    let (_, mut second) = start_with_fifo(x, &pod, "d", IGNORES_SIGTERM).await?;
    x.client.stop_pod(&pod.id).await?;
    first.wait_closed(x, "StopPodSandbox").await?;
    second.wait_closed(x, "StopPodSandbox").await
}

async fn removal_ends_every_process(x: &Context, pod: Pod) -> Verdict {
    let (id, mut fifo) = start_with_fifo(x, &pod, "c", IGNORES_SIGTERM).await?;
    x.client.remove(&id).await?;
    fifo.wait_closed(x, "RemoveContainer").await
}

async fn pod_removal_ends_every_process(x: &Context, pod: Pod) -> Verdict {
    let (_, mut fifo) = start_with_fifo(x, &pod, "c", IGNORES_SIGTERM).await?;
    x.client.remove_pod(&pod.id).await?;
    fifo.wait_closed(x, "RemovePodSandbox").await
}

async fn exec_ends_with_container(x: &Context, pod: Pod) -> Verdict {
    let mut fifo = LifetimeFifo::new(x)?;
    let mut config = x.forever("c");
    fifo.mount(&mut config);
    let id = x.start_ready(&pod, config).await?;
    let (client, container) = (x.client.clone(), id.clone());
    let script = format!("{OPEN_FIFO}{IGNORES_SIGTERM}");
    let exec =
        tasks::spawn(async move { client.exec(&container, ["/bin/sh", "-c", &script], 0).await });
    fifo.wait_opened(x, 1).await?;
    x.client.stop(&id, 1).await?;
    fifo.wait_closed(x, "StopContainer").await?;
    match tokio::time::timeout(x.shared.wait_limit, exec).await {
        // The runtime may return an error or an exit code.
        Ok(_) => Ok(()),
        Err(_) => failed("ExecSync of a command that was killed", "to end", "no end"),
    }
}

async fn stop_in_shared_namespace_ends_one_container(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    fixture::pod_namespaces(&mut config).pid = NamespaceMode::Pod.into();
    let pod = x.pod_of(config).await?;
    let (first, mut ending) = start_with_fifo(x, &pod, "c", IGNORES_SIGTERM).await?;
    let (second, mut staying) = start_with_fifo(x, &pod, "d", IGNORES_SIGTERM).await?;
    x.client.stop(&first, 0).await?;
    ending.wait_closed(x, "StopContainer").await?;
    x.container_is(&second, ContainerState::ContainerRunning).await?;
    ensure(staying.is_open(), "the processes of the other container", "to survive", "all ended")
}

async fn grace_period_is_not_shortened(x: &Context, pod: Pod) -> Verdict {
    let script = "trap 'echo asked; sleep 12; exit 9' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = x.start_ready(&pod, x.script("c", script)).await?;
    let began = Instant::now();
    x.client.stop(&id, 60).await?;
    let took = began.elapsed();
    // Longer than the default grace periods of runtimes, commonly 10 s.
    let what = "StopContainer of a container that needs 12 s to end";
    ensure(took.as_secs() >= 11, what, "to wait for it", took)?;
    let status = x.client.container(&id).await?;
    equal("the exit code", &status.exit_code, &9)?;
    equal("the reason", status.reason.as_str(), "Error")
}

async fn exit_codes_are_reported(x: &Context, pod: Pod) -> Verdict {
    for (attempt, code) in (0..).zip([0, 1, 2, 126, 127, 128, 200, 255]) {
        let mut config = x.script("c", &format!("exit {code}"));
        config.metadata.get_or_insert_default().attempt = attempt;
        let id = pod.start(config).await?;
        let status = x.exited(&id).await?;
        equal("the exit code", &status.exit_code, &code)?;
        let reason = if code == 0 { "Completed" } else { "Error" };
        let what = format!("the reason for exit code {code}");
        equal(&what, status.reason.as_str(), reason)?;
    }
    Ok(())
}

/// A margin for kernel clocks, whose ticks last up to 10 ms.
pub(crate) const TICK: i64 = 50_000_000;

async fn times_are_those_of_process(x: &Context, pod: Pod) -> Verdict {
    let script = "echo ready; while [ ! -e /mnt/go ]; do sleep 0.1; done";
    let before = now() - TICK;
    let (id, fifo) = start_with_fifo(x, &pod, "c", script).await?;
    let started = now() + TICK;
    let stopped_from = now() - TICK;
    if let Err(error) = std::fs::write(fifo.directory.join("go"), "") {
        return failed("the directory of the FIFO", "to be written", error.to_string());
    }
    let status = x.exited(&id).await?;
    let (began, ended) = (status.started_at, status.finished_at);
    let holds = (before..=started).contains(&began);
    ensure(holds, "started_at", &format!("between {before} and {started}"), began)?;
    let last = now() + TICK;
    let what = "finished_at";
    ensure(
        (stopped_from..=last).contains(&ended),
        what,
        &format!("between {stopped_from} and {last}"),
        ended,
    )
}

async fn exit_is_reported_unchanged(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 33")).await?;
    let first = x.exited(&id).await?;
    let exit_details = (first.exit_code, first.reason.as_str());
    equal("the exit code and the reason", &exit_details, &(33, "Error"))?;
    expect_unchanged(x, &first, "the exit").await?;
    x.client.stop(&id, 1).await?;
    expect_unchanged(x, &first, "StopContainer").await?;
    x.client.stop_pod(&pod.id).await?;
    expect_unchanged(x, &first, "StopPodSandbox").await
}

async fn exit_with_pod_is_reported(x: &Context, pod: Pod, id: String) -> Verdict {
    x.client.stop_pod(&pod.id).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    let status = x.client.container(&id).await?;
    let exit_details = (status.exit_code, status.reason.as_str());
    // After SIGTERM, or after SIGKILL.
    let what = "the exit code and the reason of a container whose pod was stopped";
    ensure(
        matches!(exit_details, (143 | 137, "Error")),
        what,
        "143 or 137, and Error",
        exit_details,
    )?;
    let what = "finished_at of a container that has run for a while";
    let holds = status.finished_at >= status.started_at;
    ensure(holds, what, &format!("not before {}", status.started_at), status.finished_at)
}

/// Fails unless the container still has this status.
async fn expect_unchanged(x: &Context, first: &v1::ContainerStatus, after: &str) -> Verdict {
    let what = format!("ContainerStatus after {after}");
    equal(&what, &x.client.container(&first.id).await?, first)?;
    x.container_is(&first.id, ContainerState::ContainerExited).await
}

async fn process_runs_once(x: &Context, pod: Pod) -> Verdict {
    let fifo = LifetimeFifo::new(x)?;
    let mut config = x.script("c", "echo up >>/mnt/log; exit 1");
    fifo.mount(&mut config);
    let id = pod.create(config).await?;
    let log = fifo.directory.join("log");
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    equal("the log of the process before StartContainer", lines().as_str(), "")?;
    x.client.start(&id).await?;
    x.exited(&id).await?;
    // A runtime that restarts processes does so when it sees the exit.
    let other = pod.start(x.script("d", "exit 0")).await?;
    x.exited(&other).await?;
    equal("the log of the process", lines().as_str(), "up\n")?;
    x.container_is(&id, ContainerState::ContainerExited).await
}
