//! Services in the pod network: names by a DNS server, and ports by a proxy, on a thread of their own.
//!
//! ```text
//! pod ── bridge ── network namespace of Services: DNS server's address, ClusterIPs ── proxy ── bridge ── pod behind the Service
//!                  host ports of Services (sockets of the host's namespace) ──────────┘
//! ```
//!
//! The namespace is a neighbour of the pods on the bridge, so this works without privileges, packet rules or packet forwarding on
//! the host, uses no address or port of the host, and ends with the process. Connections have the namespace's address as their
//! source, so that a pod also reaches itself through a Service.
//!
//! Reading order: `table` ◆, `zone` ◆, `message` ◆ and `choice` ◆ decide; `dns`, `streams` and `datagrams` serve; `client`
//! selects the client.

mod choice;
pub(crate) mod client;
mod datagrams;
mod dns;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod message;
mod streams;
pub(crate) mod table;
#[cfg(test)]
mod tests;
mod zone;

use std::{
    collections::BTreeMap,
    io,
    net::Ipv4Addr,
    os::fd::OwnedFd,
    sync::Arc,
    thread::{self, JoinHandle},
};

use network::Slots;
use nix::{
    sched::{CloneFlags, setns},
    sys::resource::{Resource, getrlimit},
};
use tokio::{
    net::{TcpListener, UdpSocket},
    runtime::{Builder, Handle},
    sync::{mpsc, oneshot, watch},
};

use table::{Backends, Frontend, Table, Transport};
use zone::Zone;

/// The slots that the clients of all Services share. A proxied connection and a DNS connection with a query have two sockets
/// each; a flow of datagrams and a query have one each.
#[derive(Clone)]
struct Pools {
    connections: Slots,
    flows: Slots,
    queries: Slots,
    query_connections: Slots,
}

impl Pools {
    /// Pools that leave half of the file descriptors to the daemon.
    fn below(descriptors: u64) -> Self {
        let pool =
            |name, part: u64, most: u64| Slots::new(name, (descriptors / part).min(most) as usize);
        Self {
            connections: pool("TCP of Services", 6, 8192),
            flows: pool("UDP of Services", 16, 4096),
            queries: pool("DNS queries for names outside", 32, 512),
            query_connections: pool("DNS connections", 32, 512),
        }
    }
}

/// The parts of a table that are served.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// The served ports of the host.
    pub(crate) host_ports: Vec<Frontend>,
    /// The parts that are not served, as sentences.
    pub(crate) problems: Vec<String>,
}

/// The handle of the serving thread. Dropping it ends the thread and all connections.
#[derive(Debug)]
pub(crate) struct Services {
    tables: Option<mpsc::Sender<(Table, oneshot::Sender<Applied>)>>,
    thread: Option<JoinHandle<()>>,
}

impl Services {
    /// Starts the thread in the namespace, with a DNS server at `address`. `host` runs tasks in the host's network.
    pub(crate) async fn start(netns: OwnedFd, address: Ipv4Addr, host: Handle) -> io::Result<Self> {
        let (tables, receiver) = mpsc::channel(1);
        let (started, ready) = oneshot::channel();
        let thread = thread::Builder::new().name("services".to_owned());
        let thread = thread.spawn(move || {
            let entered = setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from);
            drop(netns);
            // All sockets of this runtime are made on this thread, in the namespace.
            let runtime = entered.and_then(|()| Builder::new_current_thread().enable_all().build());
            match runtime {
                Ok(runtime) => runtime.block_on(serve(address, host, receiver, started)),
                Err(error) => drop(started.send(Err(error))),
            }
        })?;
        let services = Self { tables: Some(tables), thread: Some(thread) };
        match ready.await {
            Ok(started) => started.map(|()| services),
            Err(_) => Err(io::Error::other("the thread ended")),
        }
    }

    /// Replaces the table.
    pub(crate) async fn apply(&self, table: Table) -> Applied {
        let (done, applied) = oneshot::channel();
        if let Some(tables) = &self.tables
            && tables.send((table, done)).await.is_ok()
            && let Ok(applied) = applied.await
        {
            return applied;
        }
        Applied {
            problems: vec!["the thread that serves Services has ended".to_owned()],
            ..Applied::default()
        }
    }

    /// Ends the thread. Blocks until it has ended.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.tables.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves Services panicked");
        }
    }
}

impl Drop for Services {
    fn drop(&mut self) {
        self.end();
    }
}

