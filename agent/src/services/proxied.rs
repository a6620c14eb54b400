//! ◆ Computes the table of an API server's Services: their ClusterIPs and node ports, and the endpoints of their EndpointSlices.
//!
//! | Services and endpoints | connections |
//! |---|---|
//! | headless and ExternalName Services, those of another proxy (`service.kubernetes.io/service-proxy-name`) | not served |
//! | endpoints that are ready | forwarded to them |
//! | no ready endpoint | forwarded to terminating endpoints that still serve |
//! | `internalTrafficPolicy: Local`, for node ports `externalTrafficPolicy: Local` | forwarded only to endpoints of this node |
//! | all ready endpoints have hints for nodes, or zones, and some for this one | forwarded to endpoints with a hint for it |
//!
//! The cluster's DNS server serves the names. SCTP, IPv6, external IPs and addresses of load balancers are not served.
//!
//! Source: Kubernetes 1.36, pkg/proxy/topology.go, endpointslicecache.go, serviceport.go and util/utils.go (ShouldSkipService).

use std::net::{Ipv4Addr, SocketAddrV4};

use api::manifest::endpoints::SERVICE_NAME;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use k8s_openapi::api::discovery::v1::{self as discovery, EndpointSlice};

use super::assign::has_node_ports;
use super::endpoints::{named, number, port_of_slice};
use super::plan::{affinity, describe_port};
use super::{Balancer, ServiceTable, Transport};

/// The label of Services that another proxy serves.
const OTHER_PROXY: &str = "service.kubernetes.io/service-proxy-name";

/// The location of the proxy.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyLocation {
    /// The node's name.
    pub node: String,
    /// Its zone, if it has one.
    pub zone: Option<String>,
}

/// An endpoint of one port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Endpoint<'a> {
    at: SocketAddrV4,
    ready: bool,
    serving: bool,
    terminating: bool,
    local: bool,
    nodes: Set<&'a str>,
    zones: Set<&'a str>,
}

/// Which endpoints are preferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Preference {
    None,
    Node,
    Zone,
}

/// The table of `services` for a proxy at `location`.
#[must_use]
pub fn plan_proxied<'a>(
    services: impl IntoIterator<Item = &'a Service>,
    slices: impl IntoIterator<Item = &'a EndpointSlice>,
    location: &ProxyLocation,
) -> ServiceTable {
    let mut by_service: Map<(&str, &str), Vec<&EndpointSlice>> = Map::new();
    for slice in slices.into_iter().filter(|slice| slice.address_type == "IPv4") {
        let labels = slice.metadata.labels.as_ref();
        if let Some(service) = labels.and_then(|labels| labels.get(SERVICE_NAME)) {
            let namespace = slice.metadata.namespace.as_deref().unwrap_or("default");
            by_service.entry((namespace, service)).or_default().push(slice);
        }
    }
    let mut table = ServiceTable::default();
    for service in services {
        let Some((spec, address)) = served(service) else {
            continue;
        };
        let (name, namespace) = named(service);
        let slices = by_service.get(&(namespace, name)).map(Vec::as_slice).unwrap_or_default();
        table.addresses.push(address);
        for port in spec.ports.iter().flatten() {
            let endpoints = endpoints(port, slices, location);
            table.balancers.extend(balancers(service, spec, (address, port), &endpoints, location));
        }
    }
    table.addresses.sort_unstable();
    table.addresses.dedup();
    table
}

/// A Service's specification and its ClusterIP, if this proxy serves it.
fn served(service: &Service) -> Option<(&ServiceSpec, Ipv4Addr)> {
    let spec = service.spec.as_ref()?;
    let labels = service.metadata.labels.as_ref();
    if labels.is_some_and(|labels| labels.contains_key(OTHER_PROXY))
        || spec.type_.as_deref() == Some("ExternalName")
    {
        return None;
    }
    let addresses = spec.cluster_ips.iter().flatten().chain(&spec.cluster_ip);
    let mut addresses = addresses.filter_map(|text| text.parse().ok());
    addresses.next().map(|address| (spec, address))
}

/// The endpoints of a Service's port, by address; of an address in several slices, the one of this node.
fn endpoints<'a>(
    port: &ServicePort,
    slices: &[&'a EndpointSlice],
    location: &ProxyLocation,
) -> Vec<Endpoint<'a>> {
    let mut found: Map<SocketAddrV4, Endpoint<'a>> = Map::new();
    for slice in slices {
        let Some(number) = port_of_slice(port, slice) else {
            continue;
        };
        for one in slice.endpoints.iter().flatten() {
            // A proxy uses only the first address.
            let Some(Ok(address)) = one.addresses.first().map(|text| text.parse()) else {
                continue;
            };
            let endpoint = endpoint(one, SocketAddrV4::new(address, number), location);
            if endpoint.local || !found.contains_key(&endpoint.at) {
                found.insert(endpoint.at, endpoint);
            }
        }
    }
    found.into_values().collect()
}

