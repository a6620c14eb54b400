//! Rules for the pod network: pods reach each other by their addresses, and clients reach them through host ports.

pub(crate) mod host_network;
pub(crate) mod host_port;

use std::net::{Ipv4Addr, TcpListener};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use crate::prelude::*;

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-NET-001": "A pod is reachable at the address in its status, from other pods and from itself.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox, PodSandboxStatus, ExecSync],
        pod_is_reached_at_its_address given [namespaces], faults [
            "PodSandboxStatus set status.network.ip \"127.0.0.1\"",
            "PodSandboxStatus drop status.network",
            "PodSandboxStatus set status.network.ip \"none\"",
        ];
    Must "CRI-NET-002": "A host port forwards to the pod until the pod is stopped, and is free again after the pod is removed.",
        CRITEST, tags ["kubelet", "network"], calls [RunPodSandbox, StopPodSandbox],
        host_port_leads_to_pod given [namespaces], faults [
            "RunPodSandbox request drop config.port_mappings",
            "RunPodSandbox request set config.port_mappings.container_port 9",
            "StopPodSandbox swallow",
        ];
    Must "CRI-NET-003": "A pod's address does not change while the pod is ready.",
        KUBELET, tags ["kubelet", "network"], calls [PodSandboxStatus, StartContainer],
        address_stays given [namespaces, pod], faults [
            "PodSandboxStatus after 1 drop status.network",
            "PodSandboxStatus after 1 set status.network.ip \"10.0.0.9\"",
        ];
};

/// The port that the server in a pod listens on.
pub(crate) const PORT: u16 = 8080;
/// A server that greets each client. It needs no Perl module.
pub(crate) const SERVER: &str = r#"command -v perl >/dev/null || { echo no perl; echo ready; exit; }
exec perl -e '$| = 1; socket(S, 2, 1, 0) or die; setsockopt(S, 1, 2, 1); bind(S, pack("S n N x8", 2, 8080, 0)) or die;
listen(S, 9) or die; print "ready\n"; while (accept(C, S)) { syswrite C, "hello from $ARGV[0]\n"; close C }' "#;

/// Runs the server in a pod, with a word for its greeting.
pub(crate) async fn serve(x: &Context, pod: &Pod, word: &str) -> Verdict<String> {
    serve_with(x, pod, &format!("{SERVER}{word}")).await
}

/// Runs a script in a pod that starts a server and prints `ready`.
pub(crate) async fn serve_with(x: &Context, pod: &Pod, script: &str) -> Verdict<String> {
    let id = pod.start(x.script("c", script)).await?;
    x.logged(pod, "ready").await?;
    match x.lines(pod).iter().any(|line| line.text == "no perl") {
        true => skipped("the image has no perl, which the server needs"),
        false => Ok(id),
    }
}

pub(crate) async fn address(x: &Context, pod: &Pod) -> Verdict<Ipv4Addr> {
    let network = x.pod_status(&pod.id).await?.network.unwrap_or_default();
    match network.ip.parse() {
        Ok(address) => Ok(address),
        Err(_) if network.ip.contains(':') => {
            skipped(format!("the pod has only an IPv6 address: {}", network.ip))
        }
        Err(_) => failed("network.ip of a pod", "an address", network.ip),
    }
}

/// A server's answer to a client in a container, or the client's error.
pub(crate) async fn response_in_container(
    x: &Context,
    id: &str,
    address: Ipv4Addr,
    port: u16,
) -> Verdict<Result<String, String>> {
    let script = format!(
        "command -v perl >/dev/null || {{ echo no perl; exit; }}
        perl -e 'socket(S, 2, 1, 0) or die; connect(S, pack(\"S n N x8\", 2, {port}, {})) or die \"connect: $!\";
        print $_ while defined($_ = readline S)'",
        u32::from(address)
    );
    let answer = x.client.exec(id, ["/bin/sh", "-c", &script], 20).await?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match (answer.exit_code, text(&answer.stdout)) {
        (0, output) if output == "no perl\n" => {
            skipped("the image has no perl, which the client needs")
        }
        (0, output) => Ok(Ok(output)),
        _ => Ok(Err(text(&answer.stderr))),
    }
}

/// The answer of the server in a pod to a client in a container.
async fn expect_response(x: &Context, id: &str, address: Ipv4Addr) -> Verdict<String> {
    match response_in_container(x, id, address, PORT).await? {
        Ok(response) => Ok(response),
        Err(why) => failed(format!("a connection to {address}:{PORT}"), "an answer", why),
    }
}

async fn pod_is_reached_at_its_address(x: &Context) -> Verdict {
    let (first, second) = (x.pod().await?, x.pod().await?);
    let here = serve(x, &first, "first").await?;
    let there = serve(x, &second, "second").await?;
    let at = address(x, &first).await?;
    let other = address(x, &second).await?;
    for (from, to, expected) in [
        (&there, at, "hello from first\n"),
        (&here, other, "hello from second\n"),
        (&here, at, "hello from first\n"),
    ] {
        let text = expect_response(x, from, to).await?;
        equal(&format!("the server at {to}"), text.as_str(), expected)?;
    }
    Ok(())
}

/// The answer of the server behind a port of this host.
pub(crate) async fn response_on_host(address: Ipv4Addr, port: u16) -> std::io::Result<String> {
    let mut text = String::new();
    let mut stream = TcpStream::connect((address, port)).await?;
    stream.shutdown().await?;
    stream.read_to_string(&mut text).await?;
    Ok(text)
}

async fn host_port_leads_to_pod(x: &Context) -> Verdict {
    let port = host_port::free_port()?;
    let mut config = x.sandbox();
    config.port_mappings = vec![v1::PortMapping {
        protocol: v1::Protocol::Tcp.into(),
        container_port: PORT.into(),
        host_port: port.into(),
        host_ip: String::new(),
    }];
    let pod = x.pod_of(config).await?;
    serve(x, &pod, "pod").await?;
    // The host may apply the packet filter rule with a delay.
    x.until("the pod's answer at the host port", async || {
        match tokio::time::timeout(x.shared.wait_limit, response_on_host(Ipv4Addr::LOCALHOST, port))
            .await
        {
            Ok(Ok(text)) if text == "hello from pod\n" => Ok(()),
            answer => Err(format!("{answer:?}")),
        }
    })
    .await?;
    x.client.stop_pod(&pod.id).await?;
    let after =
        tokio::time::timeout(Duration::from_secs(2), response_on_host(Ipv4Addr::LOCALHOST, port))
            .await;
    let answers = matches!(&after, Ok(Ok(text)) if text == "hello from pod\n");
    ensure(!answers, "the host port of a stopped pod", "no answer", after)?;
    x.client.remove_pod(&pod.id).await?;
    x.until("the host port of the removed pod to be free", async || {
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))
            .map(drop)
            .map_err(|error| error.to_string())
    })
    .await
}

async fn address_stays(x: &Context, pod: Pod) -> Verdict {
    let first = x.pod_status(&pod.id).await?.network;
    let id = x.running(&pod).await?;
    let second = x.pod_status(&pod.id).await?.network;
    equal("network after a container started", &second, &first)?;
    x.client.stop(&id, 30).await?;
    x.client.remove(&id).await?;
    let third = x.pod_status(&pod.id).await?.network;
    equal("network after the container was removed", &third, &first)
}
