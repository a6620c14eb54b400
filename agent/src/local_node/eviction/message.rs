//! ◆ Why a pod is evicted: the message of its status, and the annotations of its event.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use api::quantity::{Quantity, canonical};
use k8s_openapi::api::core::v1::Container;

use super::Resource;
use super::config::Threshold;
use super::observe::Observations;
use super::rank::{Candidate, bytes};
use super::requests;
use super::stats::ContainerStats;

/// The texts about an eviction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EvictionMessage {
    /// The message of the pod's status.
    pub message: String,
    /// The annotations of the event.
    pub annotations: BTreeMap<String, String>,
}

/// Composes the reason of a pod's eviction: `resource` is short, and these thresholds are met.
#[must_use]
pub fn message(
    resource: Resource,
    candidate: &Candidate<'_>,
    met: &[&Threshold],
    observations: &Observations,
) -> EvictionMessage {
    let name = resource.as_str();
    let mut eviction_message = EvictionMessage {
        message: format!("The node was low on resource: {name}. "),
        ..EvictionMessage::default()
    };
    let of_resource = met
        .iter()
        .filter(|threshold| threshold.signal.resource() == resource)
        .find_map(|threshold| Some((threshold, observations.get(&threshold.signal)?)));
    if let Some((threshold, observed)) = of_resource {
        let _ = write!(
            eviction_message.message,
            "Threshold quantity: {}, available: {}. ",
            threshold.value.text(observed.capacity),
            observed.available_text(threshold.signal)
        );
    }
    let Some(stats) = candidate.stats else {
        return eviction_message;
    };
    let pod = candidate.pod;
    let mut annotate = |key: &str, value: String| {
        eviction_message.annotations.insert(key.to_owned(), value);
    };
    if resource == Resource::Memory && requests::has_own_resources(pod) {
        let own = pod.spec().resources.as_ref();
        let request = own.and_then(|own| own.requests.as_ref()?.get(name));
        if let (Some(request), Some(memory)) = (request, &stats.memory) {
            let usage = bytes(memory.working_set_bytes).to_string();
            let request =
                canonical(&request.0).map_or_else(|_| request.0.clone(), |text| text.text);
            let _ = write!(
                eviction_message.message,
                "Pod {} was using {usage}, request is {request}, has larger consumption of {name}. ",
                pod.name()
            );
            annotate("offending_pod", pod.name().to_owned());
            annotate("offending_pod_usage", usage);
        }
    }
    let (mut names, mut usages) = (Vec::new(), Vec::new());
    for stats in &stats.containers {
        let mut containers = pod.containers().iter().chain(pod.init_containers());
        let container = containers.find(|container| container.name == stats.name);
        let Some(container) = container else { continue };
        let request = requests::of_container(container, name);
        let Some(usage) = usage(stats, resource).filter(|usage| *usage > request) else {
            continue;
        };
        let _ = write!(
            eviction_message.message,
            "Container {} was using {usage}, request is {}, has larger consumption of {name}. ",
            container.name,
            request_text(container, name)
        );
        names.push(container.name.as_str());
        usages.push(usage.to_string());
    }
    annotate("offending_containers", names.join(","));
    annotate("offending_containers_usage", usages.join(","));
    annotate("starved_resource", name.to_owned());
    eviction_message
}

/// A container's usage of a resource that it can request.
fn usage(stats: &ContainerStats, resource: Resource) -> Option<Quantity> {
    let used = match resource {
        Resource::Memory => stats.memory.as_ref()?.working_set_bytes?,
        Resource::EphemeralStorage => {
            let layer = stats.rootfs.as_ref()?.used_bytes?;
            layer.saturating_add(stats.logs.as_ref()?.used_bytes?)
        }
        Resource::Inodes | Resource::Pids => return None,
    };
    Some(bytes(Some(used)))
}

/// The request as Kubernetes formats it.
fn request_text(container: &Container, name: &str) -> String {
    let requests = container.resources.as_ref();
    let request = requests.and_then(|requests| requests.requests.as_ref()?.get(name));
    request
        .and_then(|request| canonical(&request.0).ok())
        .map_or_else(|| "0".to_owned(), |text| text.text)
}
