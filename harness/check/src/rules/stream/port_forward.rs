//! Rules for the streams of PortForward, over SPDY and over WebSockets.

use harness::streaming::{self, ForwardError, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-STR-011": "PortForward carries data to and from a port of a host-network pod, on several connections, over SPDY and over WebSocket.",
        CRITEST, tags ["kubelet", "stream", "network"], calls [PortForward],
        port_of_host_network_is_forwarded, faults [
            "PortForward drop url",
            "PortForward set url \"http://127.0.0.1:1/portforward/none\"",
            "PortForward answer UNKNOWN",
        ];
    Must "CRI-STR-012": "PortForward carries data to and from a port of a pod with its own network.",
        CRITEST, tags ["kubelet", "stream", "network"], calls [PortForward],
        port_of_pod_is_forwarded given [namespaces, pod], faults [
            "PortForward drop url",
            "PortForward request set pod_sandbox_id \"none\"",
        ];
    Should "CRI-STR-013": "PortForward to a port without a listener reports an error, and the connection can still be used for other ports.",
        KUBELET, tags ["stream", "network"], calls [PortForward],
        closed_port_is_an_error given [namespaces], faults ["PortForward drop url", "PortForward answer UNKNOWN"];
    Should "CRI-STR-019": "PortForward reaches a server that listens only on ::1.",
        CRIO, tags ["stream", "network"], calls [PortForward],
        ipv6_port_is_forwarded given [namespaces, pod], faults [
            "PortForward drop url",
            "PortForward request set pod_sandbox_id \"none\"",
        ];
};

pub(crate) async fn ports(
    x: &Context,
    pod: &Pod,
    port: u16,
    over: Transport,
) -> Verdict<streaming::Ports> {
    let request =
        v1::PortForwardRequest { pod_sandbox_id: pod.id.clone(), port: vec![port.into()] };
    let answer = x.client.runtime.clone().port_forward(request).await?;
    let url = answer.into_inner().url;
    match streaming::port_forward(&url, over).await {
        Ok(ports) => Ok(ports),
        // containerd tunnels SPDY through WebSockets since 2.0 only.
        Err(error) if over == Transport::WebSocket => {
            diverges(format!("PortForward does not work over a WebSocket: {error:?}"))
        }
        Err(error) => failed("the URL of PortForward", "a stream", format!("{url}: {error:?}")),
    }
}

/// Sends a text through a forwarded port to an echo server that sends `bye` at the end of its input. Returns whether `bye`
/// arrived: some runtimes do not support half-closed connections.
async fn echoes(x: &Context, ports: &streaming::Ports, port: u16, text: &str) -> Verdict<bool> {
    let (ours, theirs) = tokio::io::duplex(4096);
    let carrying = ports.carry(port, theirs);
    let asking = async {
        let (mut read, mut write) = tokio::io::split(ours);
        let mut answer = vec![0; text.len()];
        let (sent, received) =
            tokio::join!(write.write_all(text.as_bytes()), read.read_exact(&mut answer));
        sent.and(received)?;
        write.shutdown().await?;
        let mut rest = String::new();
        read.read_to_string(&mut rest).await?;
        Ok::<_, std::io::Error>((answer == text.as_bytes(), rest))
    };
    let both = async { tokio::join!(carrying, asking) };
    match tokio::time::timeout(x.shared.wait_limit, both).await {
        Ok((_, Ok((true, rest)))) if rest == "bye" => Ok(true),
        Ok((_, Ok((true, rest)))) if rest.is_empty() => Ok(false),
        Ok((carried, answer)) => failed(
            "the forwarded connection",
            "the sent text, and bye",
            format!("{carried:?}, {answer:?}"),
        ),
        Err(_) => failed("the forwarded connection", "to end", "no end"),
    }
}

/// Reports a divergence if the server's `bye` did not arrive.
fn expect_farewell(received: bool) -> Verdict {
    match received {
        true => Ok(()),
        false => diverges(
            "closing one direction closes the other direction, too; data in transit is lost",
        ),
    }
}

/// An echo server in this process that sends `bye` at the end of its input.
async fn echo_server() -> Verdict<(u16, tokio::task::JoinSet<()>)> {
    let bound = async {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        Ok::<_, std::io::Error>((listener.local_addr()?.port(), listener))
    };
    let (port, listener) =
        bound.await.map_err(|error| Outcome::Skipped(format!("no port to listen on: {error}")))?;
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(tasks::boxed(async move {
        let mut connections = tokio::task::JoinSet::new();
        while let Ok((mut client, _)) = listener.accept().await {
            connections.spawn(tasks::boxed(async move {
                let (mut read, mut write) = client.split();
                drop(tokio::io::copy(&mut read, &mut write).await);
                drop(write.write_all(b"bye").await);
                drop(write.shutdown().await);
            }));
        }
    }));
    Ok((port, serving))
}

