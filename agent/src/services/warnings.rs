//! ◆ Warnings about Services that behave differently from what their authors may expect. Pure.

use std::sync::Arc;

use api::manifest::endpoints::is_mirror;
use k8s_openapi::api::core::v1::{Service, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::Transport;
use super::assign::{full_name, kind, needs_address};
use super::endpoints::{has_selector, port_of_slice, slices_of};
use crate::objects::ObjectMap;

/// Warnings about Services, Endpoints and EndpointSlices.
#[must_use]
pub fn warnings(objects: &ObjectMap) -> Vec<String> {
    let (services, slices) = (objects.all_services(), objects.endpoint_slices());
    let of_service = |service: &Arc<Service>| {
        let name = full_name(service);
        let spec = service.spec.as_ref();
        let warnings = spec.into_iter().flat_map(|spec| {
            let of_slices = warnings_of_slices(service, spec, &slices);
            warnings_of(spec).into_iter().chain(of_slices)
        });
        warnings.map(|warning| format!("service {name}: {warning}")).collect::<Vec<_>>()
    };
    let of_services = services.iter().flat_map(of_service);
    of_services.chain(unused(&services, &slices)).collect()
}

/// Warnings about the endpoints of a Service.
fn warnings_of_slices(
    service: &Service,
    spec: &ServiceSpec,
    slices: &[Arc<EndpointSlice>],
) -> Vec<String> {
    if kind(spec) == "ExternalName" {
        return Vec::new();
    }
    let own: Vec<&EndpointSlice> = slices_of(service, slices).collect();
    let served: Vec<&EndpointSlice> =
        own.iter().copied().filter(|slice| slice.address_type == "IPv4").collect();
    let mut warnings = Vec::new();
    if own.is_empty() && !has_selector(spec) {
        let name = service.metadata.name.as_deref().unwrap_or_default();
        warnings.push(format!(
            "refuses connections because it has no selector: add a selector, Endpoints {name}, or an EndpointSlice with the label kubernetes.io/service-name: {name}"
        ));
    }
    for slice in own {
        let kind = &slice.address_type;
        if kind != "IPv4" {
            warnings.push(format!(
                "addresses of type {kind} are not served, only IPv4 addresses are: {}",
                name_of(slice)
            ));
        }
    }
    if served.is_empty() || has_selector(spec) {
        return warnings;
    }
    for port in spec.ports.iter().flatten() {
        let is_served = Transport::named(port.protocol.as_deref()).is_some();
        if is_served && served.iter().all(|slice| port_of_slice(port, slice).is_none()) {
            let names: Vec<String> = served.iter().map(|slice| name_of(slice)).collect();
            let (number, names) = (port.port, names.join(", "));
            let named = match port.name.as_deref() {
                None | Some("") => "no unnamed port".to_owned(),
                Some(name) => format!("no port named {name}"),
            };
            warnings.push(format!(
                "port {number} refuses connections: {names} has {named} of the same protocol; give both ports the same name"
            ));
        }
    }
    warnings
}

/// Endpoints and EndpointSlices that no Service uses.
fn unused(services: &[Arc<Service>], slices: &[Arc<EndpointSlice>]) -> Vec<String> {
    let used = |slice: &Arc<EndpointSlice>| {
        let one = std::slice::from_ref(slice);
        services.iter().any(|service| slices_of(service, one).next().is_some())
    };
    let unused = slices.iter().filter(|slice| !used(slice));
    let mut names: Vec<String> = unused
        .map(|slice| {
            let remedy = match is_mirror(slice) {
                true => "add a Service with this name and without a selector".to_owned(),
                false => "give it the label kubernetes.io/service-name with the name of a Service"
                    .to_owned(),
            };
            format!(
                "{} has no effect, because no Service uses it: {remedy}, or leave it out",
                name_of(slice)
            )
        })
        .collect();
    names.dedup();
    names
}

fn name_of(slice: &EndpointSlice) -> String {
    let kind = match is_mirror(slice) {
        true => "endpoints",
        false => "endpointslice",
    };
    let metadata = &slice.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = metadata.name.as_deref().unwrap_or_default();
    format!("{kind} {namespace}/{name}")
}

fn warnings_of(spec: &ServiceSpec) -> Vec<String> {
    let mut warnings = Vec::new();
    let kind = kind(spec);
    if kind == "LoadBalancer" {
        warnings
            .push("type LoadBalancer is treated as NodePort: crib has no load balancer".to_owned());
    }
    let address = spec.cluster_ip.as_deref().unwrap_or_default();
    if needs_address(spec) && !address.is_empty() {
        warnings.push(format!(
            "clusterIP {address} is replaced by an address of the pod network: leave clusterIP out"
        ));
    }
    let families = spec.ip_families.as_deref().unwrap_or_default();
    if families.first().is_some_and(|family| family == "IPv6") {
        warnings.push("IPv6 is not supported: the Service gets an IPv4 address only".to_owned());
    }
    for port in spec.ports.iter().flatten() {
        if Transport::named(port.protocol.as_deref()).is_none() {
            let protocol = port.protocol.as_deref().unwrap_or_default();
            warnings.push(format!(
                "port {} is not served: {protocol} is not supported, only TCP and UDP are",
                port.port
            ));
        }
    }
    warnings
}
