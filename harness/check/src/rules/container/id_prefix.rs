//! Rules of truncated ids, which users of crictl pass.

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-CTR-053": "Lifecycle, exec, stream, log and stats calls accept ids truncated to 13 characters, as crictl shows them.",
        CONTAINERD, tags ["crictl", "names"], calls [CreateContainer, StartContainer, ExecSync, Exec, Attach, PortForward, ReopenContainerLog, ContainerStats, StopContainer, RemoveContainer, StopPodSandbox, RemovePodSandbox],
        id_prefix_is_accepted_in_calls, faults [
            "CreateContainer answer NOT_FOUND",
            "StartContainer answer NOT_FOUND",
            "ExecSync answer NOT_FOUND",
            "Exec answer NOT_FOUND",
            "Attach answer NOT_FOUND",
            "PortForward answer NOT_FOUND",
            "ReopenContainerLog answer NOT_FOUND",
            "ContainerStats answer NOT_FOUND",
            "StopContainer swallow",
            "RemoveContainer swallow",
            "StopPodSandbox swallow",
            "RemovePodSandbox swallow",
        ];
};

/// The number of characters of an id that crictl shows.
const SHOWN: usize = 13;

async fn id_prefix_is_accepted_in_calls(x: &Context) -> Verdict {
    let short = |id: &str| id.get(..SHOWN).unwrap_or(id).to_owned();
    let pod = x.pod().await?;
    let sandbox = short(&pod.id);
    let config = x.forever("c");
    let client = &x.client;
    let id = client.create(&sandbox, config, pod.config.clone()).await?;
    let container = short(&id);
    client.start(&container).await?;
    x.logged(&pod, "ready").await?;
    let output = client.sh(&container, "echo ran").await?;
    equal("the output of a command", output.as_str(), "ran\n")?;
    has_streams(x, &sandbox, &container).await?;
    client.reopen_log(&container).await?;
    let of = client.container_stats(&container).await?.attributes.unwrap_or_default().id;
    equal("the id in ContainerStats", &of, &id)?;
    client.stop(&container, 10).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    client.remove(&container).await?;
    equal("the removed container in the list", &x.listed_container(&id).await?, &None)?;
    client.stop_pod(&sandbox).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await?;
    client.remove_pod(&sandbox).await?;
    equal("the removed sandbox in the list", &x.listed_pod(&pod.id).await?, &None)
}

/// Requests the URL of each kind of stream and opens none.
async fn has_streams(x: &Context, sandbox: &str, container: &str) -> Verdict {
    let mut runtime = x.client.runtime.clone();
    let exec = v1::ExecRequest {
        container_id: container.to_owned(),
        cmd: vec!["/bin/sh".to_owned()],
        stdout: true,
        ..Default::default()
    };
    runtime.exec(exec).await?;
    let attach = v1::AttachRequest {
        container_id: container.to_owned(),
        stdout: true,
        ..Default::default()
    };
    runtime.attach(attach).await?;
    let forward = v1::PortForwardRequest { pod_sandbox_id: sandbox.to_owned(), port: vec![80] };
    runtime.port_forward(forward).await?;
    Ok(())
}
