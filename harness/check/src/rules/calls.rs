//! Rules of several calls: concurrent, cancelled and refused calls, and agreement between calls.

pub(crate) mod agreement;
pub(crate) mod cancellation;
pub(crate) mod codes;

use std::fmt::Debug;

use compact::Set;
use tokio::task::JoinSet;

use crate::prelude::*;

/// How many calls are made concurrently.
const MANY: u32 = 6;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-CON-001": "Pods that are run concurrently all become ready, each with its own id and IP address.",
        KUBELET, tags ["kubelet", "concurrency", "network"], calls [RunPodSandbox, PodSandboxStatus],
        pods_are_run_at_once, faults [
            "RunPodSandbox after 3 answer UNKNOWN",
            "PodSandboxStatus set status.network.ip \"10.11.12.13\"",
            "PodSandboxStatus after 2 set status.state \"SANDBOX_NOTREADY\"",
        ];
    Must "CRI-CON-002": "Containers of one pod that are created and started concurrently all run, each with its own id.",
        KUBELET, tags ["kubelet", "concurrency"], calls [CreateContainer, StartContainer, ListContainers],
        containers_are_started_at_once given [pod], faults [
            "CreateContainer after 3 answer ALREADY_EXISTS",
            "StartContainer after 4 swallow",
            "CreateContainer after 4 swallow",
            "ListContainers set containers.pod_sandbox_id \"other\"",
        ];
    Must "CRI-CON-003": "Concurrent RemoveContainer calls for one container remove it, and a later RemoveContainer call succeeds.",
        KUBELET, tags ["kubelet", "concurrency", "idempotence"], calls [RemoveContainer, ContainerStatus],
        container_is_removed_at_once given [pod], faults [
            "RemoveContainer answer NOT_FOUND",
            "RemoveContainer swallow",
            "RemoveContainer after 6 answer NOT_FOUND",
        ];
    Must "CRI-CON-004": "Concurrent StopContainer and RemoveContainer calls for a running container both return, and the container is removed.",
        KUBELET, tags ["concurrency", "state"], calls [StopContainer, RemoveContainer, ContainerStatus],
        container_is_stopped_and_removed_at_once given [container], faults [
            "RemoveContainer swallow",
            "StopContainer hang",
            "ContainerStatus recode NOT_FOUND INTERNAL",
        ];
    Must "CRI-CON-005": "Concurrent StopPodSandbox calls stop a sandbox, concurrent RemovePodSandbox calls then remove it, and later calls succeed.",
        KUBELET, tags ["kubelet", "concurrency", "idempotence"], calls [StopPodSandbox, RemovePodSandbox],
        pod_is_removed_at_once given [pod], faults [
            "StopPodSandbox answer UNKNOWN",
            "RemovePodSandbox after 6 answer NOT_FOUND",
            "RemovePodSandbox swallow",
        ];
    Must "CRI-CON-006": "Concurrent RunPodSandbox calls with the same metadata create one sandbox.",
        API, tags ["kubelet", "concurrency", "names"], calls [RunPodSandbox, ListPodSandbox],
        same_pod_is_made_once, faults [
            "RunPodSandbox after 1 request set config.metadata.attempt 7",
            "RunPodSandbox answer UNKNOWN",
            "ListPodSandbox drop items",
        ];
    Must "CRI-CON-007": "Concurrent ExecSync calls in one container each return their own output and exit code.",
        KUBELET, tags ["kubelet", "concurrency", "probe", "exec"], calls [ExecSync],
        commands_run_at_once given [container], faults [
            "ExecSync after 2 set stdout \"MAo=\"",
            "ExecSync after 3 drop exit_code",
            "ExecSync after 4 answer UNKNOWN",
        ];
    Must "CRI-CON-008": "While StopContainer waits for a container's grace period, the runtime lists, runs and stops other containers and runs other pods.",
        CRIO, tags ["kubelet", "concurrency", "signal"], calls [StopContainer, ListContainers, ContainerStatus, RunPodSandbox, StartContainer],
        grace_period_keeps_nothing_waiting given [pod], faults [
            "ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "ListContainers drop containers",
            "RunPodSandbox after 1 hang",
            "StopContainer after 1 hang",
        ];
};

