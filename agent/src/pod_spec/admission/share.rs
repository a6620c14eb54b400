//! ◆ What one pod takes of the node: what it requests in whole units, and its host ports.

use std::collections::BTreeMap;

use api::pod::{Pod, is_sidecar};
use api::quantity::Quantity;
use k8s_openapi::api::core::v1::ContainerPort;

use crate::pod_spec::spec::resources::pod_requests;

/// What a pod requests of one resource; of `pods` it is one.
pub(super) fn request(pod: &Pod, name: &str) -> i64 {
    if name == "pods" {
        return 1;
    }
    let requests = pod_requests(pod);
    requests.get(name).map_or(0, |amount| whole(name, *amount))
}

/// What a pod requests of each resource: whole units, of CPU thousandths.
pub(super) fn requests(pod: &Pod) -> BTreeMap<String, i64> {
    let in_units = |(name, amount): (String, Quantity)| {
        let units = whole(&name, amount);
        (name, units)
    };
    pod_requests(pod).into_iter().map(in_units).collect()
}

/// An amount in whole units, of CPU in thousandths.
pub(super) fn whole(name: &str, amount: Quantity) -> i64 {
    if name == "cpu" { amount.milli_value() } else { amount.value() }
}

/// The host ports of the containers that run as long as the pod does.
pub(super) fn host_ports(pod: &Pod) -> impl Iterator<Item = &ContainerPort> {
    let sidecars = pod.init_containers().iter().filter(|init| is_sidecar(init));
    let ports = sidecars.chain(pod.containers()).filter_map(|container| container.ports.as_ref());
    ports.flatten().filter(|port| port.host_port.is_some_and(|number| number > 0))
}
