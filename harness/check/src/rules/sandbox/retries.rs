//! Rules for retries of refused calls: the kubelet retries with the same metadata unless the refused object is listed.

use crate::prelude::*;
use crate::rules::image::add;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-SBX-023": "After RunPodSandbox fails, the pod has no ready sandbox, and a corrected request succeeds, with the next attempt number if ListPodSandbox lists the failed sandbox.",
        KUBELET, tags ["kubelet", "start", "names"], calls [RunPodSandbox, ListPodSandbox],
        refused_pod_is_run_later, faults [
            "RunPodSandbox after 1 answer ALREADY_EXISTS",
            "RunPodSandbox if request.runtime_handler == \"no-such-handler\" request drop runtime_handler",
        ];
    Must "CRI-CTR-055": "After CreateContainer fails, the container does not run, and a corrected request succeeds, with the next attempt number if ListContainers lists the failed container.",
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
    ensure(holds, "the listed sandboxes of the refused pod", "none is ready", &left)?;
    let attempts = u32::try_from(left.len()).unwrap_or(u32::MAX);
    config.metadata.get_or_insert_default().attempt = attempts;
    let pod = x.pod_of(config).await?;
    x.running(&pod).await.map(drop)
}

/// Fails unless an invalid container is refused and the corrected one is then created.
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
    ensure(holds, "the listed containers of this name", "none is running", &left)?;
    let attempts = u32::try_from(left.len()).unwrap_or(u32::MAX);
    right.metadata.get_or_insert_default().attempt = attempts;
    let id = pod.start(right).await?;
    x.container_is(&id, ContainerState::ContainerRunning).await
}

async fn refused_container_is_created_later(x: &Context, pod: Pod) -> Verdict {
    // An image that is in the registry but was not pulled.
    let (absent, _) = add(x, "absent", |image| image)?;
    let mut wrong = x.forever("image");
    wrong.image.get_or_insert_default().image = absent;
    let what = "CreateContainer with an image that was not pulled";
    made_after_refusal(x, &pod, what, wrong, x.forever("image")).await?;
    let mut wrong = x.forever("user");
    let linux = wrong.linux.get_or_insert_default();
    let context = linux.security_context.get_or_insert_default();
    "nobody-has-this-name".clone_into(&mut context.run_as_username);
    let what = "CreateContainer with a user that the image does not have";
    made_after_refusal(x, &pod, what, wrong, x.forever("user")).await
}
