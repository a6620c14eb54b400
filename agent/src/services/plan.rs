//! ◆ Computes the table of names and ports from Services, pods and their statuses.
//!
//! Sources: the specification of DNS-based service discovery of Kubernetes (version 1.1.0), and Kubernetes 1.36,
//! pkg/controller/endpointslice.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid};
use compact::Map;
use k8s_openapi::api::core::v1::{PodStatus, Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::EndpointSlice;

use super::endpoints::{Endpoint, endpoints, named, number};
use super::{Balancer, ServiceName, ServiceTable, Transport};

/// The default time for which a client with affinity is forwarded to the same pod, in seconds
/// (`sessionAffinityConfig.clientIP.timeoutSeconds`).
const AFFINITY: i32 = 10_800;

/// The table of `services`, in the cluster's domain. `pods` are the desired pods, `slices` the addresses from manifests.
pub fn plan<'a>(
    domain: &str,
    services: impl IntoIterator<Item = &'a Service>,
    pods: &[Pod],
    slices: &[Arc<EndpointSlice>],
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
        let endpoints = endpoints(service, spec, pods, slices, &status);
        match spec.cluster_ip.as_deref().map(str::parse::<Ipv4Addr>) {
            Some(Ok(address)) => {
                names.of(&full_name).addresses.push(address);
                names.of(&reverse(address)).pointer = Some(full_name.clone());
                for port in spec.ports.iter().flatten() {
                    names.server(&full_name, port, &full_name, number(port.port));
                }
                balancers.extend(self::balancers(service, spec, address, &endpoints));
            }
            // No address yet, or no IPv4 address.
            Some(Err(_)) if spec.cluster_ip.as_deref() != Some("None") => {}
            None => {}
            Some(Err(_)) => headless(&mut names, &full_name, spec, &endpoints),
        }
    }
    let names = names.0.into_values().collect();
    // The ClusterIPs are in the pod network.
    ServiceTable { zone: domain.to_owned(), names, balancers, addresses: Vec::new() }
}

/// DNS records by name.
#[derive(Default)]
struct Names(Map<String, ServiceName>);

impl Names {
    fn of(&mut self, name: &str) -> &mut ServiceName {
        let new = || ServiceName { name: name.to_owned(), ..ServiceName::default() };
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

/// The names of a Service without an address: its pods' names.
fn headless(names: &mut Names, full_name: &str, spec: &ServiceSpec, endpoints: &[Endpoint<'_>]) {
    let add = |addresses: &mut Vec<Ipv4Addr>, address| {
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    };
    // The Service's own name exists even without pods.
    names.of(full_name);
    for endpoint in endpoints {
        let address = endpoint.address;
        add(&mut names.of(full_name).addresses, address);
        let own = endpoint.hostname;
        let label = own.map_or_else(|| address.to_string().replace('.', "-"), str::to_owned);
        let target = format!("{label}.{full_name}");
        add(&mut names.of(&target).addresses, address);
        let pointer = &mut names.of(&reverse(address)).pointer;
        pointer.get_or_insert_with(|| target.clone());
        for port in spec.ports.iter().flatten() {
            names.server(full_name, port, &target, endpoint.port(port));
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
            let port = endpoint.port(port)?;
            Some(SocketAddrV4::new(endpoint.address, port))
        };
        let backends: Vec<SocketAddrV4> = endpoints.iter().filter_map(backend).collect();
        let node_port = port.node_port.and_then(number).map(|port| (None, port));
        let own = number(port.port).map(|port| (Some(address), port));
        for (address, port) in own.into_iter().chain(node_port) {
            balancers.push(Balancer {
                name: describe_port(service, own_port, transport),
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

pub(super) fn describe_port(service: &Service, port: i32, transport: Transport) -> String {
    let (name, namespace) = named(service);
    let transport = match transport {
        Transport::Tcp => "",
        Transport::Udp => "/UDP",
    };
    format!("service {namespace}/{name}: port {port}{transport}")
}

/// The supported node ports of a Service, each with the Service and its port for messages.
#[must_use]
pub fn node_ports(service: &Service) -> Vec<(String, Transport, u16)> {
    let ports = service.spec.iter();
    let ports = ports.flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter_map(|port| {
        let transport = Transport::named(port.protocol.as_deref())?;
        let node_port = port.node_port.and_then(number)?;
        Some((describe_port(service, port.port, transport), transport, node_port))
    });
    ports.collect()
}

pub(super) fn affinity(spec: &ServiceSpec) -> Option<Duration> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let config = spec.session_affinity_config.as_ref();
    let seconds = config.and_then(|config| config.client_ip.as_ref()?.timeout_seconds);
    let seconds = u64::try_from(seconds.unwrap_or(AFFINITY)).ok()?;
    Some(Duration::from_secs(seconds))
}

/// The name of an address (RFC 1035, 3.5).
fn reverse(address: Ipv4Addr) -> String {
    let [a, b, c, d] = address.octets();
    format!("{d}.{c}.{b}.{a}.in-addr.arpa")
}
