//! Services of a run: their addresses from the runtime, and their names and ports to it, by the stream of `proto/services.proto`.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;

use agent::objects::{ObjectMap, Objects as _};
use agent::services::{self, ServiceNetwork, ServiceTable, Transport};
use cri::services as wire;
use harness::client::Client;
use k8s_openapi::api::core::v1::Service;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// Services that the runtime serves.
pub(super) struct Served {
    /// Where the agent publishes them. The runtime withdraws them when it is dropped.
    pub(super) network: Arc<dyn ServiceNetwork>,
    /// The address of the pods' DNS server.
    pub(super) dns: String,
    /// Where node ports are, in sentences.
    pub(super) notes: Vec<String>,
    /// What is found to go wrong later.
    pub(super) problems: mpsc::UnboundedReceiver<String>,
}

/// Opens the stream for the Services among `objects`, and gives them addresses and node ports. `None`: there are no Services.
///
/// # Errors
/// Why the runtime serves none, in a sentence.
pub(super) async fn open(
    socket: &Path,
    objects: &mut ObjectMap,
    seed: u64,
) -> Result<Option<Served>, String> {
    if objects.all_services().is_empty() {
        return Ok(None);
    }
    let needed = services::addresses_needed(objects);
    let opened = connect(socket, needed).await;
    let (requests, answers, first) = opened.map_err(|status| reason(&status))?;
    let addresses: Vec<Ipv4Addr> = first
        .addresses
        .iter()
        .filter_map(|address| address.parse().ok())
        .collect();
    if addresses.len() < needed {
        return Err("the runtime leased fewer addresses than were asked for".to_owned());
    }
    services::assign(objects, &addresses, seed);
    let services = objects.all_services();
    let node_ports = services.iter().flat_map(|service| node_ports(service));
    let (tables, receiver) = watch::channel(ServiceTable::default());
    let (sender, problems) = mpsc::unbounded_channel();
    tokio::spawn(follow(receiver, requests, answers, sender));
    Ok(Some(Served {
        network: Arc::new(Network(tables)),
        dns: first.dns_server,
        notes: node_ports.collect(),
        problems,
    }))
}

type Opened = (
    mpsc::Sender<wire::ServeRequest>,
    Streaming<wire::ServeResponse>,
    wire::ServeResponse,
);

async fn connect(socket: &Path, needed: usize) -> Result<Opened, Status> {
    let (requests, stream) = mpsc::channel(1);
    let first = wire::ServeRequest {
        addresses: u32::try_from(needed).unwrap_or(u32::MAX),
        table: None,
    };
    // There is room for one.
    let _ = requests.try_send(first);
    let mut client = Client::new(socket).services;
    let answers = client.serve(ReceiverStream::new(stream)).await?;
    let mut answers = answers.into_inner();
    let ended = || Status::unavailable("the runtime ended the stream");
    let first = answers.message().await?.ok_or_else(ended)?;
    Ok((requests, answers, first))
}

fn reason(status: &Status) -> String {
    if status.code() == Code::Unimplemented {
        "the CRI has no call for Services, and this runtime no extension for them".to_owned()
    } else {
        status.message().to_owned()
    }
}

/// Where the node ports of a Service are, in sentences.
fn node_ports(service: &Service) -> Vec<String> {
    let metadata = &service.metadata;
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = metadata.name.as_deref().unwrap_or_default();
    let ports = service
        .spec
        .iter()
        .flat_map(|spec| spec.ports.iter().flatten());
    let ports = ports.filter_map(|port| Some((port.port, port.node_port?)));
    let sentence = |(port, node_port)| {
        format!("service {namespace}/{name}: port {port} is reached at 127.0.0.1:{node_port}")
    };
    ports.map(sentence).collect()
}

/// The sender of tables.
struct Network(watch::Sender<ServiceTable>);

impl ServiceNetwork for Network {
    fn publish(&self, table: ServiceTable) {
        self.0.send_replace(table);
    }
}

/// Sends each table to the runtime, and tells each of its problems once.
async fn follow(
    mut tables: watch::Receiver<ServiceTable>,
    requests: mpsc::Sender<wire::ServeRequest>,
    mut answers: Streaming<wire::ServeResponse>,
    problems: mpsc::UnboundedSender<String>,
) {
    let mut told = BTreeSet::new();
    while tables.changed().await.is_ok() {
        let table = Some(wire_table(&tables.borrow_and_update()));
        let request = wire::ServeRequest {
            addresses: 0,
            table,
        };
        let _ = requests.send(request).await;
        match answers.message().await {
            Ok(Some(answer)) => {
                for problem in answer.problems {
                    if told.insert(problem.clone()) {
                        let _ = problems.send(format!("warning: {problem}"));
                    }
                }
            }
            Ok(None) => return,
            Err(status) => {
                let reason = status.message();
                let _ = problems.send(format!(
                    "warning: Services are not served any more: {reason}"
                ));
                return;
            }
        }
    }
}

fn wire_table(table: &ServiceTable) -> wire::Table {
    let names = table.names.iter().map(|name| wire::Name {
        name: name.name.clone(),
        addresses: name.addresses.iter().map(Ipv4Addr::to_string).collect(),
        alias: name.alias.clone().unwrap_or_default(),
        servers: name
            .servers
            .iter()
            .map(|(target, port)| wire::Server {
                target: target.clone(),
                port: (*port).into(),
            })
            .collect(),
        pointer: name.pointer.clone().unwrap_or_default(),
    });
    let balancers = table.balancers.iter().map(|balancer| wire::Balancer {
        address: balancer
            .address
            .map_or_else(String::new, |ip| ip.to_string()),
        port: balancer.port.into(),
        transport: match balancer.transport {
            Transport::Tcp => wire::Transport::Tcp.into(),
            Transport::Udp => wire::Transport::Udp.into(),
        },
        backends: balancer
            .backends
            .iter()
            .map(|backend| wire::Backend {
                address: backend.ip().to_string(),
                port: backend.port().into(),
            })
            .collect(),
        affinity_seconds: balancer
            .affinity
            .map_or(0, |time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
    });
    wire::Table {
        zone: table.zone.clone(),
        names: names.collect(),
        balancers: balancers.collect(),
    }
}
