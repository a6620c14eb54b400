//! Flags of `crib agent` for the unauthenticated HTTP ports: a kubelet's healthz and read-only ports.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/server/server.go ListenAndServeKubeletReadOnlyServer; one request per connection.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use agent::local_node::kubelet_config::{KubeletConfiguration, count};
use clap::Args;
use http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use kubelet_server::{NodeApi, OtherPorts};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};

/// The timeout of a client.
const WAIT_LIMIT: Duration = Duration::from_secs(30);
/// The maximum number of concurrent clients. A new one replaces the oldest: any user of the machine, or any pod if the port is
/// not on a loopback address, can keep connections open.
const MOST_CLIENTS: usize = 64;
/// The default healthz port of a kubelet.
const HEALTHZ_PORT: u16 = 10248;
/// The interval at which a kubelet retries to bind the healthz port.
///
/// Source: Kubernetes 1.36, cmd/kubelet/app/server.go run.
const RETRY_INTERVAL: Duration = Duration::from_secs(5);

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Health")]
pub(crate) struct StatusPortArgs {
    /// Port of /healthz, which fails if the sync loop hangs, or if the runtime has not been ready for 5 minutes; 0: disabled
    /// [default: 0; with --kubeconfig 10248, or a free port if 10248 is in use]
    #[arg(long, value_name = "PORT")]
    healthz_port: Option<u16>,
    /// Port that serves /healthz, /pods, /stats/summary and /metrics without authentication; 0: disabled [default: 0]
    #[arg(long, value_name = "PORT")]
    read_only_port: Option<u16>,
    /// Address of --healthz-port and --read-only-port [default: 127.0.0.1]
    #[arg(long, value_name = "IP")]
    healthz_bind_address: Option<IpAddr>,
}

/// The bound sockets, and what each serves.
#[derive(Debug)]
pub(super) struct Sockets {
    bound: Vec<(TcpListener, ServedPaths)>,
    /// The healthz address that is not bound yet.
    healthz: Option<SocketAddr>,
    ports: OtherPorts,
}

/// What a socket serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServedPaths {
    Health,
    Everything,
}

impl StatusPortArgs {
    /// Binds the ports of the flags, or else of the file. `joins`: the agent joins a cluster. `as_kubelet`: a healthz port that is
    /// in use is retried in the background, and the read-only port is bound to the server's address.
    pub(super) async fn bind(
        &self,
        file: &KubeletConfiguration,
        joins: bool,
        as_kubelet: bool,
    ) -> Result<Sockets, String> {
        let in_file = file.healthz_bind_address.as_deref();
        let in_file = in_file.map(|text| {
            text.parse()
                .map_err(|_| format!("--config: healthzBindAddress: {text:?} is not an IP address"))
        });
        let address = match self.healthz_bind_address {
            Some(address) => address,
            None => in_file.transpose()?.unwrap_or(Ipv4Addr::LOCALHOST.into()),
        };
        let ports = OtherPorts { healthz: 0, read_only: 0, address };
        let mut sockets = Sockets { bound: Vec::new(), healthz: None, ports };
        let given = self.healthz_port.or(count(file.healthz_port));
        let healthz = given.unwrap_or(if joins { HEALTHZ_PORT } else { 0 });
        let listener = match bind("--healthz-port", address, healthz).await {
            Err(_) if as_kubelet => {
                sockets.healthz = Some(SocketAddr::new(address, healthz));
                None
            }
            // The default port may be replaced, because several agents may share a machine.
            Err((_, ErrorKind::AddrInUse)) if given.is_none() => {
                let listener = bind_any("--healthz-port", address).await?;
                let port = port_of(&listener);
                tracing::warn!(%address, port, taken = healthz, "healthz port is in use; using another port");
                Some(listener)
            }
            bound => bound.map_err(|(problem, kind)| advised(problem, kind, "--healthz-port"))?,
        };
        let later = sockets.healthz.map_or(0, |at| at.port());
        sockets.ports.healthz = listener.as_ref().map_or(later, port_of);
        sockets.bound.extend(listener.map(|listener| (listener, ServedPaths::Health)));
        let read_only = self.read_only_port.or(count(file.read_only_port)).unwrap_or_default();
        let read_only = if file.enable_server == Some(false) { 0 } else { read_only };
        let of_server = file.address.as_deref().filter(|_| as_kubelet);
        let of_server = of_server.and_then(|text| text.parse().ok());
        let address = of_server.unwrap_or(address);
        let listener = bind("--read-only-port", address, read_only).await;
        let listener =
            listener.map_err(|(problem, kind)| advised(problem, kind, "--read-only-port"))?;
        sockets.ports.read_only = read_only;
        sockets.bound.extend(listener.map(|listener| (listener, ServedPaths::Everything)));
        Ok(sockets)
    }
}

/// Binds a port; 0 disables it.
async fn bind(
    flag: &str,
    address: IpAddr,
    port: u16,
) -> Result<Option<TcpListener>, (String, ErrorKind)> {
    if port == 0 {
        return Ok(None);
    }
    let at = SocketAddr::new(address, port);
    let bound = TcpListener::bind(at).await;
    let failed =
        |error: std::io::Error| (format!("{flag}: failed to bind {at}: {error}"), error.kind());
    bound.map(Some).map_err(failed)
}

