//! ◆ The endpoints of a Service: pods that its selector matches, and the addresses of its EndpointSlices. Pure.
//!
//! Source: Kubernetes 1.36, pkg/controller/endpointslice and pkg/proxy/endpointslicecache.go.

use std::net::Ipv4Addr;
use std::sync::Arc;

use api::manifest::endpoints::{SERVICE_NAME, is_mirror};
use api::pod::{Pod, PodUid};
use k8s_openapi::api::core::v1::{PodStatus, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::Transport;
use crate::objects::ObjectMap;

/// An endpoint of a Service.
pub(super) struct Endpoint<'a> {
    pub(super) address: Ipv4Addr,
    /// Its name below a headless Service's.
    pub(super) hostname: Option<&'a str>,
    source: Source<'a>,
}

enum Source<'a> {
    Pod(&'a Pod),
    Slice(&'a EndpointSlice),
}

impl<'a> Endpoint<'a> {
    fn of_pod(pod: &'a Pod, address: Ipv4Addr, service: &str) -> Self {
        let hostname = pod.spec().hostname.as_deref();
        let hostname = hostname.filter(|hostname| !hostname.is_empty());
        Self {
            address,
            hostname: hostname.filter(|_| pod.spec().subdomain.as_deref() == Some(service)),
            source: Source::Pod(pod),
        }
    }

    /// The target port of a Service's port; `None` if there is none with its name.
    pub(super) fn port(&self, port: &ServicePort) -> Option<u16> {
        match self.source {
            Source::Pod(pod) => port_of_pod(port, pod),
            Source::Slice(slice) => port_of_slice(port, slice),
        }
    }
}

/// The namespace and the name of a Service.
pub(super) fn named(service: &Service) -> (&str, &str) {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    (metadata.name.as_deref().unwrap_or_default(), namespace)
}

pub(super) fn has_selector(spec: &ServiceSpec) -> bool {
    let selector = spec.selector.as_ref();
    selector.is_some_and(|labels| !labels.is_empty())
}

/// Whether a Service's selector matches a pod.
#[must_use]
pub fn selects(service: &Service, pod: &Pod) -> bool {
    let Some(spec) = service.spec.as_ref().filter(|spec| has_selector(spec)) else {
        return false;
    };
    let labels = pod.api().metadata.labels.as_ref();
    let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
    pod.namespace() == named(service).1 && spec.selector.iter().flatten().all(has)
}

/// The EndpointSlices of a Service. Endpoints are used only for a Service without a selector: the others come from a controller.
pub(super) fn slices_of<'s>(
    service: &Service,
    slices: &'s [Arc<EndpointSlice>],
) -> impl Iterator<Item = &'s EndpointSlice> {
    let (name, namespace) = named(service);
    let (name, namespace) = (name.to_owned(), namespace.to_owned());
    let selects = service.spec.as_ref().is_some_and(has_selector);
    let slices = slices.iter().map(Arc::as_ref);
    slices.filter(move |slice| {
        let labels = slice.metadata.labels.as_ref();
        let service = labels.and_then(|labels| labels.get(SERVICE_NAME));
        slice.metadata.namespace.as_deref().unwrap_or("default") == namespace
            && service == Some(&name)
            && !(selects && is_mirror(slice))
    })
}

/// The reachable endpoints of a Service, by address.
pub(super) fn endpoints<'a, 'p>(
    service: &Service,
    spec: &ServiceSpec,
    pods: &'p [Pod],
    slices: &'p [Arc<EndpointSlice>],
    status: &impl Fn(&PodUid) -> Option<&'a PodStatus>,
) -> Vec<Endpoint<'p>> {
    let mut endpoints = of_pods(service, spec, pods, status);
    for slice in slices_of(service, slices).filter(|slice| slice.address_type == "IPv4") {
        for endpoint in slice.endpoints.iter().flatten() {
            let conditions = endpoint.conditions.as_ref();
            let ready = conditions.and_then(|conditions| conditions.ready);
            // A proxy uses only the first address.
            let address = endpoint.addresses.first();
            let address = address.and_then(|address| address.parse().ok());
            if let Some(address) = address.filter(|_| ready != Some(false)) {
                let hostname = endpoint.hostname.as_deref();
                endpoints.push(Endpoint {
                    address,
                    hostname: hostname.filter(|name| !name.is_empty()),
                    source: Source::Slice(slice),
                });
            }
        }
    }
    compact::sort_by_key(&mut endpoints, |endpoint| endpoint.address);
    endpoints
}

/// The addresses that manifests specify for a Service, for messages.
#[must_use]
pub fn fixed_addresses(service: &Service, objects: &ObjectMap) -> Vec<String> {
    let spec = service.spec.clone().unwrap_or_default();
    let slices = objects.endpoint_slices();
    let all = endpoints(service, &spec, &[], &slices, &|_| None);
    let mut words: Vec<String> = all.iter().map(|endpoint| endpoint.address.to_string()).collect();
    words.dedup();
    words
}

fn of_pods<'a, 'p>(
    service: &Service,
    spec: &ServiceSpec,
    pods: &'p [Pod],
    status: &impl Fn(&PodUid) -> Option<&'a PodStatus>,
) -> Vec<Endpoint<'p>> {
    let name = named(service).0;
    let chosen = pods.iter().filter(|pod| selects(service, pod));
    let endpoints = chosen.filter_map(|pod| {
        let status = status(pod.uid())?;
        let may = is_ready(status) || spec.publish_not_ready_addresses == Some(true);
        let address = address(status).filter(|_| may && !is_over(status))?;
        Some(Endpoint::of_pod(pod, address, name))
    });
    endpoints.collect()
}

/// The port of a slice that has the name and the protocol of a Service's port.
pub(super) fn port_of_slice(port: &ServicePort, slice: &EndpointSlice) -> Option<u16> {
    let transport = Transport::named(port.protocol.as_deref());
    let name = port.name.as_deref().unwrap_or_default();
    let mut ports = slice.ports.iter().flatten();
    let found = ports.find(|port| {
        port.name.as_deref().unwrap_or_default() == name
            && Transport::named(port.protocol.as_deref()) == transport
    });
    number(found?.port?)
}

fn port_of_pod(port: &ServicePort, pod: &Pod) -> Option<u16> {
    let name = match &port.target_port {
        None => return number(port.port),
        Some(IntOrString::Int(target)) => return number(*target),
        Some(IntOrString::String(name)) => name,
    };
    let transport = Transport::named(port.protocol.as_deref());
    let containers = pod.all_containers();
    let mut ports = containers.flat_map(|(_, container)| container.ports.iter().flatten());
    let found = ports.find(|port| {
        port.name.as_deref() == Some(name)
            && Transport::named(port.protocol.as_deref()) == transport
    });
    number(found?.container_port)
}

pub(super) fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

fn is_over(status: &PodStatus) -> bool {
    matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"))
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn address(status: &PodStatus) -> Option<Ipv4Addr> {
    let all = status.pod_ips.iter().flatten().map(|ip| ip.ip.as_str());
    let mut all = all.chain(status.pod_ip.as_deref());
    all.find_map(|ip| ip.parse().ok())
}
