//! The stream of a runtime that serves Services in the pod network (`proto/services.proto`): how it is opened, and its tables.
//!
//! A run leases addresses from it. The node of a cluster has those of the cluster, and opens it again when the runtime has been away.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use agent::services::{ServiceNetwork, ServiceTable, Transport};
use compact::Set;
use cri::services as wire;
use harness::client::Client;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};

/// The waits before a stream is opened again: the first, and the longest.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The wait for a runtime that does not serve Services: another one may take its place.
const UNSUPPORTED: Duration = Duration::from_secs(60);

/// A stream: where requests go, the answers, and the first one.
pub type Opened =
    (mpsc::Sender<wire::ServeRequest>, Streaming<wire::ServeResponse>, wire::ServeResponse);

/// Opens a stream with so many leased addresses.
///
/// # Errors
/// When the runtime does not serve Services, or not now.
pub async fn open(client: &Client, addresses: u32) -> Result<Opened, Status> {
    let (requests, stream) = mpsc::channel(1);
    let first = wire::ServeRequest { addresses, table: None };
    // There is room for one.
    let _ = requests.try_send(first);
    let answers = client.services.clone().serve(ReceiverStream::new(stream)).await?;
    let mut answers = answers.into_inner();
    let ended = || Status::unavailable("the runtime ended the stream");
    let first = answers.message().await?.ok_or_else(ended)?;
    if first.addresses.len() < addresses as usize {
        let fewer = "the runtime leased fewer addresses than requested";
        return Err(Status::internal(fewer));
    }
    Ok((requests, answers, first))
}

/// Why a runtime serves no Services, in words.
#[must_use]
pub fn reason(status: &Status) -> String {
    if status.code() == Code::Unimplemented {
        "the CRI has no call for Services, and this runtime has no extension for them".to_owned()
    } else {
        status.message().to_owned()
    }
}

/// A protocol, as the stream has it.
#[must_use]
pub fn transport(transport: Transport) -> i32 {
    match transport {
        Transport::Tcp => wire::Transport::Tcp.into(),
        Transport::Udp => wire::Transport::Udp.into(),
    }
}

/// A table, as the stream has it.
#[must_use]
pub fn wire_table(table: &ServiceTable) -> wire::Table {
    let names = table.names.iter().map(|name| wire::Name {
        name: name.name.clone(),
        addresses: texts(&name.addresses),
        alias: name.alias.clone().unwrap_or_default(),
        servers: name
            .servers
            .iter()
            .map(|(target, port)| wire::Server { target: target.clone(), port: (*port).into() })
            .collect(),
        pointer: name.pointer.clone().unwrap_or_default(),
    });
    let balancers = table.balancers.iter().map(|balancer| wire::Balancer {
        address: balancer.address.map_or_else(String::new, |ip| ip.to_string()),
        port: balancer.port.into(),
        transport: transport(balancer.transport),
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
        addresses: texts(&table.addresses),
    }
}

fn texts(addresses: &[Ipv4Addr]) -> Vec<String> {
    addresses.iter().map(Ipv4Addr::to_string).collect()
}

/// The sender of tables.
#[derive(Clone, Debug, Default)]
pub struct Tables(watch::Sender<ServiceTable>);

impl Tables {
    /// The tables that are published from now on.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<ServiceTable> {
        self.0.subscribe()
    }
}

impl ServiceNetwork for Tables {
    fn publish(&self, table: ServiceTable) {
        self.0.send_replace(table);
    }
}

/// What has become of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The latest table is served.
    Served,
    /// The runtime has no such extension.
    Unsupported,
    /// None is served, for this reason, until the stream is opened again.
    Failed(String),
}

/// Has the runtime at a socket serve the tables, for ever, and says what becomes of them. Nothing is opened before the first one.
pub async fn serve(
    socket: PathBuf,
    mut tables: watch::Receiver<ServiceTable>,
    mut tell: impl FnMut(Outcome),
) {
    if tables.changed().await.is_err() {
        return;
    }
    let client = Client::new(&socket);
    let mut wait = RETRY.0;
    loop {
        tables.mark_changed();
        let served = &mut || {
            wait = RETRY.0;
            tell(Outcome::Served);
        };
        let Err(status) = follow(&client, &mut tables, served).await else {
            return;
        };
        if status.code() == Code::Unimplemented {
            tell(Outcome::Unsupported);
            sleep(UNSUPPORTED).await;
            continue;
        }
        let why = reason(&status);
        tracing::warn!(error = why, "the runtime does not serve Services; will retry");
        tell(Outcome::Failed(why));
        sleep(wait).await;
        wait = wait.saturating_mul(2).min(RETRY.1);
    }
}

/// Sends each table over one stream, as long as tables come. Problems of single ports are logged once.
async fn follow(
    client: &Client,
    tables: &mut watch::Receiver<ServiceTable>,
    served: &mut impl FnMut(),
) -> Result<(), Status> {
    let (requests, mut answers, _) = open(client, 0).await?;
    let mut told = Set::new();
    loop {
        tokio::select! {
            changed = tables.changed() => if changed.is_err() {
                return Ok(());
            },
            // The runtime says nothing unless it is asked.
            ended = answers.message() => {
                let ended = ended?;
                let what = ended.map_or("the runtime ended the stream", |_| "unexpected response");
                return Err(Status::unavailable(what));
            }
        }
        let table = wire_table(&tables.borrow_and_update());
        let _ = requests.send(wire::ServeRequest { addresses: 0, table: Some(table) }).await;
        let ended = || Status::unavailable("the runtime ended the stream");
        let answer = answers.message().await?.ok_or_else(ended)?;
        let problems: Set<String> = answer.problems.into_iter().collect();
        for problem in problems.difference(&told) {
            tracing::warn!(problem, "some of the cluster's Services are not served");
        }
        told = problems;
        served();
    }
}
