//! The pod network: addresses, subnets, and connections between pods.

mod services;
mod subnets;

use cri::v1;
use harness::{Netns, Pod, Runtime, fixture};
use tonic::Code;

use crate::support::{Means, skip_if};

/// Sends its host name to every client.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { print $client "this is ", `hostname`; close $client }'"#;

async fn serve(pod: &Pod) -> String {
    let id = pod.start(pod.script("server", SERVER)).await.unwrap();
    pod.logged(&id, "ready").await.unwrap();
    id
}

async fn address(pod: &Pod) -> String {
    let status = pod.client.pod(&pod.id).await.unwrap().status.unwrap();
    let ip = status.network.unwrap().ip;
    assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip:?}");
    ip
}

async fn send_request(pod: &Pod, address: &str) -> String {
    let script = format!("exec timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/8080 && cat <&3'");
    pod.output(pod.script(&fixture::unique("client"), &script))
        .await
        .unwrap()
}

#[tokio::test]
async fn pods_reach_each_other_by_address() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "pods_reach_each_other_by_address",
        Means::of(&runtime).await.no_network()
    );
    let server = runtime.pod("server").await.unwrap();
    let client = runtime.pod("client").await.unwrap();
    serve(&server).await;
    let (server_ip, client_ip) = (address(&server).await, address(&client).await);
    assert_ne!(server_ip, client_ip);
    assert_eq!(send_request(&client, &server_ip).await, "this is server\n");
    // The pod also reaches itself by its own address, and by loopback from another container.
    assert_eq!(send_request(&server, &server_ip).await, "this is server\n");
    assert_eq!(send_request(&server, "127.0.0.1").await, "this is server\n");
}

#[tokio::test]
async fn loopback_is_private_to_pod() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "loopback_is_private_to_pod",
        Means::of(&runtime).await.no_network()
    );
    let server = runtime.pod("server").await.unwrap();
    serve(&server).await;
    let other = runtime.pod("other").await.unwrap();
    let script = "timeout 20 bash -c 'exec 3<>/dev/tcp/127.0.0.1/8080' || echo refused";
    assert_eq!(
        other.output(other.script("c", script)).await.unwrap(),
        "refused\n"
    );
}

#[tokio::test]
async fn two_runtimes_use_separate_networks() {
    let first = Runtime::with().start().await.unwrap();
    skip_if!(
        "two_runtimes_use_separate_networks",
        Means::of(&first).await.no_network()
    );
    let second = Runtime::with().start().await.unwrap();
    let (pod, other) = (
        first.pod("one").await.unwrap(),
        second.pod("two").await.unwrap(),
    );
    serve(&pod).await;
    serve(&other).await;
    let (ip, other_ip) = (address(&pod).await, address(&other).await);
    // Each runtime has its own subnet or network namespace: either way each pod reaches itself at its address.
    assert_eq!(send_request(&pod, &ip).await, "this is one\n");
    assert_eq!(send_request(&other, &other_ip).await, "this is two\n");
    drop(second);
    let client = first.pod("client").await.unwrap();
    assert_eq!(send_request(&client, &ip).await, "this is one\n");
}

/// Removed pods release their addresses; the address of a running pod is not reassigned.
#[tokio::test]
async fn running_pod_keeps_address_while_others_come_and_go() {
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "running_pod_keeps_address_while_others_come_and_go",
        Means::of(&runtime).await.no_network()
    );
    let keep = runtime.pod("keep").await.unwrap();
    let kept = address(&keep).await;
    for number in 0..5 {
        let pod = runtime.pod(&format!("pod-{number}")).await.unwrap();
        assert_ne!(address(&pod).await, kept);
        runtime.client.remove_pod(&pod.id).await.unwrap();
    }
    let late = runtime.pod("late").await.unwrap();
    assert_ne!(address(&late).await, kept);
    serve(&keep).await;
    assert_eq!(send_request(&late, &kept).await, "this is keep\n");
}

/// Sends its host name to every client, over IPv4 and IPv6.
const BOTH: &str = r#"exec perl -MIO::Socket::IP -e '
    $server = IO::Socket::IP->new(Listen => 5, LocalHost => "::", LocalPort => 8080, V6Only => 0, GetAddrInfoFlags => 0) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { print $client "this is ", `hostname`; close $client }'"#;

/// All addresses of a pod.
async fn addresses(pod: &Pod) -> Vec<String> {
    let status = pod.client.pod(&pod.id).await.unwrap().status.unwrap();
    let network = status.network.unwrap();
    let more = network.additional_ips.into_iter().map(|ip| ip.ip);
    std::iter::once(network.ip).chain(more).collect()
}

