//! ◆ Gives Services what an API server gives them: ClusterIPs and node ports.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{Service, ServiceSpec};

use super::Transport;
use crate::objects::{ObjectMap, Objects as _};

/// The ports that are allocated (kube-apiserver, --service-node-port-range).
const NODE_PORTS: RangeInclusive<u16> = 30_000..=32_767;

/// The number of ClusterIPs that the Services need.
#[must_use]
pub fn addresses_needed(objects: &ObjectMap) -> usize {
    let services = objects.all_services();
    let mut specs = services.iter().filter_map(|service| service.spec.as_ref());
    specs.by_ref().filter(|spec| needs_address(spec)).count()
}

fn kind(spec: &ServiceSpec) -> &str {
    spec.type_.as_deref().unwrap_or("ClusterIP")
}

fn needs_address(spec: &ServiceSpec) -> bool {
    kind(spec) != "ExternalName" && spec.cluster_ip.as_deref() != Some("None")
}

fn has_node_ports(spec: &ServiceSpec) -> bool {
    match kind(spec) {
        "NodePort" => true,
        "LoadBalancer" => spec.allocate_load_balancer_node_ports != Some(false),
        _ => false,
    }
}

/// Gives each Service that needs one the next of `addresses`, and a node port to each port that needs one; the search for free
/// ones begins at a place that `seed` chooses, because other clusters on the host have node ports too.
pub fn assign(objects: &mut ObjectMap, addresses: &[Ipv4Addr], seed: u64) {
    let services = objects.all_services();
    let specs = services.iter().filter_map(|service| service.spec.as_ref());
    let given = specs.filter(|spec| has_node_ports(spec));
    let given = given.flat_map(|spec| spec.ports.iter().flatten());
    let mut taken: BTreeSet<u16> = given
        .filter_map(|port| u16::try_from(port.node_port?).ok())
        .collect();
    let mut addresses = addresses.iter();
    for service in services {
        let mut service = Service::clone(&service);
        let spec = service.spec.get_or_insert_default();
        if needs_address(spec) {
            let Some(address) = addresses.next() else {
                continue;
            };
            spec.cluster_ip = Some(address.to_string());
            spec.cluster_ips = Some(vec![address.to_string()]);
        }
        if has_node_ports(spec) {
            for port in spec.ports.iter_mut().flatten() {
                if port.node_port.unwrap_or_default() == 0 {
                    let free = next_port(seed, &taken);
                    taken.extend(free);
                    port.node_port = free.map(i32::from);
                }
            }
        }
        objects.insert_service(service);
    }
}

fn full_name(service: &Service) -> String {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    format!(
        "{namespace}/{}",
        metadata.name.as_deref().unwrap_or_default()
    )
}

fn next_port(seed: u64, taken: &BTreeSet<u16>) -> Option<u16> {
    let count = u64::from(NODE_PORTS.end() - NODE_PORTS.start()) + 1;
    let first = u16::try_from(seed % count).unwrap_or_default() + NODE_PORTS.start();
    let mut ports = (first..=*NODE_PORTS.end()).chain(*NODE_PORTS.start()..first);
    ports.find(|port| !taken.contains(port))
}

/// What of the Services is not as their authors expect, in sentences.
#[must_use]
pub fn warnings(objects: &ObjectMap) -> Vec<String> {
    let services = objects.all_services();
    let of_service = |service: &Arc<Service>| {
        let name = full_name(service);
        let said = service.spec.iter().flat_map(warnings_of);
        said.map(|warning| format!("service {name}: {warning}"))
            .collect::<Vec<_>>()
    };
    services.iter().flat_map(of_service).collect()
}

fn warnings_of(spec: &ServiceSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    let kind = kind(spec);
    if kind == "LoadBalancer" {
        warnings.push(
            "type LoadBalancer is treated as NodePort: there is no load balancer here".to_owned(),
        );
    }
    let address = spec.cluster_ip.as_deref().unwrap_or_default();
    if needs_address(spec) && !address.is_empty() {
        warnings.push(format!(
            "clusterIP {address} is replaced by an address of the pods' network: leave clusterIP out"
        ));
    }
    let has_selector = spec
        .selector
        .as_ref()
        .is_some_and(|labels| !labels.is_empty());
    if kind != "ExternalName" && !has_selector {
        warnings.push(
            "it has no selector, and refuses connections: kinds Endpoints and EndpointSlice are not run; give it a selector"
                .to_owned(),
        );
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    if families.first().is_some_and(|family| family == "IPv6") {
        warnings.push("it has an IPv4 address, and no IPv6 one".to_owned());
    }
    for port in spec.ports.iter().flatten() {
        if Transport::named(port.protocol.as_deref()).is_none() {
            let protocol = port.protocol.as_deref().unwrap_or_default();
            warnings.push(format!(
                "port {} is not served: {protocol} is not balanced, only TCP and UDP are",
                port.port
            ));
        }
    }
    warnings
}
