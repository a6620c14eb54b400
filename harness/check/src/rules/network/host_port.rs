//! Rules for host ports: protocols, host addresses and several mappings. Also for the addresses in PodSandboxStatus.

use std::net::{IpAddr, Ipv4Addr};

use tokio::net::UdpSocket;

use crate::prelude::*;
use crate::rules::network::{PORT, SERVER, response_on_host, serve, serve_with};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-NET-004": "A UDP host port forwards datagrams to the pod's port, and forwards the replies to the client.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox],
        host_port_carries_datagrams, faults [
            "RunPodSandbox request drop config.port_mappings.protocol",
            "RunPodSandbox request drop config.port_mappings",
        ];
    Must "CRI-NET-005": "A host port with a host_ip accepts connections at this address only, and forwards the connections to the pod.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox],
        host_port_has_address, faults [
            "RunPodSandbox request drop config.port_mappings.host_ip",
            "RunPodSandbox request drop config.port_mappings",
        ];
    Must "CRI-NET-006": "PodSandboxStatus lists only addresses that the pod has, and no address twice.",
        API, tags ["kubelet", "network"], calls [PodSandboxStatus, ExecSync],
        addresses_are_those_of_pod given [namespaces, pod, container], faults [
            "PodSandboxStatus set status.network.ip \"10.11.12.13\"",
            "PodSandboxStatus set status.network.additional_ips [{\"ip\": \"none\"}]",
            "PodSandboxStatus set status.network.additional_ips [{\"ip\": \"10.11.12.13\"}]",
            "PodSandboxStatus drop status.network",
        ];
    Must "CRI-NET-007": "Each host port of a pod forwards to the pod, and a container port without a host port is not opened on the host.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox],
        host_ports_are_those_given given [namespaces], faults [
            "RunPodSandbox request drop config.port_mappings",
            "RunPodSandbox if request.config.port_mappings.host_port = \"0\" request set config.port_mappings.host_port 8080",
        ];
    Must "CRI-NET-020": "Each host port forwards to the container port of its own mapping; TCP and UDP can use the same host port, as DNS servers do.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox],
        host_ports_are_kept_apart given [namespaces], faults [
            "RunPodSandbox request set config.port_mappings.container_port 8080",
            "RunPodSandbox request set config.port_mappings.container_port 8081",
            "RunPodSandbox request drop config.port_mappings",
        ];
};

/// A server that answers each datagram with a greeting. It needs no Perl module.
const DATAGRAMS: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; socket(S, 2, 2, 0) or die; bind(S, pack("S n N x8", 2, 8080, 0)) or die;
print "ready\n"; while ($from = recv(S, $text, 1500, 0)) { send S, "hello $text", 0, $from }'"#;

/// A port of this host that is free for TCP and UDP.
pub(super) fn free_port() -> Verdict<u16> {
    harness::ports::free()
        .map_or_else(|| skipped("no port of this host is free for TCP and UDP"), Ok)
}

/// Runs a pod with a free host port of this protocol and host address.
pub(crate) async fn with_port(
    x: &Context,
    protocol: v1::Protocol,
    address: &str,
) -> Verdict<(Pod, u16)> {
    x.needs_namespaces()?;
    let port = free_port()?;
    let mut config = x.sandbox();
    config.port_mappings = vec![v1::PortMapping {
        protocol: protocol.into(),
        container_port: PORT.into(),
        host_port: port.into(),
        host_ip: address.to_owned(),
    }];
    Ok((x.pod_of(config).await?, port))
}

