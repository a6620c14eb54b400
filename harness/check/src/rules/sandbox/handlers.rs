//! Rules for pods with a non-default runtime handler.

use crate::prelude::*;
use crate::rules::list;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-061": "A pod with a non-default runtime handler works like other pods, from creation to removal, and PodSandboxStatus still reports the handler of a stopped pod.",
        KUBELET, tags ["kubelet", "state"], calls [RunPodSandbox, PodSandboxStatus, ListPodSandbox, ExecSync, ListContainers, ListContainerStats],
        pod_of_other_handler_behaves_as_usual, faults [
            "RunPodSandbox request drop runtime_handler",
            "PodSandboxStatus if response.status.state == \"SANDBOX_NOTREADY\" drop status.runtime_handler",
            "ListPodSandbox if response.items.state == \"SANDBOX_NOTREADY\" drop items.runtime_handler",
            "ExecSync set stdout \"b3RoZXIK\"",
            "ListContainers if request.filter.pod_sandbox_id != \"\" drop containers",
            "ListContainerStats drop stats",
            "StopPodSandbox swallow",
            "RemovePodSandbox swallow",
        ];
};

/// Runs a pod with the first non-default handler that Status lists and the runtime can run.
pub(crate) async fn pod_of_other_handler(
    x: &Context,
    config: &v1::PodSandboxConfig,
) -> Verdict<Option<(Pod, String)>> {
    std::fs::create_dir_all(&config.log_directory)
        .map_err(|error| Outcome::Skipped(format!("no log directory: {error}")))?;
    let handlers = x.client.status().await?.runtime_handlers.into_iter();
    for handler in handlers.map(|handler| handler.name).filter(|name| !name.is_empty()) {
        let request = v1::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: handler.clone(),
        };
        // The program of a configured handler may be missing.
        let Ok(answer) = x.client.runtime.clone().run_pod_sandbox(request).await else {
            continue;
        };
        let id = answer.into_inner().pod_sandbox_id;
        let pod = Pod { id, config: config.clone(), client: x.client.clone() };
        return Ok(Some((pod, handler)));
    }
    Ok(None)
}

/// Fails unless status and list name this handler.
pub(crate) async fn handler_is(x: &Context, pod: &Pod, handler: &str) -> Verdict {
    let of_status = x.pod_status(&pod.id).await?.runtime_handler;
    equal("runtime_handler in PodSandboxStatus", of_status.as_str(), handler)?;
    let of_list = x.listed_pod(&pod.id).await?.map(|listed| listed.runtime_handler);
    equal("runtime_handler in ListPodSandbox", &of_list.as_deref(), &Some(handler))
}

async fn pod_of_other_handler_behaves_as_usual(x: &Context) -> Verdict {
    let Some((pod, handler)) = pod_of_other_handler(x, &x.sandbox()).await? else {
        return skipped("Status lists no usable runtime handler besides the default one");
    };
    handler_is(x, &pod, &handler).await?;
    let id = x.running(&pod).await?;
    let other = pod.create(x.forever("d")).await?;
    let answer = x.client.sh(&id, "echo said").await?;
    equal("the output of a command", answer.as_str(), "said\n")?;
    let filter = || v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let listed = list::containers(x, filter()).await?;
    equal("ListContainers by the sandbox", &listed, &list::ids([&id, &other]))?;
    let by_id = v1::ContainerStatsFilter { id: id.clone(), ..Default::default() };
    let measured = x.client.list_container_stats(by_id).await?.into_iter();
    let measured: Vec<String> = measured.filter_map(|one| Some(one.attributes?.id)).collect();
    equal("ListContainerStats by the container", &measured, std::slice::from_ref(&id))?;
    x.client.stop_pod(&pod.id).await?;
    x.pod_is(&pod.id, PodSandboxState::SandboxNotready).await?;
    x.container_is(&id, ContainerState::ContainerExited).await?;
    handler_is(x, &pod, &handler).await?;
    x.client.remove_pod(&pod.id).await?;
    equal(
        "ListContainers after RemovePodSandbox",
        &list::containers(x, filter()).await?,
        &list::ids([]),
    )?;
    equal("the sandbox in the list after its removal", &x.listed_pod(&pod.id).await?, &None)
}
