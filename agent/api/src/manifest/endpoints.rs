//! Endpoints and EndpointSlices in manifests: addresses of Services without a selector.

use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort, EndpointSlice};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// The label of an EndpointSlice with the name of its Service.
pub const SERVICE_NAME: &str = "kubernetes.io/service-name";
const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
const MIRRORING: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";

/// The EndpointSlices that mirror Endpoints. Kubernetes 1.36, pkg/controller/endpointslicemirroring.
pub fn mirrors(endpoints: &Endpoints) -> Vec<EndpointSlice> {
    let metadata = &endpoints.metadata;
    let labels = metadata.labels.as_ref();
    if labels.and_then(|labels| labels.get(SKIP)).map(String::as_str) == Some("true") {
        return Vec::new();
    }
    let subsets = endpoints.subsets.iter().flatten();
    let slices = subsets.flat_map(|subset| {
        ["IPv4", "IPv6"].map(|family| EndpointSlice {
            address_type: family.to_owned(),
            endpoints: Some(addresses(subset, family)),
            metadata: ObjectMeta {
                labels: Some(
                    [
                        (SERVICE_NAME.to_owned(), metadata.name.clone().unwrap_or_default()),
                        (MANAGED_BY.to_owned(), MIRRORING.to_owned()),
                    ]
                    .into(),
                ),
                name: metadata.name.clone(),
                namespace: metadata.namespace.clone(),
                ..ObjectMeta::default()
            },
            ports: Some(ports(subset)),
        })
    });
    let is_filled =
        |slice: &EndpointSlice| slice.endpoints.as_ref().is_some_and(|all| !all.is_empty());
    slices.filter(is_filled).collect()
}

/// Whether a slice mirrors Endpoints.
pub fn is_mirror(slice: &EndpointSlice) -> bool {
    let labels = slice.metadata.labels.as_ref();
    labels.and_then(|labels| labels.get(MANAGED_BY)).map(String::as_str) == Some(MIRRORING)
}

fn addresses(subset: &EndpointSubset, family: &str) -> Vec<Endpoint> {
    let of_family = |address: &&EndpointAddress| match address.ip.parse() {
        Ok(IpAddr::V4(_)) => family == "IPv4",
        Ok(IpAddr::V6(_)) => family == "IPv6",
        Err(_) => false,
    };
    let endpoint = |address: &EndpointAddress, ready: bool| Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions {
            ready: Some(ready),
            ..EndpointConditions::default()
        }),
        hostname: address.hostname.clone(),
        ..Endpoint::default()
    };
    let ready = subset.addresses.iter().flatten().filter(of_family);
    let others = subset.not_ready_addresses.iter().flatten();
    let others = others.filter(of_family);
    ready
        .map(|address| endpoint(address, true))
        .chain(others.map(|address| endpoint(address, false)))
        .collect()
}

fn ports(subset: &EndpointSubset) -> Vec<EndpointPort> {
    let ports = subset.ports.iter().flatten();
    let ports = ports.map(|port| EndpointPort {
        app_protocol: port.app_protocol.clone(),
        name: port.name.clone(),
        port: Some(port.port),
        protocol: port.protocol.clone(),
    });
    ports.collect()
}