/// Binds a free port.
async fn bind_any(flag: &str, address: IpAddr) -> Result<TcpListener, String> {
    let bound = TcpListener::bind(SocketAddr::new(address, 0)).await;
    bound.map_err(|error| format!("{flag}: failed to bind a free port of {address}: {error}"))
}

/// Retries until the address can be bound.
async fn bind_in_time(at: SocketAddr) -> TcpListener {
    loop {
        match TcpListener::bind(at).await {
            Ok(listener) => return listener,
            Err(error) => tracing::warn!(
                %error, address = %at,
                "failed to bind the healthz port; will retry: set another --healthz-port, or 0 to disable it"
            ),
        }
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}

/// The port of a bound socket.
fn port_of(listener: &TcpListener) -> u16 {
    listener.local_addr().map_or(0, |address| address.port())
}

/// Adds a remedy if the port is in use.
fn advised(problem: String, kind: ErrorKind, flag: &str) -> String {
    if kind == ErrorKind::AddrInUse {
        format!("{problem}: set another {flag}, or 0 to disable it")
    } else {
        problem
    }
}

impl Sockets {
    /// The served ports.
    pub(super) fn ports(&self) -> OtherPorts {
        self.ports
    }

    /// Serves clients. Never returns.
    pub(super) async fn serve(self, node_api: Arc<NodeApi>) {
        let mut servers = JoinSet::new();
        for (listener, served) in self.bound {
            servers.spawn(tasks::boxed(serve(listener, served, Arc::clone(&node_api))));
        }
        if let Some(at) = self.healthz {
            servers.spawn(tasks::boxed(async move {
                serve(bind_in_time(at).await, ServedPaths::Health, node_api).await;
            }));
        }
        while servers.join_next().await.is_some() {}
        std::future::pending().await
    }
}

async fn serve(listener: TcpListener, served: ServedPaths, node_api: Arc<NodeApi>) {
    let serve_one = |stream| {
        let client = client(stream, served, Arc::clone(&node_api));
        tasks::boxed(async move {
            let _ = tokio::time::timeout(WAIT_LIMIT, client).await;
        })
    };
    serve_each(listener, MOST_CLIENTS, serve_one).await;
}

/// Serves clients, at most this many at a time.
async fn serve_each(
    listener: TcpListener,
    most: usize,
    serve_one: impl Fn(TcpStream) -> tasks::Task<()>,
) {
    let mut clients = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    oldest_first.retain(|client| !client.is_finished());
                    if oldest_first.len() >= most && let Some(oldest) = oldest_first.pop_front() {
                        oldest.abort();
                    }
                    oldest_first.push_back(clients.spawn(serve_one(stream)));
                }
                Err(error) => {
                    tracing::warn!(%error, "failed to accept a client");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
            },
            Some(_) = clients.join_next() => {}
        }
    }
}

async fn client(stream: TcpStream, served: ServedPaths, node_api: Arc<NodeApi>) {
    let answer = service_fn(|request: Request<Incoming>| {
        let node_api = Arc::clone(&node_api);
        async move {
            let only_health = served == ServedPaths::Health;
            let answer = node_api.answer(request.method(), request.uri(), only_health).await;
            Ok::<_, Infallible>(answer)
        }
    });
    // The client may have disconnected.
    let _ = http1::Builder::new()
        .keep_alive(false)
        .serve_connection(TokioIo::new(stream), answer)
        .await;
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::{Instant, timeout};

    use super::*;

    #[tokio::test]
    async fn clients_without_a_request_make_room_for_new_ones() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let echo = |mut stream: TcpStream| {
            tasks::boxed(async move {
                let (mut read, mut write) = stream.split();
                let _ = tokio::io::copy(&mut read, &mut write).await;
            })
        };
        let mut serving = JoinSet::new();
        serving.spawn(serve_each(listener, 2, echo));
        let mut idle = Vec::new();
        for _ in 0..2 {
            idle.push(TcpStream::connect(address).await.unwrap());
        }
        let mut client = TcpStream::connect(address).await.unwrap();
        client.write_all(b"x").await.unwrap();
        let mut answer = [0];
        let answered = timeout(Duration::from_secs(60), client.read_exact(&mut answer)).await;
        answered.unwrap().unwrap();
        assert_eq!(answer, *b"x");
    }

    #[tokio::test(start_paused = true)]
    async fn port_that_is_in_use_is_tried_again_every_five_seconds() {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, harness::ports::free().unwrap()));
        let other = std::net::TcpListener::bind(at).unwrap();
        let began = Instant::now();
        let binding = bind_in_time(at);
        tokio::pin!(binding);
        assert!(timeout(Duration::from_secs(12), &mut binding).await.is_err());
        drop(other);
        assert_eq!(port_of(&binding.await), at.port());
        assert_eq!(began.elapsed().as_secs(), 15);
    }
}
