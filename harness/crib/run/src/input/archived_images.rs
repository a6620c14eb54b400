//! Imports the images of pods with `imagePullPolicy: Never` from archives or this machine (`crib.local/…`) before the pods start.

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

/// The value of [`PULL_FROM`] that excludes registries.
const ARCHIVES: &str = "archives";

/// The images of containers whose pull policy is Never.
pub(crate) fn never_pulled(pods: &[Pod], workloads: &[Workload]) -> Set<String> {
    let mut images = Set::new();
    for (_, pod) in named_pods(pods, workloads) {
        let containers = pod.all_containers().map(|(_, container)| container);
        let never = containers.filter(|one| one.image_pull_policy.as_deref() == Some("Never"));
        images.extend(never.filter_map(|container| container.image.clone()));
    }
    images
}

/// Imports the images that are in an archive or on this machine. Returns a message for each failure. A missing image is not a
/// failure here: the pod that uses it reports it.
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