fn endpoint<'a>(
    one: &'a discovery::Endpoint,
    at: SocketAddrV4,
    location: &ProxyLocation,
) -> Endpoint<'a> {
    let conditions = one.conditions.as_ref();
    let hints = one.hints.as_ref();
    let nodes = hints.and_then(|hints| hints.for_nodes.as_ref()).into_iter().flatten();
    let zones = hints.and_then(|hints| hints.for_zones.as_ref()).into_iter().flatten();
    Endpoint {
        at,
        ready: conditions.and_then(|all| all.ready) != Some(false),
        serving: conditions.and_then(|all| all.serving) != Some(false),
        terminating: conditions.and_then(|all| all.terminating) == Some(true),
        local: one.node_name.as_deref() == Some(&location.node),
        nodes: nodes.map(|node| node.name.as_str()).collect(),
        zones: zones.map(|zone| zone.name.as_str()).collect(),
    }
}

fn balancers(
    service: &Service,
    spec: &ServiceSpec,
    (address, port): (Ipv4Addr, &ServicePort),
    endpoints: &[Endpoint<'_>],
    location: &ProxyLocation,
) -> Vec<Balancer> {
    let Some(transport) = Transport::named(port.protocol.as_deref()) else {
        return Vec::new();
    };
    let is_local = |policy: &Option<String>| policy.as_deref() == Some("Local");
    let inside = number(port.port).map(|number| {
        (
            Some(address),
            number,
            usable(endpoints, is_local(&spec.internal_traffic_policy), location),
        )
    });
    let outside = port.node_port.filter(|_| has_node_ports(spec)).and_then(number);
    let outside = outside.map(|number| {
        (None, number, usable(endpoints, is_local(&spec.external_traffic_policy), location))
    });
    let both = inside.into_iter().chain(outside);
    let balancers = both.map(|(address, number, backends)| Balancer {
        name: describe_port(service, port.port, transport),
        address,
        port: number,
        transport,
        backends,
        affinity: affinity(spec),
    });
    balancers.collect()
}

/// The endpoints to which connections are forwarded.
fn usable(
    endpoints: &[Endpoint<'_>],
    local_only: bool,
    location: &ProxyLocation,
) -> Vec<SocketAddrV4> {
    let preference = if local_only { Preference::None } else { preference(endpoints, location) };
    let zone = location.zone.as_deref().unwrap_or_default();
    let is_preferred = |endpoint: &Endpoint<'_>| match preference {
        Preference::None => !local_only || endpoint.local,
        Preference::Node => endpoint.nodes.contains(location.node.as_str()),
        Preference::Zone => endpoint.zones.contains(zone),
    };
    let of = |wanted: &dyn Fn(&Endpoint<'_>) -> bool| -> Vec<SocketAddrV4> {
        endpoints.iter().filter(|endpoint| wanted(endpoint)).map(|endpoint| endpoint.at).collect()
    };
    let ready = of(&|endpoint| endpoint.ready && is_preferred(endpoint));
    if !ready.is_empty() {
        return ready;
    }
    let is_here = |endpoint: &Endpoint<'_>| !local_only || endpoint.local;
    of(&|endpoint| endpoint.serving && endpoint.terminating && is_here(endpoint))
}

/// Hints are used if all ready endpoints have some, and one names this location.
fn preference(endpoints: &[Endpoint<'_>], location: &ProxyLocation) -> Preference {
    let ready: Vec<&Endpoint<'_>> = endpoints.iter().filter(|endpoint| endpoint.ready).collect();
    let all = |has: fn(&Endpoint<'_>) -> bool| ready.iter().all(|endpoint| has(endpoint));
    let node = location.node.as_str();
    let zone = location.zone.as_deref().unwrap_or_default();
    if all(|endpoint| !endpoint.nodes.is_empty())
        && ready.iter().any(|endpoint| endpoint.nodes.contains(node))
    {
        Preference::Node
    } else if all(|endpoint| !endpoint.zones.is_empty())
        && ready.iter().any(|endpoint| endpoint.zones.contains(zone))
    {
        Preference::Zone
    } else {
        Preference::None
    }
}

#[cfg(test)]
mod tests;