async fn serve(
    address: Ipv4Addr,
    host: Handle,
    mut tables: mpsc::Receiver<(Table, oneshot::Sender<Applied>)>,
    started: oneshot::Sender<io::Result<()>>,
) {
    let (zone, zones) = watch::channel(Arc::default());
    let (descriptors, _) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let pools = Pools::below(descriptors);
    let dns = dns::serve(address, zones, host.clone(), &pools).await;
    let failed = dns.is_err();
    if started.send(dns).is_err() || failed {
        return;
    }
    let mut ports = Ports { host, running: BTreeMap::new(), pools };
    while let Some((table, done)) = tables.recv().await {
        zone.send_replace(Arc::new(Zone::new(&table)));
        let problems = ports.apply(table).await;
        let _ = done.send(Applied { host_ports: ports.of_host(), problems });
    }
}

/// The served ports.
struct Ports {
    host: Handle,
    running: BTreeMap<Frontend, Running>,
    pools: Pools,
}

/// A served port.
struct Running {
    backends: watch::Sender<Backends>,
    task: tokio::task::JoinHandle<()>,
}

impl Ports {
    /// Serves exactly the ports that have backends. The kernel refuses connections to the others.
    async fn apply(&mut self, table: Table) -> Vec<String> {
        let balancers = table.balancers.into_iter();
        let mut wanted: BTreeMap<Frontend, Backends> = balancers
            .filter(|balancer| !balancer.backends.list.is_empty())
            .map(|balancer| (balancer.frontend, balancer.backends))
            .collect();
        let running = std::mem::take(&mut self.running);
        for (frontend, port) in running {
            match wanted.remove(&frontend) {
                Some(backends) => {
                    port.backends.send_if_modified(|now| {
                        let changed = *now != backends;
                        *now = backends;
                        changed
                    });
                    self.running.insert(frontend, port);
                }
                None => {
                    drop(port.backends);
                    // After this its socket is closed.
                    let _ = port.task.await;
                }
            }
        }
        let mut problems = Vec::new();
        for (frontend, backends) in wanted {
            match self.open(frontend, backends).await {
                Ok(port) => drop(self.running.insert(frontend, port)),
                Err(error) => problems.push(problem(frontend, &error)),
            }
        }
        problems
    }

    /// The served ports of the host.
    fn of_host(&self) -> Vec<Frontend> {
        let frontends = self.running.keys().copied();
        frontends.filter(|frontend| frontend.address.is_none()).collect()
    }

    async fn open(&self, frontend: Frontend, backends: Backends) -> io::Result<Running> {
        let (backends, receiver) = watch::channel(backends);
        let task = match frontend.transport {
            Transport::Tcp => {
                let listener = match frontend.address {
                    Some(address) => TcpListener::bind((address, frontend.port)).await?,
                    None => TcpListener::from_std(self.host_listener(frontend.port).await?)?,
                };
                tasks::spawn(streams::serve(listener, receiver, self.pools.connections.clone()))
            }
            Transport::Udp => {
                let socket = match frontend.address {
                    Some(address) => UdpSocket::bind((address, frontend.port)).await?,
                    None => UdpSocket::from_std(self.host_socket(frontend.port).await?)?,
                };
                tasks::spawn(datagrams::serve(socket, receiver, self.pools.flows.clone()))
            }
        };
        Ok(Running { backends, task })
    }

    /// A listening socket of the host's network, made by a task there.
    async fn host_listener(&self, port: u16) -> io::Result<std::net::TcpListener> {
        let bound = self.host.spawn(tasks::boxed(async move {
            let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
            listener.set_nonblocking(true).map(|()| listener)
        }));
        bound.await.map_err(io::Error::other)?
    }

    async fn host_socket(&self, port: u16) -> io::Result<std::net::UdpSocket> {
        let bound = self.host.spawn(tasks::boxed(async move {
            let socket = std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port))?;
            socket.set_nonblocking(true).map(|()| socket)
        }));
        bound.await.map_err(io::Error::other)?
    }
}

fn problem(frontend: Frontend, error: &io::Error) -> String {
    let kind = error.kind();
    if kind == io::ErrorKind::AddrInUse {
        format!("{frontend} is in use by another program: choose another port")
    } else if kind == io::ErrorKind::PermissionDenied {
        format!(
            "{frontend} is below those that an ordinary user may listen on: choose a higher one"
        )
    } else {
        format!("{frontend} is not served: {error}")
    }
}
