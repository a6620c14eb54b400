//! `crib.services.v1.Services`: Services in the pod network, for as long as a client's stream is open.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use cri::services::{self as wire, services_server::Services as Service};
use network::Lease;
use tokio::{runtime::Handle, sync::mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use crate::{
    runtime::{Network, Runtime, blocking},
    services::{
        Services,
        client::ActiveClient,
        table::{Backends, Balancer, Frontend, Name, Table, Transport},
    },
};

/// Limit on the addresses of one client.
const ADDRESSES: u32 = 1024;
/// Limit on the addresses outside the pod network of one client.
const OUTSIDE: usize = 16_384;
/// The service over one runtime.
pub(crate) struct ServicesServer {
    runtime: Runtime,
}

impl ServicesServer {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Self { runtime }
    }
}

type Answers = mpsc::Sender<Result<wire::ServeResponse, Status>>;

#[tonic::async_trait]
impl Service for ServicesServer {
    type ServeStream = ReceiverStream<Result<wire::ServeResponse, Status>>;

    async fn serve(
        &self,
        request: Request<Streaming<wire::ServeRequest>>,
    ) -> Result<Response<Self::ServeStream>, Status> {
        let active = self.runtime.services.begin().await.ok_or_else(|| {
            Status::failed_precondition(
                "another client's Services are served: end that client first",
            )
        })?;
        let (answers, responses) = mpsc::channel(1);
        let (runtime, requests) = (self.runtime.clone(), request.into_inner());
        // Tracked, so that the addresses are released before the daemon closes the bridge.
        self.runtime.tasks.spawn(tasks::boxed(async move {
            if let Err(status) = converse(&runtime, requests, &answers, active).await {
                let _ = answers.send(Err(status)).await;
            }
        }));
        Ok(Response::new(ReceiverStream::new(responses)))
    }
}

/// Serves one client to the end of its stream.
async fn converse(
    runtime: &Runtime,
    mut requests: Streaming<wire::ServeRequest>,
    answers: &Answers,
    mut active: ActiveClient,
) -> Result<(), Status> {
    let Some(first) = next(runtime, &mut requests, answers, &mut active).await? else {
        return Ok(());
    };
    if first.addresses > ADDRESSES || first.table.is_some() {
        return Err(Status::invalid_argument(format!(
            "the first request leases addresses, at most {ADDRESSES}, and has no table"
        )));
    }
    let network = runtime.network.clone();
    let mut lease = blocking(move || network.lease_services(first.addresses as usize)).await?;
    let started = match lease.netns.try_clone() {
        Ok(netns) => Services::start(netns, lease.address, Handle::current()).await,
        Err(error) => Err(error),
    };
    let served = match started {
        Ok(services) => {
            tracing::info!(address = %lease.address, "Services are served");
            let served =
                serve_tables(runtime, &services, &mut lease, &mut requests, answers, &mut active)
                    .await;
            blocking(move || services.stop()).await;
            served
        }
        Err(error) => Err(Status::internal(format!("failed to serve Services: {error}"))),
    };
    let network: Arc<Network> = runtime.network.clone();
    let released = blocking(move || network.release_services(lease)).await;
    tracing::info!("Services are withdrawn");
    served.and(released.map_err(Status::from))
}

async fn serve_tables(
    runtime: &Runtime,
    services: &Services,
    lease: &mut Lease,
    requests: &mut Streaming<wire::ServeRequest>,
    answers: &Answers,
    active: &mut ActiveClient,
) -> Result<(), Status> {
    let mut response = wire::ServeResponse {
        dns_server: lease.address.to_string(),
        addresses: texts(&lease.addresses),
        ..wire::ServeResponse::default()
    };
    loop {
        if answers.send(Ok(response)).await.is_err() {
            return Ok(());
        }
        let Some(request) = next(runtime, requests, answers, active).await? else {
            return Ok(());
        };
        response = wire::ServeResponse::default();
        if request.addresses > 0 {
            match extend(runtime, lease, request.addresses)? {
                Ok(addresses) => response.addresses = texts(&addresses),
                Err(status) => response.problems.push(status.message().to_owned()),
            }
        }
        if let Some(wanted) = request.table {
            let addresses = outside(&wanted)?;
            // This only sends requests to the kernel, which answers immediately.
            let served =
                tokio::task::block_in_place(|| runtime.network.serve_outside(lease, &addresses));
            if let Err(error) = served {
                response.problems.push(Status::from(error).message().to_owned());
            }
            let applied = services.apply(table(wanted)?).await;
            response.problems.extend(applied.problems);
            response.host_ports = applied.host_ports.into_iter().map(host_port).collect();
        }
    }
}

/// Adds addresses to the lease. The outer error ends the stream.
fn extend(
    runtime: &Runtime,
    lease: &mut Lease,
    addresses: u32,
) -> Result<Result<Vec<Ipv4Addr>, Status>, Status> {
    let addresses = addresses as usize;
    if lease.addresses.len() + addresses > ADDRESSES as usize {
        return Err(Status::invalid_argument(format!(
            "a client leases at most {ADDRESSES} addresses"
        )));
    }
    // This only sends requests to the kernel, which answers immediately.
    let network = &runtime.network;
    let extended = tokio::task::block_in_place(|| network.extend_services(lease, addresses));
    Ok(extended.map_err(Status::from))
}

