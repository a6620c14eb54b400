//! The pods' DNS server: answers queries for the names of the table, and forwards others to the host's name servers.

use std::{io, net::Ipv4Addr, sync::Arc, time::Duration};

use network::{Slots, resolver};
use tokio::{
    net::{TcpListener, TcpStream, UdpSocket},
    runtime::Handle,
    sync::watch,
    time::timeout,
};
use tokio_util::task::AbortOnDropHandle;

use super::{
    Pools,
    message::{self, Data, Outcome, Query, QueryError, Record},
    streams::accept,
    zone::{Lookup, Zone},
};

const PORT: u16 = 53;
/// How long a connection may be silent.
const SILENCE: Duration = Duration::from_secs(10);
/// The longest message.
const MESSAGE: usize = 65_535;

/// Listens, and serves until the task's runtime ends.
pub(super) async fn serve(
    address: Ipv4Addr,
    zone: watch::Receiver<Arc<Zone>>,
    host: Handle,
    pools: &Pools,
) -> io::Result<()> {
    let udp = UdpSocket::bind((address, PORT)).await?;
    let tcp = TcpListener::bind((address, PORT)).await?;
    let server = Server { zone, host };
    tasks::spawn(datagrams(server.clone(), Arc::new(udp), pools.queries.clone()));
    tasks::spawn(streams(server, tcp, pools.query_connections.clone()));
    Ok(())
}

#[derive(Clone)]
struct Server {
    zone: watch::Receiver<Arc<Zone>>,
    /// Spawns tasks of the daemon's runtime, in the host's network.
    host: Handle,
}

/// The next step for a query.
enum NextStep {
    Nothing,
    /// Send this answer.
    Answer(Vec<u8>),
    /// Resolve a name outside the table: the query's own, or the target of an alias.
    Outside(Query, Vec<Record>, String),
}

async fn datagrams(server: Server, socket: Arc<UdpSocket>, queries: Slots) {
    let mut buffer = vec![0; MESSAGE];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer).await else {
            continue;
        };
        match server.look_up(&buffer[..length], false) {
            NextStep::Nothing => {}
            // Names of the cluster take no slot. An answer that the socket does not accept is lost, as any datagram may be.
            NextStep::Answer(answer) => drop(socket.try_send_to(&answer, client)),
            NextStep::Outside(query, alias, target) => {
                // A client repeats a dropped query.
                let Some(slot) = queries.take(client.ip()) else {
                    continue;
                };
                let (bytes, server) = (buffer[..length].to_vec(), server.clone());
                let socket = socket.clone();
                tasks::spawn(async move {
                    tokio::select! {
                        answer = server.ask(bytes, query, alias, &target, false) => {
                            let _ = socket.send_to(&answer, client).await;
                        }
                        () = slot.closed() => {}
                    }
                });
            }
        }
    }
}

async fn streams(server: Server, listener: TcpListener, connections: Slots) {
    loop {
        let (stream, client) = accept(&listener).await;
        let Some(slot) = connections.take(client.ip()) else {
            continue;
        };
        let server = server.clone();
        tasks::spawn(async move {
            tokio::select! {
                _ = server.converse(stream, || slot.record_response()) => {}
                () = slot.closed() => {}
            }
        });
    }
}

impl Server {
    async fn converse(&self, mut stream: TcpStream, answered: impl Fn()) -> io::Result<()> {
        loop {
            let bytes = timeout(SILENCE, resolver::read_message(&mut stream)).await??;
            let answer = match self.look_up(&bytes, true) {
                NextStep::Nothing => return Ok(()),
                NextStep::Answer(answer) => answer,
                NextStep::Outside(query, alias, target) => {
                    self.ask(bytes, query, alias, &target, true).await
                }
            };
            timeout(SILENCE, resolver::write_message(&mut stream, &answer)).await??;
            answered();
        }
    }

    fn look_up(&self, bytes: &[u8], over_tcp: bool) -> NextStep {
        let query = match message::query(bytes) {
            Ok(query) => query,
            Err(QueryError::Ignore) => return NextStep::Nothing,
            Err(QueryError::Refuse(id, outcome)) => {
                return NextStep::Answer(message::refusal(id, outcome));
            }
        };
        let zone = self.zone.borrow().clone();
        let (outcome, records) = match zone.lookup(&query.name, query.kind, query.id.into()) {
            Lookup::Found(records) => (Outcome::NoError, records),
            Lookup::Missing => (Outcome::NameError, Vec::new()),
            Lookup::Elsewhere(alias, target) => return NextStep::Outside(query, alias, target),
        };
        NextStep::Answer(query.answer(outcome, &records, limit(&query, over_tcp)))
    }

    /// Resolves a query, or the target of an alias, with the host's name servers.
    async fn ask(
        &self,
        bytes: Vec<u8>,
        query: Query,
        alias: Vec<Record>,
        target: &str,
        over_tcp: bool,
    ) -> Vec<u8> {
        let (outcome, records) = if alias.is_empty() {
            match self.resolve(bytes, over_tcp).await {
                Some(answer) => return answer,
                None => (Outcome::ServerFailure, alias),
            }
        } else {
            self.follow(&query, alias, target).await
        };
        query.answer(outcome, &records, limit(&query, over_tcp))
    }

    /// The records of an alias together with its target's, because a pod's resolver does not query the target itself.
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

    /// Forwards a query to the host's name servers, in a task in the host's network.
    async fn resolve(&self, query: Vec<u8>, over_tcp: bool) -> Option<Vec<u8>> {
        let asked = self.host.spawn(tasks::boxed(resolver::resolve(query, over_tcp)));
        AbortOnDropHandle::new(asked).await.ok().flatten()
    }
}

fn limit(query: &Query, over_tcp: bool) -> usize {
    if over_tcp { MESSAGE } else { query.limit() }
}
