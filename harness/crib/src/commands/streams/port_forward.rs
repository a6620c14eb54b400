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
use crate::client::find::in_runs::{ObjectName, RunPod, pod_object};
use crate::commands::prelude::*;
use crate::objects::workload_pods::{Best, RemotePort, pod_port, service_port, target_port};
use crate::stream::TransportArgs;

/// Forward local ports to a pod until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib port-forward web 8080:80
  crib port-forward web 5432 :80
  crib port-forward deploy/web 8080:80
  crib port-forward svc/web 8080:http

The argument 5432 means 5432:5432, and :80 forwards a free local port to port 80. `crib port-forward` prints a line for each \
local address that it listens on, and a line for each connection. REMOTE is the number of a port or, in a pod of `crib run`, the name of a container port. \
For svc/web, REMOTE is a port of the Service. Each new connection to an object such as deploy/web goes to one of its running \
pods, so forwarding continues when pods are replaced."))]
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

/// A local port (`None`: the number of the remote port, 0: any free port), and the port of the pod or Service.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pair {
    local: Option<u16>,
    remote: RemotePort,
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
                "invalid port {text:?}: expected [LOCAL:]REMOTE with ports from 1 to 65535, or a port name as REMOTE"
            )),
        };
        let remote = |text: &str| match is_port_name(text) {
            true => Ok(RemotePort::Name(text.to_owned())),
            false => port(text).map(RemotePort::Number),
        };
        match text.split_once(':') {
            None => Ok(Self { local: None, remote: remote(text)? }),
            Some(("" | "0", number)) => Ok(Self { local: Some(0), remote: remote(number)? }),
            Some((local, number)) => {
                Ok(Self { local: Some(port(local)?), remote: remote(number)? })
            }
        }
    }
}

/// Whether a text can be the name of a port: lower-case letters, digits and hyphens, with at least one letter.
fn is_port_name(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_lowercase())
        && text.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-'))
}

/// Forwards the ports.
pub(crate) async fn run(args: &PortForwardArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    if ObjectName::parse(&args.pod).is_some() {
        return to_object(Arc::new(all), args).await;
    }
    let text = find::in_namespace(&args.pod, args.namespace.as_deref());
    let (cri, pod) = find::pod(&all, &text).await?;
    let remote = numbers(cri, &pod, &args.ports)?;
    let url = url(cri, &pod.id, &remote).await?;
    let mut ports = streaming::port_forward(&url, args.streaming.transport()).await?;
    let pairs = args.ports.iter().zip(remote);
    let pairs = pairs.map(|(pair, number)| (pair.local.unwrap_or(number), number, number));
    let pairs = pairs.collect();
    let (_listeners, mut connections) = listen(args, pairs).await?;
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

/// The numbers of a pod's ports. The runtime does not know the names of ports.
fn numbers(cri: &Cri, pod: &v1::PodSandbox, ports: &[Pair]) -> Result<Vec<u16>, CallError> {
    let has_name = ports.iter().any(|pair| matches!(pair.remote, RemotePort::Name(_)));
    let uid = pod.metadata.as_ref().map_or("", |of| of.uid.as_str());
    let object = if has_name { pod_object(cri, uid)? } else { None };
    let number = |pair: &Pair| match (&pair.remote, &object) {
        (port, Some(object)) => pod_port(object, port).map_err(CallError::Usage),
        (RemotePort::Number(number), None) => Ok(*number),
        (RemotePort::Name(name), None) => Err(CallError::Usage(format!(
            "port name {name:?} is not known, because the pod is not one of `crib run`: give the port's number"
        ))),
    };
    ports.iter().map(number).collect()
}

/// The target of connections to an object.
#[derive(Clone, Debug)]
struct Destination {
    object: String,
    namespace: Option<String>,
    transport: Transport,
}

/// A port of an object.
struct ResolvedPort<'a> {
    pod: RunPod<'a>,
    /// The number of the object's port.
    number: u16,
    /// The port of the pod.
    target: u16,
}