/// The addresses in a table outside the pod network.
fn outside(table: &wire::Table) -> Result<BTreeSet<Ipv4Addr>, Status> {
    if table.addresses.len() > OUTSIDE {
        return Err(Status::invalid_argument(format!(
            "a table has at most {OUTSIDE} addresses outside the pod network"
        )));
    }
    table.addresses.iter().map(|text| address(text)).collect()
}

fn texts(addresses: &[Ipv4Addr]) -> Vec<String> {
    addresses.iter().map(Ipv4Addr::to_string).collect()
}

fn host_port(frontend: Frontend) -> wire::HostPort {
    let transport = match frontend.transport {
        Transport::Tcp => wire::Transport::Tcp,
        Transport::Udp => wire::Transport::Udp,
    };
    wire::HostPort { port: frontend.port.into(), transport: transport.into() }
}

/// The client's next request; `None` when its stream has ended, or the daemon ends.
async fn next(
    runtime: &Runtime,
    requests: &mut Streaming<wire::ServeRequest>,
    answers: &Answers,
    active: &mut ActiveClient,
) -> Result<Option<wire::ServeRequest>, Status> {
    tokio::select! {
        request = requests.message() => request,
        () = active.must_end() => Err(Status::aborted("the pod network is being reconfigured: retry")),
        () = runtime.stopping.cancelled() => Ok(None),
        () = answers.closed() => Ok(None),
    }
}

fn address(text: &str) -> Result<Ipv4Addr, Status> {
    text.parse().map_err(|_| Status::invalid_argument(format!("{text:?} is not an IPv4 address")))
}

fn port(number: u32) -> Result<u16, Status> {
    let port = u16::try_from(number).ok().filter(|port| *port > 0);
    port.ok_or_else(|| Status::invalid_argument(format!("{number} is not a port")))
}

fn table(table: wire::Table) -> Result<Table, Status> {
    let names = table.names.into_iter().map(name);
    let balancers = table.balancers.into_iter().map(balancer);
    Ok(Table {
        zone: table.zone,
        names: names.collect::<Result<_, _>>()?,
        balancers: balancers.collect::<Result<_, _>>()?,
    })
}

fn name(name: wire::Name) -> Result<Name, Status> {
    let addresses = name.addresses.iter().map(|text| address(text));
    let servers = name.servers.into_iter();
    let servers = servers.map(|server| Ok::<_, Status>((server.target, port(server.port)?)));
    Ok(Name {
        name: name.name.to_ascii_lowercase(),
        addresses: addresses.collect::<Result<_, _>>()?,
        alias: Some(name.alias).filter(|alias| !alias.is_empty()),
        servers: servers.collect::<Result<_, _>>()?,
        pointer: Some(name.pointer).filter(|pointer| !pointer.is_empty()),
    })
}

fn balancer(balancer: wire::Balancer) -> Result<Balancer, Status> {
    let transport = match balancer.transport() {
        wire::Transport::Tcp => Transport::Tcp,
        wire::Transport::Udp => Transport::Udp,
    };
    let frontend = match balancer.address.as_str() {
        "" => None,
        text => Some(address(text)?),
    };
    let backends = balancer.backends.iter().map(|backend| {
        Ok::<_, Status>(SocketAddrV4::new(address(&backend.address)?, port(backend.port)?))
    });
    Ok(Balancer {
        frontend: Frontend { transport, address: frontend, port: port(balancer.port)? },
        backends: Backends {
            list: backends.collect::<Result<_, _>>()?,
            affinity: (balancer.affinity_seconds > 0)
                .then(|| Duration::from_secs(balancer.affinity_seconds.into())),
        },
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn balancer_of(address: &str, port: u32, backend: (&str, u32)) -> wire::Table {
        wire::Table {
            balancers: vec![wire::Balancer {
                address: address.to_owned(),
                port,
                backends: vec![wire::Backend { address: backend.0.to_owned(), port: backend.1 }],
                ..wire::Balancer::default()
            }],
            ..wire::Table::default()
        }
    }

    #[rstest]
    #[case::sound("10.0.0.1", 80, ("10.0.0.2", 8080), None)]
    #[case::host_port("", 30_080, ("10.0.0.2", 8080), None)]
    #[case::no_address("web", 80, ("10.0.0.2", 8080), Some("\"web\" is not an IPv4 address"))]
    #[case::ipv6_backend("10.0.0.1", 80, ("fd00::2", 80), Some("\"fd00::2\" is not an IPv4 address"))]
    #[case::port_0("10.0.0.1", 0, ("10.0.0.2", 8080), Some("0 is not a port"))]
    #[case::large_port("10.0.0.1", 80, ("10.0.0.2", 65_536), Some("65536 is not a port"))]
    fn invalid_tables_are_rejected(
        #[case] address: &str,
        #[case] port: u32,
        #[case] backend: (&str, u32),
        #[case] problem: Option<&str>,
    ) {
        let read = table(balancer_of(address, port, backend));
        assert_eq!(read.err().as_ref().map(Status::message), problem);
    }
}
