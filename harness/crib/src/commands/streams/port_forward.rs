//! `crib port-forward`: forwards local ports to a pod.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use harness::streaming::{self, ForwardError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::commands::prelude::*;
use crate::stream::TransportArgs;

/// Forward local ports to a pod until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = with_codes("\
Examples:
  crib port-forward web 8080:80
  crib port-forward web 5432 :80

5432 uses the same port on both sides; :80 takes a free local port. Each is printed when it listens."))]
pub(crate) struct PortForwardArgs {
    /// Pod: id, id prefix or name; pod/web works too
    pod: String,
    /// Ports
    #[arg(required = true, value_name = "[LOCAL:]REMOTE")]
    ports: Vec<Pair>,
    /// Addresses to listen on; localhost is 127.0.0.1, and ::1 where there is IPv6
    #[arg(long, value_name = "ADDRESS,…", value_delimiter = ',', default_value = "localhost")]
    address: Vec<Place>,
    #[command(flatten)]
    streaming: TransportArgs,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Localhost,
    Address(IpAddr),
}

impl FromStr for Place {
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

impl Place {
    /// Listens on a port, 0 for any, which is then the same on all of its addresses.
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
        // As with kubectl: one of them is enough, and a box may have no IPv6.
        let other = bind(Ipv6Addr::LOCALHOST.into(), port).await.ok();
        Ok(std::iter::once(localhost).chain(other).collect())
    }
}

/// A local port, 0 for any, and the pod's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pair {
    local: u16,
    remote: u16,
}

impl FromStr for Pair {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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

/// Forwards them.
pub(crate) async fn run(args: &PortForwardArgs) -> Result<Exit, CallError> {
    let all = args.connection.open_all()?;
    let (cri, pod) = find::pod(&all, &args.pod).await?;
    let url = url(cri, &pod.id, args).await?;
    let mut ports = streaming::port_forward(&url, args.streaming.transport()).await?;
    // Dropping it ends the listeners.
    let mut listeners = JoinSet::new();
    let (accepted, mut connections) = mpsc::channel(16);
    for pair in &args.ports {
        for place in &args.address {
            for listener in place.listen(pair.local).await? {
                let local = listener.local_addr().map_err(|source| CallError::Io {
                    doing: format!("listen for port {}", pair.remote),
                    source,
                })?;
                print(&format!("Forwarding from {local} -> {}", pair.remote))?;
                listeners.spawn(accept(listener, pair.remote, accepted.clone()));
            }
        }
    }
    let mut running = JoinSet::new();
    loop {
        // All arms are cancel-safe.
        tokio::select! {
            Some((socket, port)) = connections.recv() => {
                let carried = ports.carry(port, socket);
                running.spawn(async move {
                    // A lost connection is reported once, below.
                    if let Err(ForwardError::Refused(complaint)) = carried.await {
                        say(&format!("port {port}: {complaint}"));
                    }
                });
            }
            Some(_) = running.join_next() => {}
            () = ports.ended() => return Err(CallError::Lost),
        }
    }
}

async fn url(cri: &Cri, pod: &str, args: &PortForwardArgs) -> Result<String, CallError> {
    let request = v1::PortForwardRequest {
        pod_sandbox_id: pod.to_owned(),
        port: args.ports.iter().map(|pair| pair.remote.into()).collect(),
    };
    let mut client = cri.runtime.runtime.clone();
    let answer = cri.call("PortForward", client.port_forward(request));
    Ok(answer.await?.into_inner().url)
}

/// Hands on every connection to a local port.
async fn accept(listener: TcpListener, port: u16, accepted: mpsc::Sender<(TcpStream, u16)>) {
    loop {
        match listener.accept().await {
            Ok((socket, _)) => {
                if accepted.send((socket, port)).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                say(&format!("failed to accept a connection: {error}"));
                // Out of descriptors, most likely: others will be closed.
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