/// The answer to a datagram that is sent to a port of this host.
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
    x.until("the pod's answer at the host port", async || {
        match tokio::time::timeout(limit, answered(port)).await {
            Ok(Ok(text)) if text == "hello there" => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await
}

async fn host_port_has_address(x: &Context) -> Verdict {
    let (pod, port) = with_port(x, v1::Protocol::Tcp, "127.0.0.1").await?;
    serve(x, &pod, "pod").await?;
    x.until(
        "the pod's answer at the address of the host port",
        async || match tokio::time::timeout(
            x.shared.wait_limit,
            response_on_host(Ipv4Addr::LOCALHOST, port),
        )
        .await
        {
            Ok(Ok(text)) if text == "hello from pod\n" => Ok(()),
            answer => Err(format!("{answer:?}")),
        },
    )
    .await?;
    let other = response_on_host(Ipv4Addr::new(127, 0, 0, 2), port);
    let other = tokio::time::timeout(Duration::from_secs(2), other).await;
    let answers = matches!(&other, Ok(Ok(text)) if text == "hello from pod\n");
    ensure(!answers, "the host port at another address of the host", "no answer", other)
}

async fn host_ports_are_those_given(x: &Context) -> Verdict {
    let (first, second) = (free_port()?, free_port()?);
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
    let at = async |port| {
        tokio::time::timeout(x.shared.wait_limit, response_on_host(Ipv4Addr::LOCALHOST, port)).await
    };
    for port in [first, second] {
        x.until("the pod's answer at each host port", async || match at(port).await {
            Ok(Ok(text)) if text == hello => Ok(()),
            answer => Err(format!("{answer:?}")),
        })
        .await?;
    }
    let other = at(PORT).await;
    let what = "the container port without a host port, on the host";
    ensure(!matches!(&other, Ok(Ok(text)) if *text == hello), what, "no answer", other)
}

async fn host_ports_are_kept_apart(x: &Context) -> Verdict {
    let both = free_port()?;
    let other = free_port()?;
    let mapping = |protocol: v1::Protocol, container_port: u16, host_port: u16| v1::PortMapping {
        protocol: protocol.into(),
        container_port: container_port.into(),
        host_port: host_port.into(),
        host_ip: String::new(),
    };
    let second = PORT + 1;
    let mut config = x.sandbox();
    config.port_mappings = vec![
        mapping(v1::Protocol::Tcp, PORT, both),
        mapping(v1::Protocol::Udp, PORT, both),
        mapping(v1::Protocol::Tcp, second, other),
    ];
    let pod = x.pod_of(config).await?;
    let word = x.unique("apart");
    let of_second = SERVER.replace(&PORT.to_string(), &second.to_string());
    let servers = format!("({SERVER}{word}-1) & ({of_second}{word}-2) & ({DATAGRAMS}) & wait");
    serve_with(x, &pod, &servers).await?;
    let limit = Duration::from_secs(2);
    x.until("the answers of the pod's servers, each at its host port", async || {
        let at = async |port| match tokio::time::timeout(
            limit,
            response_on_host(Ipv4Addr::LOCALHOST, port),
        )
        .await
        {
            Ok(answer) => answer.unwrap_or_else(|error| error.to_string()),
            Err(_) => "no answer".to_owned(),
        };
        let datagram = tokio::time::timeout(limit, answered(both)).await;
        let datagram = datagram.is_ok_and(|answer| answer.is_ok_and(|text| text == "hello there"));
        let (first, second) = (at(both).await, at(other).await);
        let expected = [format!("hello from {word}-1\n"), format!("hello from {word}-2\n")];
        match datagram && [&first, &second] == [&expected[0], &expected[1]] {
            true => Ok(()),
            false => Err((first, datagram, second)),
        }
    })
    .await
}

/// Whether the kernel's tables of a network namespace list an address.
fn has(tables: &str, address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => tables.lines().any(|line| line.trim() == format!("|-- {address}")),
        IpAddr::V6(address) => tables.contains(&format!("{:032x}", u128::from(address))),
    }
}

async fn addresses_are_those_of_pod(x: &Context, pod: Pod, id: String) -> Verdict {
    let network = x.pod_status(&pod.id).await?.network.unwrap_or_default();
    let script = "cat /proc/net/fib_trie /proc/net/if_inet6 2>/dev/null; echo end";
    let tables = x.client.sh(&id, script).await?;
    if !tables.contains("|--") {
        return skipped("the container's kernel does not list its addresses");
    }
    let others = network.additional_ips.iter().map(|one| one.ip.as_str());
    let mut seen = Vec::new();
    for text in [network.ip.as_str()].into_iter().chain(others) {
        let Ok(address) = text.parse::<IpAddr>() else {
            return failed("an address in PodSandboxStatus", "an address", text);
        };
        ensure(has(&tables, address), "an address in PodSandboxStatus", "one of the pod's", text)?;
        ensure(!seen.contains(&address), "an address in PodSandboxStatus", "listed once", text)?;
        seen.push(address);
    }
    Ok(())
}
