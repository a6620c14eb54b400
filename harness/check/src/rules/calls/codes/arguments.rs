//! Rules of calls whose argument is not an id: names of images, address ranges, and filters without matches.

use std::fmt::Debug;

use crate::prelude::*;
use crate::rules::calls::codes::{all, invalid};
use crate::rules::image;
use crate::rules::list::streams::drained;
use crate::rules::sandbox::UNKNOWN;

pub(crate) const RULES: &[Rule] = rules! {
    Should "CRI-COD-012": "ImageStatus and RemoveImage of an empty or malformed name return INVALID_ARGUMENT or the same result as for a missing image; no image is removed.",
        API, tags ["codes", "input", "messages"], calls [ImageStatus, RemoveImage],
        malformed_names_are_of_no_image, faults [
            "ImageStatus recode INVALID_ARGUMENT INTERNAL",
            "ImageStatus recode INVALID_ARGUMENT INVALID_ARGUMENT \"\"",
            "RemoveImage recode INVALID_ARGUMENT INTERNAL",
            "RemoveImage recode INVALID_ARGUMENT INVALID_ARGUMENT \"\"",
            "ListImages lose",
        ];
    Should "CRI-COD-013": "UpdateRuntimeConfig with a malformed pod CIDR returns INVALID_ARGUMENT, with the CIDR in the message.",
        API, tags ["codes", "input", "messages", "network"], calls [UpdateRuntimeConfig],
        malformed_cidr_is_refused, faults [
            "UpdateRuntimeConfig recode INVALID_ARGUMENT INTERNAL",
            "UpdateRuntimeConfig recode INVALID_ARGUMENT INVALID_ARGUMENT \"\"",
            "UpdateRuntimeConfig recode INVALID_ARGUMENT INVALID_ARGUMENT \"bad value\"",
        ];
    Should "CRI-COD-014": "List and stream calls whose filter has an unknown id return an empty list, not an error.",
        API, tags ["codes", "filter", "stream"], calls [ListPodSandbox, ListContainers, ListContainerStats, ListPodSandboxStats, StreamPodSandboxes, StreamContainers, StreamContainerStats, StreamPodSandboxStats],
        unknown_id_matches_nothing given [container], faults [
            "ListPodSandbox fail NOT_FOUND \"no such sandbox\"",
            "ListContainers request drop filter",
            "ListContainerStats request drop filter",
            "ListPodSandboxStats fail INVALID_ARGUMENT \"no such sandbox\"",
            "StreamPodSandboxes request drop filter",
            "StreamContainers fail NOT_FOUND \"no such container\"",
            "StreamContainerStats request drop filter",
            "StreamPodSandboxStats fail INTERNAL \"no such sandbox\"",
        ];
};

/// Invalid image names: the grammar has no uppercase letters, empty components or spaces.
const NO_IMAGES: [&str; 2] = ["", "127.0.0.1:1/Not//A Name"];

/// Passes if the call succeeds, since it affects no object, or if it refuses the argument.
fn of_nothing<T: Debug>(what: &str, answer: Result<T, Status>) -> Verdict {
    match answer {
        Ok(_) => Ok(()),
        refused => invalid(what, refused),
    }
}

async fn malformed_names_are_of_no_image(x: &Context) -> Verdict {
    let (name, _) = image::add(x, "kept", |image| image)?;
    image::pull(x, &name).await?;
    let mut verdicts = Vec::new();
    for none in NO_IMAGES {
        let image = Some(v1::ImageSpec { image: none.to_owned(), ..Default::default() });
        let request = v1::ImageStatusRequest { image: image.clone(), verbose: false };
        let status = x.client.images.clone().image_status(request).await;
        if let Ok(found) = &status
            && let Some(found) = &found.get_ref().image
        {
            let what = format!("ImageStatus of {none:?}");
            return failed(what, "no image", format!("the image {:?}", found.id));
        }
        verdicts.push(of_nothing(&format!("ImageStatus of {none:?}"), status));
        let request = v1::RemoveImageRequest { image };
        let removed = x.client.images.clone().remove_image(request).await;
        verdicts.push(of_nothing(&format!("RemoveImage of {none:?}"), removed));
    }
    let request = v1::ListImagesRequest::default();
    let listed = x.client.images.clone().list_images(request).await?.into_inner().images;
    let is_listed = listed.iter().any(|image| image.repo_tags.contains(&name));
    ensure(
        is_listed,
        "the images after RemoveImage of an invalid name",
        "the image pulled before",
        "it is missing",
    )?;
    all(verdicts)
}

