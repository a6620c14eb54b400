//! Images for pods that pull none (`imagePullPolicy: Never`), of archives or of this machine (`crib.local/…`): they are made present
//! before the pods start.

use std::path::Path;

use api::manifest::Workload;
use api::manifest_set::named_pods;
use api::pod::Pod;
use compact::Set;
use cri::v1;
use harness::client::Client;
use runtime_fake::PULL_FROM;
use tonic::metadata::MetadataValue;
use tonic::{Code, Request};

/// The value of [`PULL_FROM`] with which no registry is asked.
const ARCHIVES: &str = "archives";

/// The images that containers of the pods use, and that an agent never pulls.
pub(crate) fn never_pulled(pods: &[Pod], workloads: &[Workload]) -> Set<String> {
    let mut images = Set::new();
    for (_, pod) in named_pods(pods, workloads) {
        let containers = pod.all_containers().map(|(_, container)| container);
        let never = containers.filter(|one| one.image_pull_policy.as_deref() == Some("Never"));
        images.extend(never.filter_map(|container| container.image.clone()));
    }
    images
}

/// Makes the images present that an archive or this machine has. Returns a sentence for each one that fails. An image that no archive has is no failure
/// here: the pod that needs it says so.
pub(crate) async fn import(socket: &Path, images: &Set<String>) -> Vec<String> {
    let mut client = Client::new(socket).images;
    let mut problems = Vec::new();
    for image in images {
        let spec = v1::ImageSpec { image: image.clone(), ..v1::ImageSpec::default() };
        let mut request = Request::new(v1::PullImageRequest {
            image: Some(spec),
            ..v1::PullImageRequest::default()
        });
        let archives = MetadataValue::from_static(ARCHIVES);
        request.metadata_mut().insert(PULL_FROM, archives);
        match client.pull_image(request).await {
            Ok(_) => {}
            Err(status) if status.code() == Code::NotFound => {}
            Err(status) => problems.push(status.message().to_owned()),
        }
    }
    problems
}
