//! Rules for connections between pods and the host, and for the DNS servers of host-network pods.

use std::net::Ipv4Addr;

use cri::v1::{DnsConfig, NamespaceOption};
use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use crate::prelude::*;
use crate::rules::namespaces::{container, name_of, pod, sandbox_mode};
use crate::rules::network::{PORT, address, response_in_container, response_on_host, serve};

pub(crate) const RULES: &[Rule] = rules! {
    Must "CRI-NET-008": "A host-network pod can connect to the host's loopback address; a pod with its own network namespace cannot.",
        CRITEST, tags ["kubelet", "network", "namespaces"], calls [RunPodSandbox, CreateContainer, ExecSync],
        loopback_is_of_host given [namespaces], faults [sandbox_mode!("network", "NODE"), sandbox_mode!("network", "POD")];
    Must "CRI-NET-009": "A pod is reachable from the host at the address in its status: the kubelet's probes and hooks connect from the host.",
        KUBELET, tags ["kubelet", "network"], calls [RunPodSandbox, PodSandboxStatus],
        pod_is_reached_from_host given [namespaces], faults [
            "PodSandboxStatus set status.network.ip \"10.11.12.13\"",
            "PodSandboxStatus set status.network.ip \"127.0.0.1\"",
            "PodSandboxStatus drop status.network",
        ];
    Must "CRI-NET-010": "A host-network pod uses the DNS servers and search domains of its configuration (dnsPolicy ClusterFirstWithHostNet).",
        KUBELET, tags ["kubelet", "network", "dns"], calls [RunPodSandbox, CreateContainer],
        name_servers_are_those_given given [namespaces], faults ["RunPodSandbox request drop config.dns_config"];
};

/// The greeting of the server on the host.
const HELLO: &str = "hello from the host\n";
/// The timeout for a connection to a pod.
const SOON: Duration = Duration::from_secs(5);

/// The name of this process's network namespace.
fn own_network() -> Verdict<String> {
    let link = std::fs::read_link("/proc/self/ns/net");
    let name = link.map(|link| link.display().to_string());
    name.map_err(|error| Outcome::Skipped(format!("/proc/self/ns/net: {error}")))
}

fn in_host(options: &mut NamespaceOption) {
    options.network = NamespaceMode::Node.into();
}

async fn loopback_is_of_host(x: &Context) -> Verdict {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
    let listener = listener.and_then(|it| Ok((it.local_addr()?.port(), it)));
    let (port, listener) =
        listener.map_err(|error| Outcome::Skipped(format!("no port: {error}")))?;
    let mut server = JoinSet::new();
    server.spawn(tasks::boxed(async move {
        while let Ok((mut client, _)) = listener.accept().await {
            // An error means that the client has disconnected.
            let _ = client.write_all(HELLO.as_bytes()).await;
        }
    }));
    let own = x.pod().await?;
    let within = own.start(x.forever("c")).await?;
    let answer = response_in_container(x, &within, Ipv4Addr::LOCALHOST, port).await?;
    let reached = answer.as_deref() == Ok(HELLO);
    ensure(
        !reached,
        "the host's loopback address from a pod with its own network namespace",
        "no answer",
        &answer,
    )?;

    let (first, second) = (pod(x, in_host).await?, pod(x, in_host).await?);
    let here = first.start(container(x, &first, "c", |_| {})).await?;
    let there = second.start(container(x, &second, "c", |_| {})).await?;
    let of_host = name_of(x, &here, "net").await?;
    equal("the network of another host-network pod", &name_of(x, &there, "net").await?, &of_host)?;
    let ours = own_network()?;
    if of_host != ours {
        return diverges(format!(
            "the host network namespace is {of_host} for the runtime, and {ours} for this check"
        ));
    }
    match response_in_container(x, &here, Ipv4Addr::LOCALHOST, port).await? {
        Ok(text) => equal("the answer of the server on the host", text.as_str(), HELLO),
        Err(why) => failed("the host's loopback address", "an answer", why),
    }
}

async fn name_servers_are_those_given(x: &Context) -> Verdict {
    let mut config = x.sandbox();
    in_host(fixture::pod_namespaces(&mut config));
    config.hostname.clear();
    config.dns_config = Some(DnsConfig {
        servers: vec!["10.11.12.13".to_owned()],
        searches: vec!["pods.example".to_owned()],
        ..Default::default()
    });
    let pod = x.pod_of(config).await?;
    let mut config = x.script("c", "cat /etc/resolv.conf");
    in_host(fixture::security(&mut config).namespace_options.get_or_insert_default());
    let text = x.output_in(&pod, config).await?;
    let given = text.contains("nameserver 10.11.12.13") && text.contains("pods.example");
    let what = "/etc/resolv.conf of a pod in the host's network";
    ensure(given, what, "the configured name server and search domain", text)
}

async fn pod_is_reached_from_host(x: &Context) -> Verdict {
    let (pod, other) = (x.pod().await?, x.pod().await?);
    serve(x, &pod, "pod").await?;
    let beside = other.start(x.forever("c")).await?;
    let at = address(x, &pod).await?;
    let expected = "hello from pod\n";
    match response_in_container(x, &beside, at, PORT).await? {
        Ok(text) => equal("the answer to another pod", text.as_str(), expected)?,
        Err(why) => return failed(format!("{at}:{PORT}, from another pod"), "an answer", why),
    }
    match tokio::time::timeout(SOON, response_on_host(at, PORT)).await {
        Ok(Ok(text)) => equal("the answer to the host", text.as_str(), expected),
        Ok(Err(error)) => Err(unreached(at, &error.to_string())),
        Err(_) => Err(unreached(at, "no answer")),
    }
}

/// A rootless runtime's pod network has no connections from the host to a pod.
fn unreached(at: Ipv4Addr, why: &str) -> Outcome {
    if nix::unistd::geteuid().is_root() {
        let what = format!("{at}:{PORT}, from the host");
        return Outcome::Fail {
            what,
            expected: "an answer, as another pod gets".to_owned(),
            seen: why.to_owned(),
        };
    }
    Outcome::Skipped(format!(
        "pods can reach each other, but the host cannot reach them: a rootless runtime cannot change that ({why})"
    ))
}
