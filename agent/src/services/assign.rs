//! ◆ Assigns ClusterIPs and node ports to Services, as an API server does.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Arc;

use api::manifest::NODE_PORTS;
use compact::{Map, Set};
use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};

use crate::objects::ObjectMap;

pub(super) fn kind(spec: &ServiceSpec) -> &str {
    spec.type_.as_deref().unwrap_or("ClusterIP")
}

pub(super) fn needs_address(spec: &ServiceSpec) -> bool {
    kind(spec) != "ExternalName" && spec.cluster_ip.as_deref() != Some("None")
}

/// Whether the Service's ports are also ports of the node.
#[must_use]
pub fn has_node_ports(spec: &ServiceSpec) -> bool {
    match kind(spec) {
        "NodePort" => true,
        "LoadBalancer" => spec.allocate_load_balancer_node_ports != Some(false),
        _ => false,
    }
}

/// Assigns addresses and node ports to Services, which keep them while they change.
#[derive(Debug)]
pub struct Assigner {
    seed: u64,
    /// The free addresses; the one that was released first is in front.
    free: VecDeque<Ipv4Addr>,
    /// By the names of Services.
    addresses: Map<String, Ipv4Addr>,
    /// By the names of Services and of their ports.
    node_ports: Map<(String, String), u16>,
}

impl Assigner {
    /// The search for free node ports begins at a number derived from `seed`, because other clusters on the host use some too.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { seed, free: VecDeque::new(), addresses: Map::new(), node_ports: Map::new() }
    }

    /// The number of further addresses that the Services need.
    #[must_use]
    pub fn missing_addresses(&self, objects: &ObjectMap) -> usize {
        let services = objects.all_services();
        let specs = services.iter().filter_map(|service| service.spec.as_ref());
        let needed = specs.filter(|spec| needs_address(spec)).count();
        needed.saturating_sub(self.leased())
    }

    /// The number of available addresses.
    pub(super) fn leased(&self) -> usize {
        self.free.len() + self.addresses.len()
    }

    /// Adds addresses for Services.
    pub fn add_addresses(&mut self, addresses: impl IntoIterator<Item = Ipv4Addr>) {
        self.free.extend(addresses);
    }

    /// Assigns addresses and node ports to each Service. A changed Service keeps its own; those of removed Services are released.
    pub fn assign(&mut self, objects: &mut ObjectMap) {
        let mut services = objects.all_services();
        self.assign_addresses(&services);
        self.assign_node_ports(&services);
        for service in &mut services {
            let name = full_name(service);
            let spec = Arc::make_mut(service).spec.get_or_insert_default();
            if needs_address(spec) {
                let address = self.addresses.get(&name).map(Ipv4Addr::to_string);
                spec.cluster_ips = address.clone().map(|address| vec![address]);
                spec.cluster_ip = address;
            }
            if has_node_ports(spec) {
                for port in spec.ports.iter_mut().flatten() {
                    let key = (name.clone(), port.name.clone().unwrap_or_default());
                    let given = chosen(port).or_else(|| self.node_ports.get(&key).copied());
                    port.node_port = given.map(i32::from);
                }
            }
        }
        objects.set_services(services);
    }

    fn assign_addresses(&mut self, services: &[Arc<Service>]) {
        let mut before = std::mem::take(&mut self.addresses);
        let mut new = Vec::new();
        for service in services {
            let name = full_name(service);
            if !service.spec.as_ref().is_some_and(needs_address) {
                continue;
            }
            match before.remove(&name) {
                Some(address) => drop(self.addresses.insert(name, address)),
                None => new.push(name),
            }
        }
        self.free.extend(before.into_values());
        for name in new {
            if let Some(address) = self.free.pop_front() {
                self.addresses.insert(name, address);
            }
        }
    }

    /// Ports that a manifest specifies come first, then the kept ones (patchAllocatedValues in pkg/registry/core/service/storage of
    /// Kubernetes 1.36, which also matches the ports' names).
    fn assign_node_ports(&mut self, services: &[Arc<Service>]) {
        let before = std::mem::take(&mut self.node_ports);
        let (mut taken, mut open) = (Set::new(), Vec::new());
        for service in services {
            let spec = service.spec.iter().filter(|spec| has_node_ports(spec));
            for port in spec.flat_map(|spec| spec.ports.iter().flatten()) {
                let key = (full_name(service), port.name.clone().unwrap_or_default());
                match chosen(port) {
                    Some(chosen) => {
                        taken.insert(chosen);
                        self.node_ports.insert(key, chosen);
                    }
                    None => open.push(key),
                }
            }
        }
        open.retain(|key| match before.get(key) {
            Some(kept) if taken.insert(*kept) => {
                self.node_ports.insert(key.clone(), *kept);
                false
            }
            Some(_) | None => true,
        });
        for key in open {
            if let Some(free) = next_port(self.seed, &taken) {
                taken.insert(free);
                self.node_ports.insert(key, free);
            }
        }
    }
}

/// The node port that a manifest specifies.
fn chosen(port: &ServicePort) -> Option<u16> {
    let number = u16::try_from(port.node_port?).ok();
    number.filter(|number| *number > 0)
}

/// The node ports that Services specify.
#[derive(Debug, Default)]
pub struct NodePorts(Map<u16, (String, i32)>);

impl NodePorts {
    /// Reserves the node ports of a Service. Returns why an API server would reject it, if another port has one of them: two
    /// protocols of one port may share a node port.
    #[must_use]
    pub fn take(&mut self, service: &Service) -> Vec<String> {
        let (name, mut problems) = (full_name(service), Vec::new());
        let ports = service.spec.iter();
        let ports = ports.flat_map(|spec| spec.ports.iter().flatten());
        for (index, port) in ports.enumerate() {
            let Some(number) = chosen(port) else {
                continue;
            };
            let own = (name.clone(), port.port);
            let holder = self.0.entry(number).or_insert_with(|| own.clone());
            if *holder != own {
                let (other, _) = holder;
                problems.push(format!(
                    "spec.ports[{index}].nodePort: Invalid value: {number}: provided port is already allocated: service {other} has it"
                ));
            }
        }
        problems
    }
}

pub(super) fn full_name(service: &Service) -> String {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    format!("{namespace}/{}", metadata.name.as_deref().unwrap_or_default())
}

fn next_port(seed: u64, taken: &Set<u16>) -> Option<u16> {
    let count = u64::from(NODE_PORTS.end() - NODE_PORTS.start()) + 1;
    let first = u16::try_from(seed % count).unwrap_or_default() + NODE_PORTS.start();
    let mut ports = (first..=*NODE_PORTS.end()).chain(*NODE_PORTS.start()..first);
    ports.find(|port| !taken.contains(port))
}
