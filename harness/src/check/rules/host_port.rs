//! Rules of the addresses of pods, and of host ports with a protocol or an address of their own.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use cri::v1;
use tokio::net::UdpSocket;

use super::network::{PORT, said, serve, serve_with};
use crate::check::context::Context;
use crate::check::outcome::{Outcome, Verdict, ensure, failed};
use crate::check::rule::sources::{API, KUBELET};
use crate::check::rule::{Rule, Severity};
use crate::pod::Pod;

pub(super) const RULES: &[Rule] = &[
    Rule {
        id: "CRI-NET-004",
        severity: Severity::Must,
        says: "A host port of UDP leads datagrams to the port of the pod and back.",
        source: KUBELET,
        tags: &["kubelet", "network"],
        calls: &["RunPodSandbox"],
        faults: &[
            "RunPodSandbox request drop config.port_mappings.protocol",
            "RunPodSandbox request drop config.port_mappings",
        ],
        body: |x| Box::pin(host_port_carries_datagrams(x)),
    },
    Rule {
        id: "CRI-NET-005",
        severity: Severity::Must,
        says: "A host port with an address of the host leads to the pod from that address alone.",
        source: KUBELET,
        tags: &["kubelet", "network"],
        calls: &["RunPodSandbox"],
        faults: &[
            "RunPodSandbox request drop config.port_mappings.host_ip",
            "RunPodSandbox request drop config.port_mappings",
        ],
        body: |x| Box::pin(host_port_has_address(x)),
    },
    Rule {
        id: "CRI-NET-006",
        severity: Severity::Must,
        says: "Every address in PodSandboxStatus is one that the pod has, and none is there twice.",
        source: API,
        tags: &["kubelet", "network"],
        calls: &["PodSandboxStatus", "ExecSync"],
        faults: &[
            "PodSandboxStatus set status.network.ip \"10.11.12.13\"",
            "PodSandboxStatus set status.network.additional_ips [{\"ip\": \"none\"}]",
            "PodSandboxStatus set status.network.additional_ips [{\"ip\": \"10.11.12.13\"}]",
            "PodSandboxStatus drop status.network",
        ],
        body: |x| Box::pin(addresses_are_those_of_pod(x)),
    },
    Rule {
        id: "CRI-NET-007",
        severity: Severity::Must,
        says: "Each host port of a pod leads to it, and a port that is given without a host port is not opened on the host.",
        source: KUBELET,
        tags: &["kubelet", "network"],
        calls: &["RunPodSandbox"],
        faults: &[
            "RunPodSandbox request drop config.port_mappings",
            "RunPodSandbox if request.config.port_mappings.host_port = \"0\" request set config.port_mappings.host_port 8080",
        ],
        body: |x| Box::pin(host_ports_are_those_given(x)),
    },
];

/// Says hello to each datagram. It needs no module of Perl's.
const DATAGRAMS: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; socket(S, 2, 2, 0) or die; bind(S, pack("S n N x8", 2, 8080, 0)) or die;
print "ready\n"; while ($from = recv(S, $text, 1500, 0)) { send S, "hello $text", 0, $from }'"#;

/// A port of this host that nothing listens at now.
fn free_port(protocol: v1::Protocol) -> Verdict<u16> {
    let free = match protocol {
        v1::Protocol::Udp => std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))
            .and_then(|socket| socket.local_addr()),
        v1::Protocol::Tcp | v1::Protocol::Sctp => {
            std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))
                .and_then(|listener| listener.local_addr())
        }
    };
    match free {
        Ok(address) => Ok(address.port()),
        Err(error) => Err(Outcome::Skipped(format!("no port: {error}"))),
    }
}

/// A pod with this host port.
pub(super) async fn with_port(
    x: &Context,
    protocol: v1::Protocol,
    address: &str,
) -> Verdict<(Pod, u16)> {
    x.needs_namespaces()?;
    let port = free_port(protocol)?;
    let mut config = x.sandbox();
    config.port_mappings = vec![v1::PortMapping {
        protocol: protocol.into(),
        container_port: PORT.into(),
        host_port: port.into(),
        host_ip: address.to_owned(),
    }];
    Ok((x.pod_of(config).await?, port))
}

