//! Rules for child processes of a container's first process: signals, exit and reaping.

use crate::prelude::*;
use crate::rules::namespaces;
use crate::rules::process::start_with_fifo;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-PRC-019": "In a shared PID namespace, a container killed by SIGTERM has exit code 143.",
        KUBELET, tags ["kubelet", "exit", "signal"], calls [StopContainer, ContainerStatus],
        signal_is_in_exit_code, faults [
            "ContainerStatus set status.exit_code 15",
            "StopContainer request set timeout 0",
        ];
    Must "CRI-STP-016": "StopContainer signals only the first process of a container, not its process group.",
        KUBELET, tags ["kubelet", "signal"], calls [StopContainer],
        signal_is_for_first_process given [pod], faults [
            "StopContainer swallow",
            "StopContainer request set timeout 0",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"trap 'echo child asked; echo child alive; exit 9' TERM; echo child ready; echo ready; while :; do sleep 1000 & wait $!; done\"]",
        ];
    Must "CRI-PRC-016": "In a shared PID namespace, a container's remaining processes end when its first process ends, as in a separate PID namespace.",
        CONTAINERD, tags ["kubelet", "exit", "namespaces"], calls [CreateContainer, ContainerStatus],
        orphans_end_in_shared_namespace, faults [
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "ContainerStatus set status.state \"CONTAINER_RUNNING\"",
            "ListContainers set containers.state \"CONTAINER_EXITED\"",
        ];
    Should "CRI-PRC-017": "Process 1 of a shared PID namespace reaps the orphaned processes of the containers, so that no zombies remain.",
        KUBELET, tags ["kubelet", "namespaces"], calls [RunPodSandbox, CreateContainer],
        orphans_are_reaped, faults [
            "ExecSync after 1 set stdout \"b3RoZXIK\"",
            "CreateContainer request set config.command [\"/bin/sh\", \"-c\", \"for n in 1 2 3; do sh -c 'echo pid $$; exec sleep 0.05' & done; echo ready; exec sleep 1000\"]",
        ];
};

/// A shell and its child. SIGTERM has a lower number than SIGWINCH, and shells and kernels handle signals in the order of their
/// numbers, so the child would print its line for SIGTERM before its line for SIGWINCH.
const FAMILY: &str = "trap 'kill -WINCH $child; wait $child; exit 9' TERM
(trap 'echo child asked' TERM; trap 'echo child alive; exit' WINCH; echo child ready; while :; do sleep 1000 & wait $!; done) &
child=$!; echo ready; while :; do wait $child; done";

async fn signal_is_for_first_process(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", FAMILY)).await?;
    x.logged(&pod, "child ready").await?;
    x.logged(&pod, "ready").await?;
    x.client.stop(&id, 60).await?;
    let code = x.client.container(&id).await?.exit_code;
    equal("the exit code", &code, &9)?;
    x.logged(&pod, "child alive").await?;
    let lines = x.lines(&pod);
    let what = "the output of the first process's child";
    ensure(lines.iter().all(|line| line.text != "child asked"), what, "nothing on SIGTERM", &lines)
}

async fn signal_is_in_exit_code(x: &Context) -> Verdict {
    let pod = namespaces::pod(x, |options| options.pid = NamespaceMode::Pod.into()).await?;
    let mut config = namespaces::container(x, &pod, "c", |_| {});
    config.command = ["/bin/sh", "-c", "echo ready; exec sleep 1000"].map(str::to_owned).into();
    let id = x.start_ready(&pod, config).await?;
    x.client.stop(&id, 60).await?;
    let code = x.client.container(&id).await?.exit_code;
    equal("the exit code", &code, &143)
}

/// Programs that do not reap orphans. A pause image with such a program is not the runtime's fault.
const REAPS_NOTHING: [&str; 4] = ["sleep", "tail", "sh", "busybox"];

/// Leaves an orphan in its own process group, and exits when /mnt/go exists.
const LEAVE_ORPHAN: &str = "if command -v perl >/dev/null
then perl -e 'exit if fork; setpgrp; $SIG{TERM} = $SIG{HUP} = \"IGNORE\"; exec \"sleep\", \"7777\"' >/dev/null 2>&1
else (trap '' TERM HUP; exec sleep 7777) >/dev/null 2>&1 &
fi
until [ -e /mnt/go ]; do sleep 0.05; done";

async fn orphans_end_in_shared_namespace(x: &Context) -> Verdict {
    let pod = namespaces::pod(x, |options| options.pid = NamespaceMode::Pod.into()).await?;
    let config = namespaces::container(x, &pod, "d", |_| {});
    let other = pod.start(config).await?;
    let (id, mut fifo) = start_with_fifo(x, &pod, "c", LEAVE_ORPHAN).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    std::fs::write(fifo.directory.join("go"), "")
        .map_err(|error| Outcome::Skipped(format!("no file for the container: {error}")))?;
    x.exited(&id).await?;
    x.container_is(&other, ContainerState::ContainerRunning).await?;
    if fifo.wait_closed(x, "the exit of its first process").await.is_ok() {
        return Ok(());
    }
    // Some runtimes kill remaining processes only on removal.
    x.client.remove(&id).await?;
    fifo.wait_closed(x, "RemoveContainer").await?;
    diverges("a process of a container survives until RemoveContainer")
}

async fn orphans_are_reaped(x: &Context) -> Verdict {
    const ORPHANS: usize = 3;
    let text = "for n in 1 2 3; do (sh -c 'echo pid $$; exec sleep 0.05' &); done; echo ready; exec sleep 1000";
    let pod = namespaces::pod(x, |options| options.pid = NamespaceMode::Pod.into()).await?;
    let mut config = namespaces::container(x, &pod, "c", |_| {});
    config.command = ["/bin/sh", "-c", text].map(str::to_owned).into();
    let id = pod.start(config).await?;
    let pids = x
        .until("the process ids of orphans", async || {
            let lines = x.lines(&pod);
            let pid = |line: &harness::cri_log::Line| line.text.strip_prefix("pid ")?.parse().ok();
            let pids: Vec<u32> = lines.iter().filter_map(pid).collect();
            match pids.len() {
                ORPHANS => Ok(pids),
                _ => Err(lines),
            }
        })
        .await?;
    let first = x.client.sh(&id, "cat /proc/1/comm").await?;
    if REAPS_NOTHING.contains(&first.trim()) {
        return skipped(format!(
            "the pause image runs {}, which does not reap orphans",
            first.trim()
        ));
    }
    let look: String =
        pids.iter().map(|pid| format!("cat /proc/{pid}/stat 2>/dev/null; ")).collect();
    x.until("no orphan in /proc", async || match x.client.sh(&id, &format!("{look} :")).await {
        Ok(none) if none.is_empty() => Ok(()),
        Ok(some) => Err(some),
        Err(status) => Err(status.message().to_owned()),
    })
    .await
}
