//! Rules for containers that run during a runtime restart: logs, events, names, commands, statistics.

use compact::Map;
use cri::v1::ContainerEventType::ContainerStoppedEvent as Stopped;

use crate::fifo::LifetimeFifo;
use crate::prelude::*;
use crate::rules::event::{kind, subscribe};
use crate::rules::limits::decrease::memory;
use crate::rules::limits::{MIB, with};
use crate::rules::restart::start_with_fifo;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-RST-007": "A container's output before and after a runtime restart is in the container's log once and in order, even after ReopenContainerLog.",
        KUBELET, tags ["kubelet", "logs", RESTART], calls [ReopenContainerLog],
        log_continues given [restart, pod], faults [
            "off restarted: ReopenContainerLog swallow",
            "off restarted: ReopenContainerLog answer INTERNAL",
        ];
    Should "CRI-RST-008": "After a runtime restart, a new subscriber receives events of containers that were started before the restart.",
        KUBELET, tags ["evented-pleg", RESTART], calls [GetContainerEvents, StopContainer],
        events_continue given [restart, container], faults [
            "off restarted: GetContainerEvents lose",
            "off restarted: GetContainerEvents drop containers_statuses",
            "off restarted: GetContainerEvents answer UNAVAILABLE",
        ];
    Must "CRI-RST-009": "Names of sandboxes and containers stay reserved across a runtime restart, and CreateContainer with the next attempt number creates a new container.",
        CONTAINERD, tags ["kubelet", "names", RESTART], calls [CreateContainer, RunPodSandbox],
        names_stay_taken given [restart, pod], faults [
            "off restarted: CreateContainer request set config.metadata.attempt 9",
            "off restarted: RunPodSandbox request set config.metadata.attempt 9",
            "off restarted: CreateContainer answer ALREADY_EXISTS",
        ];
    Must "CRI-RST-010": "After a runtime restart, containers that were started earlier still execute commands, exit on SIGTERM when stopped, and are removed with all their processes.",
        CONTAINERD, tags ["kubelet", "state", RESTART], calls [ExecSync, StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox],
        lifecycle_continues given [restart, pod], faults [
            "off restarted: ExecSync answer INTERNAL",
            "off restarted: StopContainer swallow",
            "off restarted: StopContainer request set timeout 0",
            "off restarted: RemoveContainer swallow",
            "off restarted: RemovePodSandbox swallow",
            "off restarted: StopPodSandbox answer INTERNAL",
        ];
    Should "CRI-RST-011": "The CPU time of a running container does not decrease across a runtime restart.",
        KUBELET, tags ["kubelet", "statistics", RESTART], calls [ContainerStats],
        statistics_continue given [restart, pod], faults [
            "off restarted: ContainerStats set stats.cpu.usage_core_nano_seconds.value \"1\"",
            "off restarted: ContainerStats drop stats.attributes.labels",
            "off restarted: ContainerStats answer NOT_FOUND",
        ];
    Must "CRI-RST-012": "Addresses of pods stay reserved across a runtime restart: a new pod gets an unused address.",
        KUBELET, tags ["kubelet", "network", RESTART], calls [RunPodSandbox, PodSandboxStatus],
        addresses_stay_taken given [restart], faults [
            "off restarted: PodSandboxStatus set status.network.ip \"192.0.2.7\"",
            "off restarted: PodSandboxStatus answer NOT_FOUND",
        ];
    Must "CRI-RST-013": "After a runtime restart, a container that was OOM-killed before still has the reason OOMKilled.",
        KUBELET, tags ["kubelet", "exit", "resources", RESTART], calls [ContainerStatus],
        memory_kill_is_remembered given [restart], faults [
            "off restarted: ContainerStatus set status.reason \"Error\"",
            "off restarted: ContainerStatus drop status.reason",
        ];
};

async fn addresses_stay_taken(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let mut taken = Map::new();
    for number in 0..4 {
        if number == 2 {
            x.restart().await?;
        }
        let pod = x.pod().await?;
        let network = x.pod_status(&pod.id).await?.network.unwrap_or_default();
        if let Some(other) = taken.insert(network.ip.clone(), pod.id.clone()) {
            let what = format!("the address of pod {}", pod.id);
            return failed(what, "unused", format!("{}, used by pod {other}", network.ip));
        }
    }
    Ok(())
}

async fn log_continues(x: &Context, pod: Pod) -> Verdict {
    let fifo = LifetimeFifo::new(x)?;
    // The container writes a line for each file in the directory.
    let script = "echo before
        for word in after reopened; do until [ -e /mnt/$word ]; do sleep 0.02; done; echo $word; done; sleep 1000";
    let mut config = x.script("c", script);
    fifo.mount(&mut config);
    let id = pod.start(config).await?;
    x.logged(&pod, "before").await?;
    x.restart().await?;
    let path = x.log_path(&pod);
    let signal = |word: &str| match std::fs::write(fifo.directory.join(word), "") {
        Ok(()) => Ok(()),
        Err(error) => failed("the file for the container", "to be written", error.to_string()),
    };
    let texts = || -> Vec<String> {
        let lines = x.lines(&pod).into_iter();
        lines.map(|line| line.text).collect()
    };
    signal("after")?;
    x.logged(&pod, "after").await?;
    equal("the log", &texts(), &vec!["before".to_owned(), "after".to_owned()])?;
    if let Err(error) = std::fs::rename(&path, path.with_extension("old")) {
        return failed("the log file", "to exist", error.to_string());
    }
    x.client.reopen_log(&id).await?;
    signal("reopened")?;
    x.logged(&pod, "reopened").await?;
    equal("the new log", &texts(), &vec!["reopened".to_owned()])
}