async fn malformed_cidr_is_refused(x: &Context) -> Verdict {
    const CIDR: &str = "10.1.2.0/33";
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(v1::RuntimeConfig {
            network_config: Some(v1::NetworkConfig { pod_cidr: CIDR.to_owned() }),
        }),
    };
    let what = format!("UpdateRuntimeConfig with the pod CIDR {CIDR}");
    match x.client.runtime.clone().update_runtime_config(request).await {
        // Runtimes whose network plugins get addresses elsewhere ignore it.
        Ok(_) => diverges("the runtime ignores the pod CIDR"),
        Err(status) => {
            let message = status.message().to_owned();
            let named = match message.contains(CIDR) {
                true => Ok(()),
                false => failed(&what, format!("a message with {CIDR}"), message),
            };
            all([invalid::<()>(&what, Err(status)), named])
        }
    }
}

/// Fails if the list is not empty.
fn nothing<T>(call: &str, listed: &[T]) -> Verdict {
    let what = format!("{call} with a filter for an unknown id");
    ensure(listed.is_empty(), &what, "nothing", listed.len())
}

async fn unknown_id_matches_nothing(x: &Context, _running: String) -> Verdict {
    let id = UNKNOWN.to_owned();
    let pods = v1::PodSandboxFilter { id: id.clone(), ..Default::default() };
    let containers = v1::ContainerFilter { id: id.clone(), ..Default::default() };
    let stats = v1::ContainerStatsFilter { id: id.clone(), ..Default::default() };
    let pod_stats = v1::PodSandboxStatsFilter { id, ..Default::default() };
    nothing("ListPodSandbox", &x.client.pods(pods.clone()).await?)?;
    nothing("ListContainers", &x.client.containers(containers.clone()).await?)?;
    nothing("ListContainerStats", &x.client.list_container_stats(stats.clone()).await?)?;
    let mut runtime = x.client.runtime.clone();
    let filter = Some(pod_stats.clone());
    let request = v1::ListPodSandboxStatsRequest { filter };
    let listed = runtime.list_pod_sandbox_stats(request).await?.into_inner().stats;
    nothing("ListPodSandboxStats", &listed)?;

    let what = "StreamPodSandboxes";
    let request = v1::StreamPodSandboxesRequest { filter: Some(pods) };
    let answer = runtime.stream_pod_sandboxes(request).await;
    nothing(what, &drained(x, what, answer, |one| one.pod_sandboxes).await?)?;
    let what = "StreamContainers";
    let request = v1::StreamContainersRequest { filter: Some(containers) };
    let answer = runtime.stream_containers(request).await;
    nothing(what, &drained(x, what, answer, |one| one.containers).await?)?;
    let what = "StreamContainerStats";
    let request = v1::StreamContainerStatsRequest { filter: Some(stats) };
    let answer = runtime.stream_container_stats(request).await;
    nothing(what, &drained(x, what, answer, |one| one.container_stats).await?)?;
    let what = "StreamPodSandboxStats";
    let request = v1::StreamPodSandboxStatsRequest { filter: Some(pod_stats) };
    let answer = runtime.stream_pod_sandbox_stats(request).await;
    nothing(what, &drained(x, what, answer, |one| one.pod_sandbox_stats).await?)
}
