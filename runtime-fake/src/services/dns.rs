//! The pods' DNS server: answers for the names of the table, and passes other queries on to the host's name servers.

use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    runtime::Handle,
    sync::{Semaphore, watch},
    time::timeout,
};

use super::{
    message::{self, Data, Outcome, Query, Record, Reject},
    resolver,
    zone::{Lookup, Zone},
};

const PORT: u16 = 53;
/// The number of queries in progress, and of connections. A client asks again when its query is dropped.
const QUERIES: usize = 512;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest message.
const MESSAGE: usize = 65_535;

/// Listens, and serves until the task's runtime ends.
pub(super) async fn serve(
    address: Ipv4Addr,
    zone: watch::Receiver<Arc<Zone>>,
    host: Handle,
) -> io::Result<()> {
    let udp = UdpSocket::bind((address, PORT)).await?;
    let tcp = TcpListener::bind((address, PORT)).await?;
    let server = Server { zone, host };
    tokio::spawn(datagrams(server.clone(), Arc::new(udp)));
    tokio::spawn(streams(server, tcp));
    Ok(())
}

#[derive(Clone)]
struct Server {
    zone: watch::Receiver<Arc<Zone>>,
    /// The daemon's own tasks, which are in the host's network.
    host: Handle,
}

async fn datagrams(server: Server, socket: Arc<UdpSocket>) {
    let slots = Arc::new(Semaphore::new(QUERIES));
    let mut buffer = vec![0; MESSAGE];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        let Ok(slot) = slots.clone().try_acquire_owned() else {
            continue;
        };
        let query = buffer[..length].to_vec();
        let (server, socket) = (server.clone(), socket.clone());
        tokio::spawn(async move {
            if let Some(answer) = server.answer(query, false).await {
                let _ = socket.send_to(&answer, client).await;
            }
            drop(slot);
        });
    }
}

async fn streams(server: Server, listener: TcpListener) {
    let slots = Arc::new(Semaphore::new(QUERIES));
    while let Ok(slot) = slots.clone().acquire_owned().await {
        let stream = super::streams::accept(&listener).await;
        let server = server.clone();
        tokio::spawn(async move {
            let _ = server.converse(stream).await;
            drop(slot);
        });
    }
}

impl Server {
    async fn converse(&self, mut stream: TcpStream) -> io::Result<()> {
        loop {
            let query = timeout(SILENCE, resolver::read_message(&mut stream)).await??;
            let Some(answer) = self.answer(query, true).await else {
                return Ok(());
            };
            timeout(SILENCE, resolver::write_message(&mut stream, &answer)).await??;
        }
    }

    async fn answer(&self, bytes: Vec<u8>, over_tcp: bool) -> Option<Vec<u8>> {
        let query = match message::query(&bytes) {
            Ok(query) => query,
            Err(Reject::Ignore) => return None,
            Err(Reject::Refuse(id, outcome)) => return Some(message::refusal(id, outcome)),
        };
        let zone = self.zone.borrow().clone();
        let limit = if over_tcp { MESSAGE } else { query.limit() };
        let (outcome, records) = match zone.lookup(&query.name, query.kind, query.id.into()) {
            Lookup::Found(records) => (Outcome::NoError, records),
            Lookup::Missing => (Outcome::NameError, Vec::new()),
            Lookup::Elsewhere(alias, _) if alias.is_empty() => {
                let answer = self.resolve(bytes, over_tcp).await;
                return Some(match answer {
                    Some(answer) => answer,
                    None => query.answer(Outcome::ServerFailure, &[], limit),
                });
            }
            Lookup::Elsewhere(alias, target) => self.follow(&query, alias, &target).await,
        };
        Some(query.answer(outcome, &records, limit))
    }

    /// The records of an alias with those of its target, which a resolver in a pod does not ask for.
    async fn follow(
        &self,
        query: &Query,
        mut records: Vec<Record>,
        target: &str,
    ) -> (Outcome, Vec<Record>) {
        let Some(ask) = message::ask(query.id, target, query.kind) else {
            return (Outcome::ServerFailure, records);
        };
        let answer = self.resolve(ask, true).await;
        match answer.as_deref().and_then(message::answers) {
            Some((0, found)) => {
                let wanted = |record: &Record| match &record.data {
                    Data::Raw(kind, ..) => *kind == query.kind || *kind == message::kind::CNAME,
                    Data::A(_) | Data::Cname(_) | Data::Ptr(_) | Data::Srv { .. } => false,
                };
                records.extend(found.into_iter().filter(wanted));
                (Outcome::NoError, records)
            }
            Some((3, _)) => (Outcome::NameError, records),
            Some(_) | None => (Outcome::ServerFailure, records),
        }
    }

    /// Asks the host's name servers, on a task in the host's network.
    async fn resolve(&self, query: Vec<u8>, over_tcp: bool) -> Option<Vec<u8>> {
        let asked = self.host.spawn(resolver::resolve(query, over_tcp));
        asked.await.ok().flatten()
    }
}
