//! `crib port-forward`: forwards local ports to a pod, or to an object, for which each connection selects the best pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use crib_base::report::chain;

use harness::streaming::{self, ForwardError, Transport};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::client::completion;
use crate::client::find::in_runs::{ObjectName, RunPod};
use crate::commands::prelude::*;
use crate::objects::workload_pods::{Best, target_port};
use crate::stream::TransportArgs;

/// Forward local ports to a pod until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib port-forward web 8080:80
  crib port-forward web 5432 :80
  crib port-forward deploy/web 8080:80
  crib port-forward svc/web 8080:80

In the second example, 5432 means 5432:5432, and :80 forwards a free local port to port 80. Prints a line for each \
local address as soon as crib listens on it. For svc/web, REMOTE is a port of the Service. For objects such as deploy/web, \
crib selects a running pod for each new connection, so forwarding continues when pods are replaced."))]
pub(crate) struct PortForwardArgs {
    /// Pod: id, id prefix, name or pod/web; or an object that has pods: deploy/web, svc/web
    #[arg(add = completion::pods())]
    pod: String,
    /// Namespace of the pod [default: any]
    #[arg(short, long)]
    namespace: Option<String>,
    /// Ports to forward
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    ports: Vec<Pair>,
    /// Addresses to listen on; localhost is 127.0.0.1 and, if the host has IPv6, ::1
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', default_value = "localhost")]
    address: Vec<ListenAddress>,
    #[command(flatten)]
    streaming: TransportArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// An address to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ListenAddress {
    Localhost,
    Address(IpAddr),
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "localhost" => Ok(Self::Localhost),
            text => text.parse().map(Self::Address).map_err(|_| {
                format!("invalid address {text:?}: expected an IP address or localhost")
            }),
        }
    }
}

impl ListenAddress {
    /// Listens on a port; 0 selects a free port, the same for all of its addresses.
    async fn listen(self, port: u16) -> Result<Vec<TcpListener>, CallError> {
        let bind = async |address: IpAddr, port| {
            let address = SocketAddr::new(address, port);
            let listener = TcpListener::bind(address).await;
            listener
                .map_err(|source| CallError::Io { doing: format!("listen on {address}"), source })
        };
        let localhost = match self {
            Self::Address(address) => return Ok(vec![bind(address, port).await?]),
            Self::Localhost => bind(Ipv4Addr::LOCALHOST.into(), port).await?,
        };
        let port = localhost.local_addr().map_or(port, |local| local.port());
        // As in kubectl, one address is enough, because the host may have no IPv6.
        let other = bind(Ipv6Addr::LOCALHOST.into(), port).await.ok();
        Ok(std::iter::once(localhost).chain(other).collect())
    }
}

/// A local port (0: any free port), and the port in the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u16,
    remote: u16,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (text, protocol) = text.split_once('/').unwrap_or((text, "tcp"));
        if !protocol.eq_ignore_ascii_case("tcp") {
            return Err(format!(
                "{protocol} cannot be forwarded: the CRI's PortForward and kubectl support only TCP"
            ));
        }
        let port = |text: &str| match text.parse::<u16>() {
            Ok(port) if port > 0 => Ok(port),
            Ok(_) | Err(_) => Err(format!(
                "invalid port {text:?}: expected [LOCAL:]REMOTE with ports from 1 to 65535"
            )),
        };
        match text.split_once(':') {
            None => Ok(Self { local: port(text)?, remote: port(text)? }),
            Some(("" | "0", remote)) => Ok(Self { local: 0, remote: port(remote)? }),
            Some((local, remote)) => Ok(Self { local: port(local)?, remote: port(remote)? }),
        }
    }
}

/// Forwards the ports.
pub(crate) async fn run(args: &PortForwardArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    if ObjectName::parse(&args.pod).is_some() {
        return to_object(Arc::new(all), args).await;
    }
    let text = find::in_namespace(&args.pod, args.namespace.as_deref());
    let (cri, pod) = find::pod(&all, &text).await?;
    let remote: Vec<u16> = args.ports.iter().map(|pair| pair.remote).collect();
    let url = url(cri, &pod.id, &remote).await?;
    let mut ports = streaming::port_forward(&url, args.streaming.transport()).await?;
    let (_listeners, mut connections) = listen(args).await?;
    let mut running = JoinSet::new();
    loop {
        // All arms are cancel-safe.
        tokio::select! {
            Some((socket, port)) = connections.recv() => {
                let carried = ports.carry(port, socket);
                running.spawn(tasks::boxed(async move {
                    // A lost connection is reported below, once for all ports.
                    if let Err(ForwardError::Refused(complaint)) = carried.await {
                        print_stderr(&format!("port {port}: {complaint}"));
                    }
                }));
            }
            Some(_) = running.join_next() => {}
            () = ports.ended() => return Err(CallError::Lost),
        }
    }
}

