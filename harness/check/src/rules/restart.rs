//! Rules for state that survives a runtime restart: sandboxes, containers and images. Each rule restarts the runtime and runs
//! alone. The restart enables the rule's faults.

pub(crate) mod connectivity;
pub(crate) mod container_settings;
pub(crate) mod running_containers;

use crate::fifo::{LifetimeFifo, OPEN_FIFO};
use crate::prelude::*;
use crate::rules::image::{add, pull, status};
use crate::rules::sandbox::handlers::pod_of_other_handler;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-RST-001": "A runtime restart does not change the state, the status or the list entry of a sandbox.",
        CONTAINERD, tags ["kubelet", "state", RESTART], calls [PodSandboxStatus, ListPodSandbox],
        sandboxes_survive given [restart], faults [
            "off restarted: PodSandboxStatus drop status.runtime_handler",
            "off restarted: ListPodSandbox drop items.runtime_handler",
            "off restarted: PodSandboxStatus set status.state \"SANDBOX_NOTREADY\"",
            "off restarted: PodSandboxStatus set status.state \"SANDBOX_READY\"",
            "off restarted: PodSandboxStatus drop status.network",
            "off restarted: PodSandboxStatus drop status.metadata.attempt",
            "off restarted: PodSandboxStatus drop status.labels",
            "off restarted: PodSandboxStatus set status.created_at 1700000000000000000",
            "off restarted: PodSandboxStatus answer NOT_FOUND",
            "off restarted: ListPodSandbox drop items",
            "off restarted: ListPodSandbox drop items.annotations",
        ];
    Must "CRI-RST-002": "A container keeps running across a runtime restart, as the same process and with the same status.",
        CONTAINERD, tags ["kubelet", "state", RESTART], calls [ContainerStatus, ListContainers],
        running_container_survives given [restart, pod], faults [
            "off restarted: ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "off restarted: ContainerStatus set status.state \"CONTAINER_UNKNOWN\"",
            "off restarted: ContainerStatus set status.started_at 1700000000000000000",
            "off restarted: ContainerStatus drop status.metadata.attempt",
            "off restarted: ContainerStatus drop status.annotations",
            "off restarted: ContainerStatus drop status.mounts",
            "off restarted: ListContainers drop containers",
            "off restarted: ListContainers drop containers.pod_sandbox_id",
        ];
    Must "CRI-RST-003": "A container created before a runtime restart can be started after the restart.",
        CONTAINERD, tags ["kubelet", "state", RESTART], calls [ContainerStatus, StartContainer],
        created_container_survives given [restart, pod], faults [
            "off restarted: ContainerStatus set status.state \"CONTAINER_EXITED\"",
            "off restarted: ContainerStatus answer NOT_FOUND",
            "off restarted: StartContainer answer FAILED_PRECONDITION",
            "off restarted: StartContainer swallow",
        ];
    Must "CRI-RST-004": "An exited container keeps its exit code, reason and times across a runtime restart.",
        CONTAINERD, tags ["kubelet", "exit", RESTART], calls [ContainerStatus, ListContainers],
        exited_container_survives given [restart, pod], faults [
            "off restarted: ContainerStatus drop status.exit_code",
            "off restarted: ContainerStatus set status.exit_code 255",
            "off restarted: ContainerStatus set status.reason \"Unknown\"",
            "off restarted: ContainerStatus drop status.finished_at",
            "off restarted: ContainerStatus set status.state \"CONTAINER_UNKNOWN\"",
            "off restarted: ListContainers set containers.state \"CONTAINER_RUNNING\"",
        ];
    Should "CRI-RST-005": "The exit code of a container that exits during a runtime restart is reported.",
        CRIO, tags ["kubelet", "exit", RESTART], calls [ContainerStatus],
        exit_during_restart_is_reported given [restart, pod], faults [
            "off restarted: ContainerStatus set status.exit_code 255",
            "off restarted: ContainerStatus set status.state \"CONTAINER_RUNNING\"",
        ];
    Must "CRI-RST-006": "Images and all their names survive a runtime restart, and new containers of these images run.",
        CONTAINERD, tags ["kubelet", "image", RESTART], calls [ImageStatus, ListImages, CreateContainer],
        images_survive given [restart], faults [
            "off restarted: ImageStatus drop image",
            "off restarted: ImageStatus drop image.repo_tags",
            "off restarted: ImageStatus drop image.repo_digests",
            "off restarted: ListImages drop images",
            "off restarted: CreateContainer answer NOT_FOUND",
        ];
};

async fn sandboxes_survive(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    config.metadata.get_or_insert_default().attempt = 3;
    let note = ("note".to_owned(), "of the pod".to_owned());
    config.annotations.extend([note]);
    let ready = match pod_of_other_handler(x, &config).await? {
        Some((pod, _)) => pod,
        None => x.pod_of(config).await?,
    };
    let stopped = x.pod().await?;
    x.client.stop_pod(&stopped.id).await?;
    let mut before = Vec::new();
    for pod in [&ready, &stopped] {
        before.push((x.pod_status(&pod.id).await?, x.listed_pod(&pod.id).await?));
    }
    x.restart().await?;
    for (pod, (status, listed)) in [&ready, &stopped].into_iter().zip(before) {
        equal("the sandbox in PodSandboxStatus", &x.pod_status(&pod.id).await?, &status)?;
        equal("the sandbox in ListPodSandbox", &x.listed_pod(&pod.id).await?, &listed)?;
    }
    x.pod_is(&ready.id, PodSandboxState::SandboxReady).await?;
    x.pod_is(&stopped.id, PodSandboxState::SandboxNotready).await
}