async fn port_of_host_network_is_forwarded(x: &Context) -> Verdict {
    // Without namespaces, a pod's ports are found by its listening processes, and this server is not one of them.
    x.needs_namespaces()?;
    let (port, _serving) = echo_server().await?;
    let mut config = x.sandbox();
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    // A host-network pod has the host's hostname.
    config.hostname.clear();
    let pod = x.pod_of(config).await?;
    let long = "0123456789abcdef".repeat(20_000);
    let mut diverges = Ok(());
    for over in [Transport::Spdy, Transport::WebSocket] {
        let ports = match ports(x, &pod, port, over).await {
            Ok(ports) => ports,
            Err(outcome @ Outcome::Diverges(_)) => {
                diverges = Err(outcome);
                continue;
            }
            Err(outcome) => return Err(outcome),
        };
        let (first, second, third) = tokio::join!(
            echoes(x, &ports, port, "short"),
            echoes(x, &ports, port, &long),
            echoes(x, &ports, port, "another")
        );
        let received = [first?, second?, third?];
        if let Err(outcome) = expect_farewell(received == [true; 3]) {
            diverges = Err(outcome);
        }
    }
    diverges
}

/// An echo server that sends `bye` at the end of its input. It needs no Perl module.
const SERVER: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; $SIG{CHLD} = "IGNORE"; socket(S, 2, 1, 0) or die; bind(S, pack("S n N x8", 2, 0, 0x7f000001)) or die;
listen(S, 9) or die; (undef, $port) = unpack("S n", getsockname(S)); print "port=$port\nready\n";
while (accept(C, S)) { if (fork) { close C; next } while (sysread C, $t, 4096) { syswrite C, $t } syswrite C, "bye"; exit }'"#;

/// Runs a server in a pod that prints its port, or an error, and then `ready`. Returns the port.
async fn served(x: &Context, pod: &Pod, server: &str) -> Verdict<u16> {
    pod.start(x.script("c", server)).await?;
    x.logged(pod, "ready").await?;
    let lines = x.lines(pod);
    let port = |line: &harness::cri_log::Line| line.text.strip_prefix("port=")?.parse::<u16>().ok();
    if let Some(port) = lines.iter().find_map(port) {
        return Ok(port);
    }
    let lacks = lines.first().map_or("no port", |line| line.text.as_str());
    skipped(format!("the server in the pod does not start: {lacks}"))
}

async fn port_of_pod_is_forwarded(x: &Context, pod: Pod) -> Verdict {
    let port = served(x, &pod, SERVER).await?;
    let ports = ports(x, &pod, port, Transport::Spdy).await?;
    let short = echoes(x, &ports, port, "hello").await?;
    let long = echoes(x, &ports, port, &"0123456789abcdef".repeat(20_000)).await?;
    expect_farewell(short && long)
}

async fn closed_port_is_an_error(x: &Context) -> Verdict {
    let (open, _serving) = echo_server().await?;
    // A bound port that nothing listens on.
    let taken = tokio::net::TcpSocket::new_v4().and_then(|socket| {
        socket.bind((std::net::Ipv4Addr::LOCALHOST, 0).into())?;
        Ok((socket.local_addr()?.port(), socket))
    });
    let (closed, _socket) = taken.map_err(|error| Outcome::Skipped(format!("no port: {error}")))?;
    let mut config = x.sandbox();
    fixture::pod_namespaces(&mut config).network = NamespaceMode::Node.into();
    config.hostname.clear();
    let pod = x.pod_of(config).await?;
    let ports = ports(x, &pod, open, Transport::Spdy).await?;
    let (_ours, theirs) = tokio::io::duplex(64);
    let carrying = ports.carry(closed, theirs);
    match tokio::time::timeout(x.shared.wait_limit, carrying).await {
        Ok(Err(ForwardError::Refused(_))) => {
            expect_farewell(echoes(x, &ports, open, "still").await?)
        }
        // containerd closes the whole connection.
        Ok(Err(ForwardError::Lost)) => {
            diverges("the whole connection ends when a port cannot be reached")
        }
        Ok(Ok(())) => failed("a port on which nothing listens", "an error", "an end"),
        Err(_) => failed("a port on which nothing listens", "an error", "no answer"),
    }
}

/// An echo server on ::1 that sends `bye` at the end of its input. It needs no Perl module.
const IPV6_SERVER: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; $SIG{CHLD} = "IGNORE"; sub lacking { print "no ::1\nready\n"; exit } socket(S, 10, 1, 0) or lacking();
bind(S, pack("S n N a16 N", 10, 0, 0, ("\0" x 15) . "\1", 0)) or lacking();
listen(S, 9) or die; (undef, $port) = unpack("S n", getsockname(S)); print "port=$port\nready\n";
while (accept(C, S)) { if (fork) { close C; next } while (sysread C, $t, 4096) { syswrite C, $t } syswrite C, "bye"; exit }'"#;

/// Whether `localhost` is also `::1` on this machine: some runtimes resolve the name.
fn localhost_is_ipv6() -> bool {
    let hosts = std::fs::read_to_string("/etc/hosts").unwrap_or_default();
    let mut lines = hosts.lines().map(str::split_whitespace);
    lines.any(|mut words| words.next() == Some("::1") && words.any(|word| word == "localhost"))
}

async fn ipv6_port_is_forwarded(x: &Context, pod: Pod) -> Verdict {
    let port = served(x, &pod, IPV6_SERVER).await?;
    let ports = ports(x, &pod, port, Transport::Spdy).await?;
    match echoes(x, &ports, port, "hello").await {
        Err(Outcome::Fail { seen, .. }) if !localhost_is_ipv6() => diverges(format!(
            "a server on ::1 is not reached because /etc/hosts does not name ::1 localhost: {seen}"
        )),
        received => expect_farewell(received?),
    }
}
