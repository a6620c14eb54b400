//! Services of a run: leases their addresses from the runtime, and sends it their names and ports, over the stream of
//! `proto/services.proto`.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use agent::objects::ObjectMap;
use agent::services::{self, Assigner, ServiceNetwork, ServiceTable};
use compact::Set;
use cri::services as wire;
use crib_base::service_stream::{self, Opened, Tables, reason, transport, wire_table};
use harness::client::Client;
use tokio::sync::{mpsc, oneshot, watch};
use tonic::{Status, Streaming};

use crate::node_ports;

/// The addresses and ports of a run's Services, and a channel to lease more.
pub(super) struct Services {
    assigner: Assigner,
    /// `Err`: why the runtime does not serve Services.
    leases: Result<mpsc::Sender<Lease>, String>,
    /// The messages about served ports that were printed.
    printed: Set<String>,
    refusal_reported: bool,
}

/// Names and ports that the runtime serves.
pub(super) struct Served {
    /// The agent publishes its tables here. The runtime stops serving them when this is dropped.
    pub(super) network: Arc<dyn ServiceNetwork>,
    /// The address of the pods' DNS server.
    pub(super) dns: String,
    /// Messages about node ports that other programs use.
    pub(super) taken: Vec<String>,
    /// Messages about node ports that are served, and about problems.
    pub(super) notes: mpsc::UnboundedReceiver<String>,
}

/// A request for more addresses.
struct Lease {
    count: u32,
    answer: oneshot::Sender<Result<Vec<Ipv4Addr>, String>>,
}

impl Services {
    /// Opens the stream, and assigns addresses and node ports to the Services in `objects`.
    pub(super) async fn open(
        socket: &Path,
        objects: &mut ObjectMap,
        seed: u64,
    ) -> (Self, Option<Served>) {
        let mut opened = Self::closed(seed);
        let needed = opened.assigner.missing_addresses(objects);
        let (requests, answers, first) = match connect(socket, count(needed)).await {
            Ok(connected) => connected,
            Err(status) => {
                opened.leases = Err(reason(&status));
                return (opened, None);
            }
        };
        opened.assigner.add_addresses(addresses(&first));
        opened.assigner.assign(objects);
        let taken = node_ports::taken(objects);
        let tables = Tables::default();
        let receiver = tables.subscribe();
        let (sender, notes) = mpsc::unbounded_channel();
        let (leases, leased) = mpsc::channel(1);
        opened.leases = Ok(leases);
        let reported = taken.iter().cloned().collect();
        tasks::spawn(follow(receiver, leased, requests, answers, (sender, reported)));
        let served = Served { taken, network: Arc::new(tables), dns: first.dns_server, notes };
        (opened, Some(served))
    }

    /// Does not open the stream, because no pod needs it.
    pub(super) fn closed(seed: u64) -> Self {
        Self {
            assigner: Assigner::new(seed),
            leases: Err("no pod uses the cluster's DNS server".to_owned()),
            printed: Set::new(),
            refusal_reported: false,
        }
    }

    /// A message why Services are not served; returned once.
    pub(super) fn refusal(&mut self, objects: &ObjectMap) -> Option<String> {
        let reason = self.leases.as_ref().err()?;
        if objects.all_services().is_empty() || std::mem::replace(&mut self.refusal_reported, true)
        {
            return None;
        }
        Some(format!("pods cannot reach Services: {reason}"))
    }

    /// Assigns addresses and node ports to the Services of changed manifests. Returns a message about a problem.
    pub(super) async fn assign(&mut self, objects: &mut ObjectMap) -> Option<String> {
        let Ok(leases) = &self.leases else {
            return self.refusal(objects);
        };
        let missing = self.assigner.missing_addresses(objects);
        let mut problem = None;
        if missing > 0 {
            match lease(leases, count(missing)).await {
                Ok(addresses) => self.assigner.add_addresses(addresses),
                Err(reason) => problem = Some(format!("new Services get no addresses: {reason}")),
            }
        }
        self.assigner.assign(objects);
        problem
    }

    /// Records a printed message.
    pub(super) fn remember(&mut self, note: &str) {
        self.printed.insert(note.to_owned());
    }

    /// Messages about node ports that have no ready pod yet.
    pub(super) fn node_ports_to_come(&self, objects: &ObjectMap) -> Vec<String> {
        if self.leases.is_err() {
            return Vec::new();
        }
        let services = objects.all_services();
        let ports = services.iter().flat_map(|service| services::node_ports(service));
        let ports = ports.filter(|(name, _, port)| !self.printed.contains(&reached(name, *port)));
        let later = |(name, _, port)| {
            format!("{name} will be reachable at 127.0.0.1:{port} when one of its pods is ready")
        };
        ports.map(later).collect()
    }
}

fn reached(name: &str, port: u16) -> String {
    format!("{name} is reachable at 127.0.0.1:{port}")
}

