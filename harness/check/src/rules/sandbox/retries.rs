//! Rules of what follows a refusal: a kubelet tries again, with the same names as long as nothing of them is listed.

use crate::prelude::*;
use crate::rules::image::add;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-023": "A pod of which RunPodSandbox was refused is not ready, and is run by the same call when its fault is mended, or by the next attempt if it is listed.",
        KUBELET, tags ["kubelet", "start", "names"], calls [RunPodSandbox, ListPodSandbox],
        refused_pod_is_run_later, faults [
            "RunPodSandbox after 1 answer ALREADY_EXISTS",
            "RunPodSandbox if request.runtime_handler == \"no-such-handler\" request drop runtime_handler",
        ];
    Must "CRI-CTR-055": "A container that CreateContainer refused does not run, and is created by the same call when its fault is mended, or by the next attempt if it is listed.",
        KUBELET, tags ["kubelet", "start", "names"], calls [CreateContainer, ListContainers],
        refused_container_is_created_later given [namespaces, pod], faults [
            "CreateContainer after 1 answer ALREADY_EXISTS",
            "CreateContainer after 2 answer ALREADY_EXISTS",
            "CreateContainer if request.config.linux.security_context.run_as_username == \"nobody-has-this-name\" request drop config.linux.security_context.run_as_username",
        ];
};

async fn refused_pod_is_run_later(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    let uid = config.metadata.get_or_insert_default().uid.clone();
    let request = v1::RunPodSandboxRequest {
        config: Some(config.clone()),
        runtime_handler: "no-such-handler".to_owned(),
    };
    let answer = x.client.runtime.clone().run_pod_sandbox(request).await;
    refused("RunPodSandbox with an unknown handler", answer)?;
    let pods = x.client.pods(v1::PodSandboxFilter::default()).await?;
    let left: Vec<_> = pods
        .into_iter()
        .filter(|pod| pod.metadata.as_ref().is_some_and(|own| own.uid == uid))
        .collect();
    let holds = left.iter().all(|pod| pod.state() == PodSandboxState::SandboxNotready);
    ensure(holds, "what is listed of the refused pod", "nothing that is ready", &left)?;
    let attempts = u32::try_from(left.len()).unwrap_or(u32::MAX);
    config.metadata.get_or_insert_default().attempt = attempts;
    let pod = x.pod_of(config).await?;
    x.running(&pod).await.map(drop)
}

/// Has a container refused, then makes it without what it was refused for.
async fn made_after_refusal(
    x: &Context,
    pod: &Pod,
    what: &str,
    wrong: v1::ContainerConfig,
    mut right: v1::ContainerConfig,
) -> Verdict {
    refused(what, pod.create(wrong).await)?;
    let filter = v1::ContainerFilter { pod_sandbox_id: pod.id.clone(), ..Default::default() };
    let name = right.metadata.get_or_insert_default().name.clone();
    let containers = x.client.containers(filter).await?;
    let left: Vec<_> = containers
        .into_iter()
        .filter(|one| one.metadata.as_ref().is_some_and(|own| own.name == name))
        .collect();
    let holds = left.iter().all(|one| one.state() != ContainerState::ContainerRunning);
    ensure(holds, "what is listed of the refused container", "nothing that runs", &left)?;
    let attempts = u32::try_from(left.len()).unwrap_or(u32::MAX);
    right.metadata.get_or_insert_default().attempt = attempts;
    let id = pod.start(right).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn refused_container_is_created_later(x: &Context, pod: Pod) -> Verdict {
    // An image that is in the registry, and was not pulled.
    let (absent, _) = add(x, "absent", |image| image)?;
    let mut wrong = x.forever("image");
    wrong.image.get_or_insert_default().image = absent;
    let what = "CreateContainer of an image that is not there";
    made_after_refusal(x, &pod, what, wrong, x.forever("image")).await?;
    let mut wrong = x.forever("user");
    let linux = wrong.linux.get_or_insert_default();
    let context = linux.security_context.get_or_insert_default();
    "nobody-has-this-name".clone_into(&mut context.run_as_username);
    let what = "CreateContainer with a user that the image does not have";
    made_after_refusal(x, &pod, what, wrong, x.forever("user")).await
}