async fn events_continue(x: &Context, id: String) -> Verdict {
    x.restart().await?;
    let subscription = subscribe(x).await?;
    x.client.stop(&id, 30).await?;
    let reading = async {
        let mut stream = match subscription.await {
            Ok(answer) => answer?,
            Err(error) => return failed("GetContainerEvents", "an answer", error.to_string()),
        };
        loop {
            match stream.message().await? {
                Some(event) if kind(&event) == (id.clone(), Stopped) => return Ok(event),
                Some(_) => {}
                None => return failed("the stream of events", "to stay open", "its end"),
            }
        }
    };
    let Ok(event) = tokio::time::timeout(x.shared.wait_limit, reading).await else {
        return failed("the event of the container's exit", "to arrive", "no event");
    };
    let event = event?;
    let of_container = event.containers_statuses.iter().find(|status| status.id == id);
    let code = of_container.map(|status| status.exit_code);
    equal("the exit code in the event", &code, &Some(143))
}

async fn names_stay_taken(x: &Context, pod: Pod) -> Verdict {
    let first = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&first).await?;
    x.restart().await?;
    match x.client.run_pod(pod.config.clone()).await {
        Ok(id) => equal("the id of the second RunPodSandbox", &id, &pod.id)?,
        answer => drop(refused("the second RunPodSandbox", answer)?),
    }
    match pod.create(x.script("c", "exit 0")).await {
        Ok(id) => equal("the id of the second CreateContainer", &id, &first)?,
        answer => drop(refused("the second CreateContainer", answer)?),
    }
    let mut next = x.forever("c");
    next.metadata.get_or_insert_default().attempt = 1;
    let second = pod.start(next).await?;
    ensure(second != first, "the id of the next attempt", "a new id", &second)?;
    x.container_is(&second, ContainerState::ContainerRunning).await?;
    x.container_is(&first, ContainerState::ContainerExited).await
}

async fn lifecycle_continues(x: &Context, pod: Pod) -> Verdict {
    let (mut fifo, id) = start_with_fifo(x, &pod).await?;
    let tells = "echo executed; pwd; id; cat /proc/self/environ";
    let before = x.client.sh(&id, tells).await?;
    x.restart().await?;
    let after = x.client.sh(&id, tells).await?;
    equal("the output of a command", &after, &before)?;
    x.client.stop(&id, 30).await?;
    let status = x.exited(&id).await?;
    equal("the exit code of the container", &status.exit_code, &143)?;
    fifo.wait_closed(x, "StopContainer").await?;
    x.client.remove(&id).await?;
    equal("the removed container in the list", &x.listed_container(&id).await?, &None)?;
    x.client.stop_pod(&pod.id).await?;
    x.client.remove_pod(&pod.id).await?;
    equal("the removed sandbox in the list", &x.listed_pod(&pod.id).await?, &None)
}

async fn cpu_time(x: &Context, id: &str) -> Verdict<(u64, v1::ContainerAttributes)> {
    let stats = x.client.container_stats(id).await?;
    let used = stats.cpu.and_then(|cpu| cpu.usage_core_nano_seconds);
    Ok((used.map_or(0, |used| used.value), stats.attributes.unwrap_or_default()))
}

async fn statistics_continue(x: &Context, pod: Pod) -> Verdict {
    let id =
        pod.start(x.script(
            "c",
            "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo done; sleep 1000",
        ))
        .await?;
    x.logged(&pod, "done").await?;
    let before = x.until("CPU time to be counted", async || {
        let seen = cpu_time(x, &id).await.map_err(|outcome| format!("{outcome:?}"))?;
        if seen.0 > 1 { Ok(seen) } else { Err(format!("{seen:?}")) }
    });
    let before = before.await?;
    x.restart().await?;
    let after = cpu_time(x, &id).await?;
    let what = "CPU time after the restart";
    ensure(after.0 >= before.0, what, "no less than before", (&before, &after))?;
    equal("the attributes in ContainerStats", &after.1, &before.1)
}

async fn memory_kill_is_remembered(x: &Context) -> Verdict {
    x.needs_limits()?;
    let pod = x.pod().await?;
    let text = "v=0123456789abcdef; while [ ${#v} -lt 268435456 ]; do v=$v$v; done";
    let id = pod.start(with(x.script("c", text), memory(32 * MIB))).await?;
    x.exited(&id).await?;
    let exit_details = |status: &v1::ContainerStatus| (status.exit_code, status.reason.clone());
    let expected = (137, "OOMKilled".to_owned());
    // Some runtimes notice it later or never, which other rules check.
    let before = x.until("the reason OOMKilled", async || match x.client.container(&id).await {
        Ok(status) if exit_details(&status) == expected => Ok(()),
        seen => Err(seen),
    });
    if before.await.is_err() {
        return skipped("the container is not reported as OOMKilled before the restart");
    }
    x.restart().await?;
    let after = x.client.container(&id).await?;
    equal("exit code and reason after the restart", &exit_details(&after), &expected)
}
