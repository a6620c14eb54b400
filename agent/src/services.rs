//! Services: their addresses, their names, and the ready pods behind their ports.
//!
//! The agent knows the Services and the ready pods; the runtime owns the pod network, and the CRI has calls for neither. Therefore
//! the table of names and ports goes through [`ServiceNetwork`], which crib's own runtime serves on its socket
//! (`proto/services.proto`). Other runtimes do not have it.
//!
//! Reading order: `assign` ◆ assigns addresses and ports as an API server does, `endpoints` ◆ finds the pods of a Service, `plan` ◆
//! computes the table, `publish` follows pods. `proxied` ◆ computes the table of an API server's Services, without names.

mod assign;
mod endpoints;
mod plan;
mod proxied;
#[cfg(test)]
mod tests;
mod warnings;

use std::net::{Ipv4Addr, SocketAddrV4};
use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use tokio::sync::watch;

use crate::objects::ObjectStore;
use crate::reporting::report::Reports;

pub use assign::{Assigner, NodePorts, has_node_ports};
pub use endpoints::{fixed_addresses, selects};
pub use plan::{node_ports, plan};
pub use proxied::{ProxyLocation, plan_proxied};
pub use warnings::warnings;

/// Serves names and ports in the pod network.
pub trait ServiceNetwork: Send + Sync {
    /// Replaces the table, now or soon. Only the latest table is used.
    fn publish(&self, table: ServiceTable);
}

/// The table of all Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceTable {
    /// The zone of the names: other names in it do not exist.
    pub zone: String,
    /// The names, in order.
    pub names: Vec<ServiceName>,
    /// The ports.
    pub balancers: Vec<Balancer>,
    /// The ClusterIPs outside the pod network, which pods must reach too.
    pub addresses: Vec<Ipv4Addr>,
}

/// The DNS records of one name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceName {
    /// The full name, in lower case and without a final dot.
    pub name: String,
    /// A records.
    pub addresses: Vec<Ipv4Addr>,
    /// The target of the CNAME record.
    pub alias: Option<String>,
    /// SRV records: names and ports.
    pub servers: Vec<(String, u16)>,
    /// The target of the PTR record.
    pub pointer: Option<String>,
}

/// A port whose connections are forwarded to pods. Without backends, connections are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Balancer {
    /// The Service and its port, for messages.
    pub name: String,
    /// The ClusterIP; `None`: all addresses of the node (a NodePort).
    pub address: Option<Ipv4Addr>,
    /// The port.
    pub port: u16,
    /// Its protocol.
    pub transport: Transport,
    /// The ports of ready pods.
    pub backends: Vec<SocketAddrV4>,
    /// How long a client is forwarded to the same pod.
    pub affinity: Option<Duration>,
}

/// A supported protocol of Services.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl Transport {
    /// The protocol of a ServicePort or ContainerPort; `None` for SCTP.
    fn named(protocol: Option<&str>) -> Option<Self> {
        match protocol.unwrap_or_default() {
            "" | "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
        }
    }
}

/// Publishes the table again when Services, pods or their readiness change, until the agent ends.
pub(crate) async fn publish(
    domain: String,
    objects: Arc<ObjectStore>,
    mut pods: watch::Receiver<Arc<[Pod]>>,
    mut reports: watch::Receiver<Arc<Reports>>,
    network: Arc<dyn ServiceNetwork>,
) {
    let mut changes = objects.changes();
    let mut published = None;
    loop {
        let table = {
            let (objects, pods) = (objects.current(), pods.borrow_and_update().clone());
            let reports = reports.borrow_and_update().clone();
            let (services, slices) = (objects.all_services(), objects.endpoint_slices());
            let services = services.iter().map(Arc::as_ref);
            plan(&domain, services, &pods, &slices, |uid| {
                reports.get(uid).map(|report| &*report.status)
            })
        };
        if published.as_ref() != Some(&table) {
            network.publish(table.clone());
            published = Some(table);
        }
        // All are cancel safe: a change stays unseen until the next iteration.
        let changed = tokio::select! {
            changed = pods.changed() => changed,
            changed = reports.changed() => changed,
            changed = changes.changed() => changed,
        };
        if changed.is_err() {
            return;
        }
    }
}