/// The status and the list entry of a container.
async fn status_and_entry(
    x: &Context,
    id: &str,
) -> Verdict<(v1::ContainerStatus, Option<v1::Container>)> {
    Ok((x.client.container(id).await?, x.listed_container(id).await?))
}

async fn expect_reported_as_before(
    x: &Context,
    id: &str,
    (status, listed): (v1::ContainerStatus, Option<v1::Container>),
) -> Verdict {
    let (now, in_list) = status_and_entry(x, id).await?;
    equal("the container in ContainerStatus", &now, &status)?;
    equal("the container in ListContainers", &in_list, &listed)
}

/// Starts a container whose process holds a FIFO and runs until it is stopped.
pub(crate) async fn start_with_fifo(x: &Context, pod: &Pod) -> Verdict<(LifetimeFifo, String)> {
    let mut fifo = LifetimeFifo::new(x)?;
    let script = format!(
        "{OPEN_FIFO}trap 'exit 143' TERM; echo ready; while :; do sleep 1000 & wait $!; done"
    );
    let mut config = x.script("c", &script);
    config.metadata.get_or_insert_default().attempt = 2;
    let note = ("note".to_owned(), "of the container".to_owned());
    config.annotations.extend([note]);
    fifo.mount(&mut config);
    let id = pod.start(config).await?;
    fifo.wait_opened(x, 1).await?;
    x.logged(pod, "ready").await?;
    Ok((fifo, id))
}

async fn running_container_survives(x: &Context, pod: Pod) -> Verdict {
    let (mut fifo, id) = start_with_fifo(x, &pod).await?;
    let before = status_and_entry(x, &id).await?;
    x.restart().await?;
    ensure(fifo.is_open(), "the container's process", "to keep running", "it ended")?;
    expect_reported_as_before(x, &id, before).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await?;
    let lines = x.lines(&pod);
    let starts = lines.iter().filter(|line| line.text == "ready").count();
    equal("the number of starts of the container's command", &starts, &1)
}

async fn created_container_survives(x: &Context, pod: Pod) -> Verdict {
    let id = pod.create(x.forever("c")).await?;
    x.restart().await?;
    x.container_is(&id, ContainerState::ContainerCreated).await?;
    x.client.start(&id).await?;
    x.logged(&pod, "ready").await?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn exited_container_survives(x: &Context, pod: Pod) -> Verdict {
    let mut ids = Vec::new();
    for (name, code) in [("c", 0), ("d", 77)] {
        let id = pod.start(x.script(name, &format!("exit {code}"))).await?;
        x.exited(&id).await?;
        let before = status_and_entry(x, &id).await?;
        equal("the exit code before the restart", &before.0.exit_code, &code)?;
        ids.push((id, before));
    }
    x.restart().await?;
    for (id, before) in ids {
        expect_reported_as_before(x, &id, before).await?;
    }
    Ok(())
}

async fn exit_during_restart_is_reported(x: &Context, pod: Pod) -> Verdict {
    let mut fifo = LifetimeFifo::new(x)?;
    let script = format!("{OPEN_FIFO}until [ -e /mnt/end ]; do sleep 0.02; done; exit 41");
    let mut config = x.script("c", &script);
    fifo.mount(&mut config);
    let id = pod.start(config).await?;
    fifo.wait_opened(x, 1).await?;
    if let Err(error) = std::fs::write(fifo.directory.join("end"), "") {
        return failed("the file that ends the container", "to be written", error.to_string());
    }
    x.restart().await?;
    let status = x
        .until("the container to leave CONTAINER_RUNNING", async || {
            match x.client.container(&id).await {
                Ok(status) if status.state() != ContainerState::ContainerRunning => Ok(status),
                seen => Err(seen),
            }
        })
        .await?;
    if status.state() == ContainerState::ContainerUnknown {
        // containerd does this if the process ends at a certain moment. The kubelet stops such a container.
        let why = "the container that ended is CONTAINER_UNKNOWN after the restart";
        return Err(Outcome::Diverges(why.to_owned()));
    }
    let seen = (status.exit_code, status.reason.as_str());
    equal("exit code and reason", &seen, &(41, "Error"))
}

async fn images_survive(x: &Context) -> Verdict {
    let (name, _) = add(x, "1", |image| image)?;
    pull(x, &name).await?;
    let before = status(x, &name).await?;
    let listed = async || {
        let all = x.client.list_images().await?;
        Verdict::Ok(all.into_iter().find(|image| image.id == before.id))
    };
    let in_list = listed().await?;
    x.restart().await?;
    equal("the image in ImageStatus", &status(x, &name).await?, &before)?;
    equal("the image in ListImages", &listed().await?, &in_list)?;
    x.prints(x.script("c", "echo runs"), "the output of a container", "runs\n").await
}