/// What comes back for a datagram to a port of this host.
async fn answered(port: u16) -> std::io::Result<String> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    socket.connect((Ipv4Addr::LOCALHOST, port)).await?;
    socket.send(b"there").await?;
    let mut text = [0; 64];
    let length = socket.recv(&mut text).await?;
    Ok(String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned())
}

async fn host_port_carries_datagrams(x: &Context) -> Verdict {
    let (pod, port) = with_port(x, v1::Protocol::Udp, "").await?;
    serve_with(x, &pod, DATAGRAMS).await?;
    // A datagram may be lost.
    let limit = Duration::from_millis(500);
    x.until(
        "the pod's answer at the host port",
        async || match tokio::time::timeout(limit, answered(port)).await {
            Ok(Ok(text)) if text == "hello there" => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await
}

async fn host_port_has_address(x: &Context) -> Verdict {
    let (pod, port) = with_port(x, v1::Protocol::Tcp, "127.0.0.1").await?;
    serve(x, &pod, "pod").await?;
    x.until(
        "the pod's answer at the address of the host port",
        async || match tokio::time::timeout(x.shared.patience, said(Ipv4Addr::LOCALHOST, port))
            .await
        {
            Ok(Ok(text)) if text == "hello from pod\n" => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await?;
    let other = said(Ipv4Addr::new(127, 0, 0, 2), port);
    let other = tokio::time::timeout(Duration::from_secs(2), other).await;
    let answers = matches!(&other, Ok(Ok(text)) if text == "hello from pod\n");
    ensure(
        !answers,
        "the host port at another address of the host",
        "no answer",
        other,
    )
}

async fn host_ports_are_those_given(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let (first, second) = (free_port(v1::Protocol::Tcp)?, free_port(v1::Protocol::Tcp)?);
    let mut config = x.sandbox();
    config.port_mappings = [0, first, second]
        .map(|port| v1::PortMapping {
            container_port: PORT.into(),
            host_port: port.into(),
            ..Default::default()
        })
        .into();
    let pod = x.pod_of(config).await?;
    let word = x.unique("each");
    serve(x, &pod, &word).await?;
    let hello = format!("hello from {word}\n");
    let at =
        async |port| tokio::time::timeout(x.shared.patience, said(Ipv4Addr::LOCALHOST, port)).await;
    for port in [first, second] {
        x.until("the pod's answer at each host port", async || {
            match at(port).await {
                Ok(Ok(text)) if text == hello => Ok(()),
                answer => Err(format!("{answer:?}")),
            }
        })
        .await?;
    }
    let other = at(PORT).await;
    ensure(
        !matches!(&other, Ok(Ok(text)) if *text == hello),
        "the container's port, which has no host port, on the host",
        "no answer of the pod",
        other,
    )
}

/// Whether tables of the kernel, of a network namespace, have an address.
fn has(tables: &str, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => tables
            .lines()
            .any(|line| line.trim() == format!("|-- {address}")),
        IpAddr::V6(address) => tables.contains(&format!("{:032x}", u128::from(address))),
    }
}

async fn addresses_are_those_of_pod(x: &Context) -> Verdict {
    x.needs_namespaces()?;
    let pod = x.pod().await?;
    let id = x.running(&pod).await?;
    let network = x.pod_status(&pod.id).await?.network.unwrap_or_default();
    let script = "cat /proc/net/fib_trie /proc/net/if_inet6 2>/dev/null; echo end";
    let tables = x.client.sh(&id, script).await?;
    if !tables.contains("|--") {
        return Err(Outcome::Skipped(
            "the container's kernel does not tell its addresses".to_owned(),
        ));
    }
    let others = network.additional_ips.iter().map(|one| one.ip.as_str());
    let mut seen = Vec::new();
    for text in [network.ip.as_str()].into_iter().chain(others) {
        let Ok(address) = text.parse::<IpAddr>() else {
            return failed("an address in PodSandboxStatus", "an address", text);
        };
        ensure(
            has(&tables, address),
            "an address in PodSandboxStatus",
            "one of the pod",
            text,
        )?;
        ensure(
            !seen.contains(&address),
            "an address in PodSandboxStatus",
            "there once",
            text,
        )?;
        seen.push(address);
    }
    Ok(())
}