/// Forwards to the pods of an object: each connection goes to the pod that is best at that time.
async fn to_object(all: Arc<Vec<Cri>>, args: &PortForwardArgs) -> Result<Exit, CallError> {
    let destination = Destination {
        object: args.pod.clone(),
        namespace: args.namespace.clone(),
        transport: args.streaming.transport(),
    };
    // Reports errors before any port is opened.
    let mut pairs = Vec::new();
    for pair in &args.ports {
        let ResolvedPort { number, target, .. } = destination.resolve(&all, &pair.remote)?;
        pairs.push((pair.local.unwrap_or(number), target, pair.remote.clone()));
    }
    let (_listeners, mut connections) = listen(args, pairs).await?;
    let mut running = JoinSet::new();
    loop {
        // Both arms are cancel-safe.
        tokio::select! {
            Some((socket, port)) = connections.recv() => {
                let (all, destination) = (all.clone(), destination.clone());
                running.spawn(tasks::boxed(async move {
                    if let Err(error) = destination.carry(&all, socket, &port).await {
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
    fn resolve<'a>(
        &self,
        all: &'a [Cri],
        port: &RemotePort,
    ) -> Result<ResolvedPort<'a>, CallError> {
        let missing = || CallError::NotFound { what: "object", name: self.object.clone() };
        let name = ObjectName::parse(&self.object).ok_or_else(missing)?;
        let found = name.pods(all, self.namespace.as_deref(), Best::ToConnect)?;
        let pod = name.best_of(found.pods)?;
        let numbers = match found.object.get("kind").is_some_and(|kind| kind == "Service") {
            true => service_port(&found.object, port)
                .and_then(|number| Ok((number, target_port(&found.object, &pod.object, number)?))),
            false => pod_port(&pod.object, port).map(|number| (number, number)),
        };
        let (number, target) = numbers.map_err(CallError::Usage)?;
        Ok(ResolvedPort { pod, number, target })
    }

    async fn carry(
        &self,
        all: &[Cri],
        socket: TcpStream,
        port: &RemotePort,
    ) -> Result<(), CallError> {
        let ResolvedPort { pod, target, .. } = self.resolve(all, port)?;
        let sandbox = find::sandbox_of(all, &pod).await?;
        let url = url(pod.cri, &sandbox.id, &[target]).await?;
        let ports = streaming::port_forward(&url, self.transport).await?;
        match ports.carry(target, socket).await {
            Ok(()) => Ok(()),
            Err(ForwardError::Refused(complaint)) => Err(CallError::Unmet(complaint)),
            Err(ForwardError::Lost) => Err(CallError::Lost),
        }
    }
}

/// Listens on local ports, and prints each with the port of the pod. The third member of a pair is passed on with each
/// connection. Dropping the set closes the listeners.
async fn listen<P: Clone + Send + 'static>(
    args: &PortForwardArgs,
    pairs: Vec<(u16, u16, P)>,
) -> Result<(JoinSet<()>, mpsc::Receiver<(TcpStream, P)>), CallError> {
    let mut listeners = JoinSet::new();
    let (accepted, connections) = mpsc::channel(16);
    for (local, number, remote) in pairs {
        for place in &args.address {
            for listener in place.listen(local).await? {
                let address = listener.local_addr().map_err(|source| CallError::Io {
                    doing: format!("listen for port {number}"),
                    source,
                })?;
                print(&format!("Forwarding from {address} -> {number}"))?;
                let (remote, accepted) = (remote.clone(), accepted.clone());
                listeners.spawn(tasks::boxed(accept(listener, address.port(), remote, accepted)));
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

/// Prints and passes on each connection to a local port.
async fn accept<P: Clone + Send + 'static>(
    listener: TcpListener,
    local: u16,
    port: P,
    accepted: mpsc::Sender<(TcpStream, P)>,
) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                // The connection continues even if nothing reads the output.
                let _ = print(&format!("Handling connection for {local}"));
                if accepted.send((socket, port.clone())).await.is_err() {
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
    #[case("80", Some("same 80"))]
    #[case("8080:80", Some("8080 80"))]
    #[case(":80", Some("0 80"))]
    #[case("0:80", Some("0 80"))]
    #[case("8080:80/tcp", Some("8080 80"))]
    #[case("http", Some("same http"))]
    #[case(":http", Some("0 http"))]
    #[case("8080:web-2/TCP", Some("8080 web-2"))]
    #[case("8080:80/udp", None)]
    #[case("0", None)]
    #[case("8080:0", None)]
    #[case("65536", None)]
    #[case("a:80", None)]
    #[case("1:2:3", None)]
    #[case("1:a:b", None)]
    #[case("80:HTTP", None)]
    #[case("80:-", None)]
    #[case("", None)]
    fn port_pairs_are_parsed(#[case] text: &str, #[case] expected: Option<&str>) {
        let found = text.parse::<Pair>().ok();
        let found = found.map(|pair| {
            let local = pair.local.map_or_else(|| "same".to_owned(), |local| local.to_string());
            format!("{local} {}", pair.remote)
        });
        assert_eq!(found.as_deref(), expected);
    }
}