/// Makes the calls concurrently and returns their answers.
async fn at_once<T, F>(calls: impl IntoIterator<Item = F>) -> Verdict<Vec<Result<T, Status>>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let mut running: JoinSet<_> = calls.into_iter().collect();
    let mut answers = Vec::new();
    while let Some(ended) = running.join_next().await {
        answers.push(joined("a call", ended)?);
    }
    Ok(answers)
}

/// Makes the calls concurrently and returns their results; all must succeed.
async fn all_succeed<T, F>(calls: impl IntoIterator<Item = F>) -> Verdict<Vec<T>>
where
    T: Send + 'static,
    F: Future<Output = Result<T, Status>> + Send + 'static,
{
    let answers = at_once(calls).await?;
    Ok(answers.into_iter().collect::<Result<_, _>>()?)
}

/// The error messages among the results, of which at least one must be a success: some runtimes refuse the later calls.
fn some_succeed(call: &str, answers: Vec<Result<(), Status>>) -> Verdict<Vec<String>> {
    let all = answers.len();
    let refusals: Vec<String> = answers
        .into_iter()
        .filter_map(|answer| answer.err())
        .map(|status| format!("{call}: {:?}: {}", status.code(), status.message()))
        .collect();
    ensure(refusals.len() < all, call, "at least one success", &refusals)?;
    Ok(refusals)
}

fn none_refused(refusals: Vec<String>) -> Verdict {
    match refusals.into_iter().next() {
        None => Ok(()),
        Some(first) => diverges(format!("some of the concurrent calls are refused: {first}")),
    }
}

fn distinct<T: Ord + Clone + Debug>(what: &str, all: &[T]) -> Verdict {
    let different: Set<T> = all.iter().cloned().collect();
    ensure(different.len() == all.len(), what, "all different", all)
}

async fn pods_are_run_at_once(x: &Context) -> Verdict {
    let calls = (0..MANY).map(|_| {
        let x = x.clone();
        async move {
            let config = x.sandbox();
            // If this fails, the runtime reports it.
            drop(std::fs::create_dir_all(&config.log_directory));
            x.client.run_pod(config).await
        }
    });
    let ids = all_succeed(calls).await?;
    distinct("the ids of the sandboxes", &ids)?;
    let mut addresses = Vec::new();
    for id in &ids {
        x.pod_is(id, PodSandboxState::SandboxReady).await?;
        addresses.push(x.pod_status(id).await?.network.unwrap_or_default().ip);
    }
    // Pods without their own network namespace have no address.
    addresses.retain(|address| !address.is_empty());
    match x.needs_namespaces() {
        Ok(()) => distinct("the addresses of the sandboxes", &addresses),
        Err(_) => Ok(()),
    }
}

async fn containers_are_started_at_once(x: &Context, pod: Pod) -> Verdict {
    let calls = (0..MANY).map(|number| {
        let config = x.forever(&format!("c{number}"));
        let pod = pod.clone();
        async move { pod.start(config).await }
    });
    let ids = all_succeed(calls).await?;
    distinct("the ids of the containers", &ids)?;
    let filter = v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let listed = x.client.containers(filter).await?.into_iter();
    let ours = listed.filter(|one| {
        one.pod_sandbox_id == pod.id && one.state() == ContainerState::ContainerRunning
    });
    let listed: Set<String> = ours.map(|one| one.id).collect();
    equal("the running containers of the sandbox", &listed, &ids.into_iter().collect())
}

async fn expect_removed(x: &Context, id: &str) -> Verdict {
    let status = refused("ContainerStatus", x.client.container(id).await)?;
    equal("the code of ContainerStatus", &status.code(), &Code::NotFound)?;
    equal("the removed container in ListContainers", &x.listed_container(id).await?, &None)
}

async fn container_is_removed_at_once(x: &Context, pod: Pod) -> Verdict {
    let id = pod.start(x.script("c", "exit 0")).await?;
    x.exited(&id).await?;
    let calls = (0..MANY).map(|_| {
        let (client, id) = (x.client.clone(), id.clone());
        async move { client.remove(&id).await }
    });
    let refused = some_succeed("RemoveContainer", at_once(calls).await?)?;
    // Clients retry refused calls.
    x.client.remove(&id).await?;
    expect_removed(x, &id).await?;
    none_refused(refused)
}

