//! Conversion of changes of resources, and of what is used.

use cri::v1;

use super::request::resources;
use crate::observed::{ContainerId, MemoryUsage, SandboxId};
use crate::pod_spec::spec::Resources;

pub(in crate::cri) fn update_container(
    id: &ContainerId,
    limits: &Resources,
) -> v1::UpdateContainerResourcesRequest {
    v1::UpdateContainerResourcesRequest {
        container_id: id.as_str().to_owned(),
        linux: Some(resources(limits)),
        ..v1::UpdateContainerResourcesRequest::default()
    }
}

pub(in crate::cri) fn update_sandbox(
    id: &SandboxId,
    limits: &Resources,
    overhead: &Resources,
) -> v1::UpdatePodSandboxResourcesRequest {
    v1::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: id.as_str().to_owned(),
        overhead: Some(resources(overhead)),
        resources: Some(resources(limits)),
    }
}

pub(in crate::cri) fn memory_usage(answer: v1::PodSandboxStatsResponse) -> MemoryUsage {
    let used = |memory: Option<v1::MemoryUsage>| Some(memory?.usage_bytes?.value);
    let linux = answer.stats.and_then(|stats| stats.linux).unwrap_or_default();
    let of_container = |stats: v1::ContainerStats| {
        let name = stats.attributes?.metadata?.name;
        Some((name, used(stats.memory)))
    };
    MemoryUsage {
        pod: used(linux.memory),
        containers: linux.containers.into_iter().filter_map(of_container).collect(),
    }
}
