//! ◆ Plans the table of names and ports from Services, pods and their statuses.
//!
//! Sources: the specification of DNS-based service discovery of Kubernetes (version 1.1.0), and Kubernetes 1.36,
//! pkg/controller/endpointslice.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PodStatus, Service, ServicePort, ServiceSpec};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{Balancer, ServiceName, ServiceTable, Transport};
use crate::pod::{Pod, PodUid};

/// How long a client with affinity stays with a pod, in seconds (`sessionAffinityConfig.clientIP.timeoutSeconds`).
const AFFINITY: i32 = 10_800;

/// A pod behind a Service.
struct Endpoint<'a> {
    pod: &'a Pod,
    address: Ipv4Addr,
}

/// The table of `services`, in the cluster's domain. `pods` are those that are to run.
pub fn plan<'a>(
    domain: &str,
    services: impl IntoIterator<Item = &'a Service>,
    pods: &[Pod],
    status: impl Fn(&PodUid) -> Option<&'a PodStatus>,
) -> ServiceTable {
    let mut names = Names::default();
    let mut balancers = Vec::new();
    for service in services {
        let Some(spec) = &service.spec else {
            continue;
        };
        let (name, namespace) = named(service);
        let full_name = format!("{name}.{namespace}.svc.{domain}");
        if spec.type_.as_deref() == Some("ExternalName") {
            let target = spec.external_name.as_deref().unwrap_or_default();
            let target = target.strip_suffix('.').unwrap_or(target);
            names.of(&full_name).alias = Some(target.to_owned());
            continue;
        }
        let endpoints = endpoints(service, spec, pods, &status);
        match spec.cluster_ip.as_deref().map(str::parse::<Ipv4Addr>) {
            Some(Ok(address)) => {
                names.of(&full_name).addresses.push(address);
                names.of(&reverse(address)).pointer = Some(full_name.clone());
                for port in spec.ports.iter().flatten() {
                    names.server(&full_name, port, &full_name, number(port.port));
                }
                balancers.extend(self::balancers(service, spec, address, &endpoints));
            }
            // Not yet, or no IPv4 address.
            Some(Err(_)) if spec.cluster_ip.as_deref() != Some("None") => {}
            None => {}
            Some(Err(_)) => headless(&mut names, &full_name, name, spec, &endpoints),
        }
    }
    ServiceTable {
        zone: domain.to_owned(),
        names: names.0.into_values().collect(),
        balancers,
    }
}

fn named(service: &Service) -> (&str, &str) {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    (metadata.name.as_deref().unwrap_or_default(), namespace)
}

/// Names by themselves.
#[derive(Default)]
struct Names(BTreeMap<String, ServiceName>);

impl Names {
    fn of(&mut self, name: &str) -> &mut ServiceName {
        let new = || ServiceName {
            name: name.to_owned(),
            ..ServiceName::default()
        };
        self.0.entry(name.to_owned()).or_insert_with(new)
    }

    /// Adds the SRV record of a named port of a Service.
    fn server(&mut self, service: &str, port: &ServicePort, target: &str, number: Option<u16>) {
        let name = port.name.as_deref().filter(|name| !name.is_empty());
        let transport = Transport::named(port.protocol.as_deref());
        if let (Some(name), Some(transport), Some(number)) = (name, transport, number) {
            let record = format!("_{name}._{}.{service}", transport.name());
            self.of(&record).servers.push((target.to_owned(), number));
        }
    }
}

