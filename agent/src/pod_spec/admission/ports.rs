//! ◆ Whether the pod's host ports are free.
//!
//! Source: Kubernetes 1.36, pkg/scheduler/framework/plugins/nodeports: an address of all interfaces takes a port of every
//! address. Ports of init containers count when these run as long as the pod does.

use api::pod::Pod;
use k8s_openapi::api::core::v1::ContainerPort;

use super::share::host_ports;
use super::{Rejection, Taken};

const ALL_ADDRESSES: &str = "0.0.0.0";

pub(super) fn check(pod: &Pod, taken: &Taken) -> Result<(), Rejection> {
    let taken = |wanted: &ContainerPort| {
        let mut others = taken.host_ports(pod.uid());
        others.any(|port| conflict(wanted, port))
    };
    if host_ports(pod).any(taken) {
        return Err(Rejection::predicate(
            "NodePorts",
            "node(s) didn't have free ports for the requested pod ports",
        ));
    }
    Ok(())
}

fn conflict(a: &ContainerPort, b: &ContainerPort) -> bool {
    let address = |port: &ContainerPort| match port.host_ip.as_deref() {
        None | Some("") => ALL_ADDRESSES.to_owned(),
        Some(address) => address.to_owned(),
    };
    let protocol = |port: &ContainerPort| port.protocol.clone().unwrap_or_else(|| "TCP".to_owned());
    let (first, second) = (address(a), address(b));
    a.host_port == b.host_port
        && protocol(a) == protocol(b)
        && (first == second || first == ALL_ADDRESSES || second == ALL_ADDRESSES)
}