fn has_ipv6() -> bool {
    let off = std::fs::read_to_string("/proc/sys/net/ipv6/conf/all/disable_ipv6");
    off.is_ok_and(|text| text.trim() == "0")
}

/// A runtime whose bridge is not in the host's own network namespace, so that every subnet is free.
async fn runtime_in_netns(argument: Option<&str>) -> (Option<Netns>, Runtime) {
    let netns = nix::unistd::geteuid()
        .is_root()
        .then(|| Netns::make().unwrap());
    let mut options = Runtime::with().durable();
    if let Some(netns) = &netns {
        options = options.netns(&netns.path());
    }
    if let Some(argument) = argument {
        options = options.argument(argument);
    }
    (netns, options.start().await.unwrap())
}

#[tokio::test]
async fn pods_have_ipv4_and_ipv6_addresses() {
    if !has_ipv6() {
        harness::skip!(
            "pods_have_ipv4_and_ipv6_addresses",
            "the kernel has no IPv6, or it is disabled"
        );
    }
    let runtime = Runtime::start().await.unwrap();
    skip_if!(
        "pods_have_ipv4_and_ipv6_addresses",
        Means::of(&runtime).await.no_network()
    );
    let (server, client) = (
        runtime.pod("server").await.unwrap(),
        runtime.pod("client").await.unwrap(),
    );
    let id = server.start(server.script("server", BOTH)).await.unwrap();
    server.logged(&id, "ready").await.unwrap();
    let all = addresses(&server).await;
    assert_eq!(all.len(), 2, "{all:?}");
    // A kubelet takes the first address as the primary one: it must be the IPv4 address.
    assert!(all[0].contains('.') && all[1].starts_with("fd"), "{all:?}");
    for address in &all {
        assert_eq!(send_request(&client, address).await, "this is server\n");
    }
}

#[tokio::test]
async fn pod_addresses_come_from_pod_cidr() {
    if !has_ipv6() {
        harness::skip!(
            "pod_addresses_come_from_pod_cidr",
            "the kernel has no IPv6, or it is disabled"
        );
    }
    for (argument, expected) in [
        ("--pod-cidr=10.77.0.0/16", &["10.77.0.2"][..]),
        (
            "--pod-cidr=fd77::/112,10.77.0.0/16",
            &["10.77.0.2", "fd77::2"],
        ),
        ("--pod-cidr=fd77::/64", &["fd77::2"]),
    ] {
        let (_netns, mut runtime) = runtime_in_netns(Some(argument)).await;
        skip_if!(
            "pod_addresses_come_from_pod_cidr",
            Means::of(&runtime).await.no_network()
        );
        let server = runtime.pod("server").await.unwrap();
        assert_eq!(addresses(&server).await, expected);
        let id = server.start(server.script("server", BOTH)).await.unwrap();
        server.logged(&id, "ready").await.unwrap();
        // The restarted daemon does not assign the same address again.
        runtime.kill9().await;
        runtime.restart().await.unwrap();
        let client = runtime.pod("client").await.unwrap();
        let second = addresses(&client).await;
        assert_ne!(second, expected);
        assert_eq!(second.len(), expected.len());
        for address in expected {
            assert_eq!(send_request(&client, address).await, "this is server\n");
        }
    }
}

/// A kubelet calls UpdateRuntimeConfig when its node gets a pod CIDR.
#[tokio::test]
async fn update_runtime_config_changes_subnet_only_without_pods() {
    let (_netns, runtime) = runtime_in_netns(None).await;
    skip_if!(
        "update_runtime_config_changes_subnet_only_without_pods",
        Means::of(&runtime).await.no_network()
    );
    let update = async |cidr: &str| {
        let network_config = Some(v1::NetworkConfig {
            pod_cidr: cidr.to_owned(),
        });
        let request = v1::UpdateRuntimeConfigRequest {
            runtime_config: Some(v1::RuntimeConfig { network_config }),
        };
        runtime
            .client
            .runtime
            .clone()
            .update_runtime_config(request)
            .await
    };
    update("").await.unwrap();
    let refused = update("10.77.0.1/16").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(
        refused.message().contains("did you mean 10.77.0.0/16?"),
        "{refused}"
    );
    update("10.77.0.0/16").await.unwrap();
    let first = runtime.pod("first").await.unwrap();
    assert_eq!(address(&first).await, "10.77.0.2");
    // With a running pod the subnet stays.
    update("10.78.0.0/16").await.unwrap();
    let second = runtime.pod("second").await.unwrap();
    assert_eq!(address(&second).await, "10.77.0.3");
    assert!(runtime.log().contains("kept pod subnet"));
}
