//! The stream with which a runtime serves Services in the pod network (`proto/services.proto`): opening it, and sending tables.
//!
//! `crib run` leases its addresses over the stream. `crib agent` uses the cluster's addresses, and reopens the stream when it ends.

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

/// The first and the longest wait before a stream is reopened.
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(10));
/// The wait if the runtime does not serve Services: a different runtime may be started on the socket.
const UNSUPPORTED: Duration = Duration::from_secs(60);

/// A stream: the sender of requests, the responses, and the first response.
pub type Opened =
    (mpsc::Sender<wire::ServeRequest>, Streaming<wire::ServeResponse>, wire::ServeResponse);

/// Opens a stream with this number of leased addresses.
///
/// # Errors
/// Fails if the runtime does not serve Services, or cannot at present.
pub async fn open(client: &Client, addresses: u32) -> Result<Opened, Status> {
    let (requests, stream) = mpsc::channel(1);
    let first = wire::ServeRequest { addresses, table: None };
    // The channel has capacity for one request.
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

/// Why a runtime does not serve Services, as text.
#[must_use]
pub fn reason(status: &Status) -> String {
    if status.code() == Code::Unimplemented {
        "the CRI has no call for Services, and this runtime has no extension for them".to_owned()
    } else {
        status.message().to_owned()
    }
}

/// A protocol on the wire.
#[must_use]
pub fn transport(transport: Transport) -> i32 {
    match transport {
        Transport::Tcp => wire::Transport::Tcp.into(),
        Transport::Udp => wire::Transport::Udp.into(),
    }
}

/// A table on the wire.
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
    /// A receiver of the tables that are published after this call.
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

/// The state of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The runtime serves the latest table.
    Served,
    /// The runtime does not implement the extension.
    Unsupported,
    /// The runtime serves no table, for this reason, until the stream is reopened.
    Failed(String),
}

/// Sends each table to the runtime at a socket until `tables` is closed, and reports the state of the stream. Opens the stream when
/// the first table is published.
pub async fn serve(
    socket: PathBuf,
    mut tables: watch::Receiver<ServiceTable>,
    mut report: impl FnMut(Outcome),
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
            report(Outcome::Served);
        };
        let Err(status) = follow(&client, &mut tables, served).await else {
            return;
        };
        if status.code() == Code::Unimplemented {
            report(Outcome::Unsupported);
            sleep(UNSUPPORTED).await;
            continue;
        }
        let why = reason(&status);
        tracing::warn!(error = why, "the runtime does not serve Services; will retry");
        report(Outcome::Failed(why));
        sleep(wait).await;
        wait = wait.saturating_mul(2).min(RETRY.1);
    }
}

/// Sends each table over one stream until `tables` is closed. Logs each problem of a port once.
async fn follow(
    client: &Client,
    tables: &mut watch::Receiver<ServiceTable>,
    served: &mut impl FnMut(),
) -> Result<(), Status> {
    let (requests, mut answers, _) = open(client, 0).await?;
    let mut reported = Set::new();
    loop {
        tokio::select! {
            changed = tables.changed() => if changed.is_err() {
                return Ok(());
            },
            // The runtime sends nothing without a request.
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
        for problem in problems.difference(&reported) {
            tracing::warn!(problem, "some of the cluster's Services are not served");
        }
        reported = problems;
        served();
    }
}