fn count(addresses: usize) -> u32 {
    u32::try_from(addresses).unwrap_or(u32::MAX)
}

fn addresses(answer: &wire::ServeResponse) -> Vec<Ipv4Addr> {
    let addresses = answer.addresses.iter();
    addresses.filter_map(|address| address.parse().ok()).collect()
}

async fn lease(leases: &mpsc::Sender<Lease>, count: u32) -> Result<Vec<Ipv4Addr>, String> {
    let (answer, leased) = oneshot::channel();
    // If the stream has ended, the receiver is dropped.
    let _ = leases.send(Lease { count, answer }).await;
    let ended = |_| Err("Services are no longer served".to_owned());
    leased.await.unwrap_or_else(ended)
}

async fn connect(socket: &Path, addresses: u32) -> Result<Opened, Status> {
    service_stream::open(&Client::new(socket), addresses).await
}

/// Sends each table to the runtime, and leases addresses. Reports each problem once, unless an earlier message contains it, and
/// each node port when it is first served.
async fn follow(
    mut tables: watch::Receiver<ServiceTable>,
    mut leases: mpsc::Receiver<Lease>,
    requests: mpsc::Sender<wire::ServeRequest>,
    mut answers: Streaming<wire::ServeResponse>,
    (notes, mut reported_problems): (mpsc::UnboundedSender<String>, Set<String>),
) {
    let mut reported_ports = Set::new();
    loop {
        // Both arms are cancel-safe: a table stays unseen, and a lease stays in the channel.
        let leased = tokio::select! {
            changed = tables.changed() => match changed {
                Ok(()) => None,
                Err(_) => return,
            },
            Some(lease) = leases.recv() => Some(lease),
        };
        let table = leased.is_none().then(|| tables.borrow_and_update().clone());
        let request = wire::ServeRequest {
            addresses: leased.as_ref().map_or(0, |lease| lease.count),
            table: table.as_ref().map(wire_table),
        };
        let _ = requests.send(request).await;
        let answer = match answers.message().await {
            Ok(Some(answer)) => answer,
            Ok(None) => return,
            Err(status) => {
                let reason = status.message();
                let _ = notes.send(format!("warning: Services are no longer served: {reason}"));
                return;
            }
        };
        if let Some(lease) = leased {
            let addresses = addresses(&answer);
            let _ = lease.answer.send(match addresses.len() == lease.count as usize {
                true => Ok(addresses),
                false => Err(answer.problems.join(", ")),
            });
            continue;
        }
        for problem in answer.problems {
            let is_reported = reported_problems.iter().any(|reported| reported.ends_with(&problem));
            if !is_reported && reported_problems.insert(problem.clone()) {
                let _ = notes.send(format!("warning: {problem}"));
            }
        }
        let (all, served) = host_ports(&table.unwrap_or_default(), &answer.host_ports);
        // A Service that is removed and created again is reported again.
        reported_ports.retain(|port| all.contains(port));
        for port in served {
            if reported_ports.insert(port.clone()) {
                let _ = notes.send(port);
            }
        }
    }
}

/// Messages about the host ports of the table: all ports, and the served ones.
fn host_ports(table: &ServiceTable, served: &[wire::HostPort]) -> (Set<String>, Set<String>) {
    let of_host = table.balancers.iter();
    let of_host = of_host.filter(|balancer| balancer.address.is_none());
    let is_served = |balancer: &&services::Balancer| {
        let port =
            wire::HostPort { port: balancer.port.into(), transport: transport(balancer.transport) };
        served.contains(&port)
    };
    let words = |balancer: &services::Balancer| reached(&balancer.name, balancer.port);
    let (all, served) = (of_host.clone(), of_host.filter(is_served));
    (all.map(words).collect(), served.map(words).collect())
}

#[cfg(test)]
mod tests {
    use agent::services::Transport;

    use super::*;

    #[test]
    fn node_ports_are_reported_once_served() {
        let balancer = |name: &str, address, port, transport| services::Balancer {
            name: name.to_owned(),
            address,
            port,
            transport,
            backends: Vec::new(),
            affinity: None,
        };
        let table = ServiceTable {
            balancers: vec![
                balancer("a", Some([10, 0, 0, 1].into()), 30_100, Transport::Tcp),
                balancer("b", None, 30_100, Transport::Tcp),
                balancer("c", None, 30_100, Transport::Udp),
            ],
            ..ServiceTable::default()
        };
        let served = wire::HostPort { port: 30_100, transport: wire::Transport::Udp.into() };
        let (all, served) = host_ports(&table, &[served]);
        let (b, c) = (reached("b", 30_100), reached("c", 30_100));
        assert_eq!(c, "c is reachable at 127.0.0.1:30100");
        assert_eq!(served, [c.clone()].into());
        assert_eq!(all, [b, c].into());
    }
}