/// The names of a Service without an address: those of its pods.
fn headless(
    names: &mut Names,
    full_name: &str,
    name: &str,
    spec: &ServiceSpec,
    endpoints: &[Endpoint<'_>],
) {
    // The Service's own name exists also without pods.
    names.of(full_name);
    for endpoint in endpoints {
        let Endpoint { pod, address } = endpoint;
        names.of(full_name).addresses.push(*address);
        let own = pod.spec().hostname.as_deref();
        let own = own.filter(|hostname| !hostname.is_empty());
        let own = own.filter(|_| pod.spec().subdomain.as_deref() == Some(name));
        let label = own.map_or_else(|| address.to_string().replace('.', "-"), str::to_owned);
        let target = format!("{label}.{full_name}");
        let addresses = &mut names.of(&target).addresses;
        if !addresses.contains(address) {
            addresses.push(*address);
        }
        let pointer = &mut names.of(&reverse(*address)).pointer;
        pointer.get_or_insert_with(|| target.clone());
        for port in spec.ports.iter().flatten() {
            names.server(full_name, port, &target, target_port(port, pod));
        }
    }
}

fn balancers(
    service: &Service,
    spec: &ServiceSpec,
    address: Ipv4Addr,
    endpoints: &[Endpoint<'_>],
) -> Vec<Balancer> {
    let mut balancers = Vec::new();
    for port in spec.ports.iter().flatten() {
        let Some(transport) = Transport::named(port.protocol.as_deref()) else {
            continue;
        };
        let own_port = port.port;
        let backend = |endpoint: &Endpoint<'_>| {
            let port = target_port(port, endpoint.pod)?;
            Some(SocketAddrV4::new(endpoint.address, port))
        };
        let backends: Vec<SocketAddrV4> = endpoints.iter().filter_map(backend).collect();
        let node_port = port.node_port.and_then(number).map(|port| (None, port));
        let own = number(port.port).map(|port| (Some(address), port));
        for (address, port) in own.into_iter().chain(node_port) {
            balancers.push(Balancer {
                name: words(service, own_port, transport),
                address,
                port,
                transport,
                backends: backends.clone(),
                affinity: affinity(spec),
            });
        }
    }
    balancers
}

fn words(service: &Service, port: i32, transport: Transport) -> String {
    let (name, namespace) = named(service);
    let transport = match transport {
        Transport::Tcp => "",
        Transport::Udp => "/UDP",
    };
    format!("service {namespace}/{name}: port {port}{transport}")
}

/// The node ports of a Service that are served, each with the Service and its port in words.
#[must_use]
pub fn node_ports(service: &Service) -> Vec<(String, u16)> {
    let ports = service.spec.iter();
    let ports = ports.flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter_map(|port| {
        let transport = Transport::named(port.protocol.as_deref())?;
        let node_port = port.node_port.and_then(number)?;
        Some((words(service, port.port, transport), node_port))
    });
    ports.collect()
}

fn number(port: i32) -> Option<u16> {
    u16::try_from(port).ok().filter(|port| *port > 0)
}

fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let seconds = u64::try_from(seconds.unwrap_or(AFFINITY)).ok()?;
    Some(Duration::from_secs(seconds))
}

/// The pod's port that a Service's port leads to; `None` if the pod has none of that name.
fn target_port(port: &ServicePort, pod: &Pod) -> Option<u16> {
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

/// The pods that the selector chooses and that may be reached, by address.
fn endpoints<'a, 'p>(
    service: &Service,
    spec: &ServiceSpec,
    pods: &'p [Pod],
    status: &impl Fn(&PodUid) -> Option<&'a PodStatus>,
) -> Vec<Endpoint<'p>> {
    let Some(selector) = spec.selector.as_ref().filter(|labels| !labels.is_empty()) else {
        return Vec::new();
    };
    let namespace = named(service).1;
    let chosen = pods.iter().filter(|pod| {
        let labels = pod.api().metadata.labels.as_ref();
        let has = |(key, value)| labels.and_then(|labels| labels.get(key)) == Some(value);
        pod.namespace() == namespace && selector.iter().all(has)
    });
    let mut endpoints: Vec<Endpoint<'_>> = chosen
        .filter_map(|pod| {
            let status = status(pod.uid())?;
            let may = is_ready(status) || spec.publish_not_ready_addresses == Some(true);
            let address = address(status).filter(|_| may && !is_over(status))?;
            Some(Endpoint { pod, address })
        })
        .collect();
    endpoints.sort_by_key(|endpoint| endpoint.address);
    endpoints
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

/// The name of an address (RFC 1035, 3.5).
fn reverse(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa")
}