async fn container_is_stopped_and_removed_at_once(x: &Context, id: String) -> Verdict {
    let stop = {
        let (client, id) = (x.client.clone(), id.clone());
        async move { client.stop(&id, 10).await }
    };
    let stop = tasks::spawn(stop);
    x.client.remove(&id).await?;
    // The container may already be removed, so an error is fine too.
    match tokio::time::timeout(x.shared.wait_limit, stop).await {
        Ok(Ok(Ok(()) | Err(_))) => {}
        Ok(Err(error)) => return failed("StopContainer", "to return", error.to_string()),
        Err(_) => return failed("StopContainer of a removed container", "to return", "no answer"),
    }
    expect_removed(x, &id).await
}

async fn pod_is_removed_at_once(x: &Context, pod: Pod) -> Verdict {
    x.running(&pod).await?;
    let stops = (0..MANY).map(|_| {
        let pod = pod.clone();
        async move { pod.client.stop_pod(&pod.id).await }
    });
    let mut refused = some_succeed("StopPodSandbox", at_once(stops).await?)?;
    x.client.stop_pod(&pod.id).await?;
    let removals = (0..MANY).map(|_| {
        let pod = pod.clone();
        async move { pod.client.remove_pod(&pod.id).await }
    });
    refused.extend(some_succeed("RemovePodSandbox", at_once(removals).await?)?);
    x.client.remove_pod(&pod.id).await?;
    let left = x.listed_pod(&pod.id).await?;
    equal("the removed sandbox in ListPodSandbox", &left, &None)?;
    none_refused(refused)
}

async fn same_pod_is_made_once(x: &Context) -> Verdict {
    let config = x.sandbox();
    drop(std::fs::create_dir_all(&config.log_directory));
    let calls = (0..MANY).map(|_| {
        let (client, config) = (x.client.clone(), config.clone());
        async move { client.run_pod(config).await }
    });
    let answers = at_once(calls).await?;
    let ids: Set<String> = answers.iter().flatten().cloned().collect();
    if ids.is_empty() {
        let refusals: Vec<_> = answers.iter().filter_map(|one| one.as_ref().err()).collect();
        return failed("concurrent RunPodSandbox", "at least one success", format!("{refusals:?}"));
    }
    let all = x.client.pods(v1::PodSandboxFilter::default()).await?;
    let uid = |metadata: &Option<v1::PodSandboxMetadata>| metadata.clone().unwrap_or_default().uid;
    let ours = all.iter().filter(|pod| uid(&pod.metadata) == uid(&config.metadata));
    let listed: Set<String> = ours.map(|pod| pod.id.clone()).collect();
    equal("the number of sandboxes", &listed.len(), &1)?;
    equal("the ids that RunPodSandbox returned", &ids, &listed)
}

async fn commands_run_at_once(x: &Context, id: String) -> Verdict {
    let calls = (0..MANY).map(|number| {
        let (client, id) = (x.client.clone(), id.clone());
        async move {
            let script = format!("echo {number}; echo e{number} >&2; exit {number}");
            let answer = client.exec(&id, ["/bin/sh", "-c", &script], 30).await?;
            Ok((number, answer))
        }
    });
    for (number, answer) in all_succeed(calls).await? {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let seen = (text(&answer.stdout), text(&answer.stderr), answer.exit_code);
        let expected = (
            format!("{number}\n"),
            format!("e{number}\n"),
            i32::try_from(number).unwrap_or_default(),
        );
        equal("the output and exit code of a command", &seen, &expected)?;
    }
    Ok(())
}

async fn grace_period_keeps_nothing_waiting(x: &Context, pod: Pod) -> Verdict {
    let ignores_sigterm =
        "trap 'echo asked' TERM; echo ready; while :; do sleep 1000 & wait $!; done";
    let id = x.start_ready(&pod, x.script("c", ignores_sigterm)).await?;
    let (client, stopped) = (x.client.clone(), id.clone());
    let stop = tasks::spawn(async move { client.stop(&stopped, 3600).await });
    x.logged(&pod, "asked").await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    let beside = pod.start(x.forever("d")).await?;
    let other = x.pod().await?;
    let there = x.running(&other).await?;
    for id in [&beside, &there] {
        x.client.stop(id, 0).await?;
        x.container_is(id, ContainerState::ContainerExited).await?;
    }
    ensure(!stop.is_finished(), "the first StopContainer", "to wait", &id)?;
    x.client.stop(&id, 0).await?;
    Ok(joined("the first StopContainer", stop.await)??)
}