/// The target of connections to an object.
#[derive(Clone, Debug)]
struct Destination {
    object: String,
    namespace: Option<String>,
    transport: Transport,
}

/// Forwards to the pods of an object: each connection goes to the pod that is best at that time.
async fn to_object(all: Arc<Vec<Cri>>, args: &PortForwardArgs) -> Result<Exit, CallError> {
    let destination = Destination {
        object: args.pod.clone(),
        namespace: args.namespace.clone(),
        transport: args.streaming.transport(),
    };
    // Reports errors before any port is opened.
    for pair in &args.ports {
        destination.resolve(&all, pair.remote)?;
    }
    let (_listeners, mut connections) = listen(args).await?;
    let mut running = JoinSet::new();
    loop {
        // Both arms are cancel-safe.
        tokio::select! {
            Some((socket, port)) = connections.recv() => {
                let (all, destination) = (all.clone(), destination.clone());
                running.spawn(tasks::boxed(async move {
                    if let Err(error) = destination.carry(&all, socket, port).await {
                        print_stderr(&format!("port {port}: {}", chain(&error)));
                    }
                }));
            }
            Some(_) = running.join_next() => {}
        }
    }
}

impl Destination {
    /// The best pod, and its port for a port of the object.
    fn resolve<'a>(&self, all: &'a [Cri], port: u16) -> Result<(RunPod<'a>, u16), CallError> {
        let missing = || CallError::NotFound { what: "object", name: self.object.clone() };
        let name = ObjectName::parse(&self.object).ok_or_else(missing)?;
        let found = name.pods(all, self.namespace.as_deref(), Best::ToConnect)?;
        let pod = name.best_of(found.pods)?;
        let port = match found.object.get("kind").is_some_and(|kind| kind == "Service") {
            true => target_port(&found.object, &pod.object, port).map_err(CallError::Usage)?,
            false => port,
        };
        Ok((pod, port))
    }

    async fn carry(&self, all: &[Cri], socket: TcpStream, port: u16) -> Result<(), CallError> {
        let (pod, port) = self.resolve(all, port)?;
        let sandbox = find::sandbox_of(all, &pod).await?;
        let url = url(pod.cri, &sandbox.id, &[port]).await?;
        let ports = streaming::port_forward(&url, self.transport).await?;
        match ports.carry(port, socket).await {
            Ok(()) => Ok(()),
            Err(ForwardError::Refused(complaint)) => Err(CallError::Unmet(complaint)),
            Err(ForwardError::Lost) => Err(CallError::Lost),
        }
    }
}

/// Listens on all ports, and prints each. Dropping the set closes the listeners.
async fn listen(
    args: &PortForwardArgs,
) -> Result<(JoinSet<()>, mpsc::Receiver<(TcpStream, u16)>), CallError> {
    let mut listeners = JoinSet::new();
    let (accepted, connections) = mpsc::channel(16);
    for pair in &args.ports {
        for place in &args.address {
            for listener in place.listen(pair.local).await? {
                let local = listener.local_addr().map_err(|source| CallError::Io {
                    doing: format!("listen for port {}", pair.remote),
                    source,
                })?;
                print(&format!("Forwarding from {local} -> {}", pair.remote))?;
                listeners.spawn(tasks::boxed(accept(listener, pair.remote, accepted.clone())));
            }
        }
    }
    Ok((listeners, connections))
}

async fn url(cri: &Cri, pod: &str, ports: &[u16]) -> Result<String, CallError> {
    let request = v1::PortForwardRequest {
        pod_sandbox_id: pod.to_owned(),
        port: ports.iter().map(|port| i32::from(*port)).collect(),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("PortForward", client.port_forward(request));
    Ok(answer.await?.into_inner().url)
}

/// Passes on each connection to a local port.
async fn accept(listener: TcpListener, port: u16, accepted: mpsc::Sender<(TcpStream, u16)>) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                if accepted.send((socket, port)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                print_stderr(&format!("failed to accept a connection: {error}"));
                // The process may be out of descriptors until other connections are closed.
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("80", Some((80, 80)))]
    #[case("8080:80", Some((8080, 80)))]
    #[case(":80", Some((0, 80)))]
    #[case("0:80", Some((0, 80)))]
    #[case("8080:80/tcp", Some((8080, 80)))]
    #[case("8080:80/udp", None)]
    #[case("0", None)]
    #[case("8080:0", None)]
    #[case("65536", None)]
    #[case("a:80", None)]
    #[case("1:2:3", None)]
    #[case("", None)]
    fn port_pairs_are_parsed(#[case] text: &str, #[case] expected: Option<(u16, u16)>) {
        let found = text.parse::<Pair>().ok();
        assert_eq!(found.map(|pair| (pair.local, pair.remote)), expected);
    }
}
