//! The pod network: addresses, subnets, and connections between pods.

mod cluster_ips;
mod services;
pub(crate) mod shares;
mod subnets;

use std::collections::BTreeMap;

use harness::Netns;

use crate::guard::userns::with_user_namespace;
use crate::support::*;

/// Sends its host name to every client.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { print $client "this is ", `hostname`; close $client }'"#;

async fn serve(pod: &Pod) -> String {
    pod.start_ready(pod.script("server", SERVER)).await.unwrap()
}

pub(crate) async fn address(pod: &Pod) -> String {
    let status = pod.client.pod(&pod.id).await.unwrap().status.unwrap();
    let ip = status.network.unwrap().ip;
    assert!(ip.parse::<std::net::IpAddr>().is_ok(), "{ip:?}");
    ip
}

async fn send_request(pod: &Pod, address: &str) -> String {
    let script = format!("exec timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/8080 && cat <&3'");
    pod.output(pod.script(&fixture::unique("client"), &script)).await.unwrap()
}

#[tokio::test]
async fn two_runtimes_use_separate_networks() {
    harness::needs!(Namespaces);
    let first = Runtime::with().start().await.unwrap();
    let second = Runtime::with().start().await.unwrap();
    let (pod, other) = (first.pod("one").await.unwrap(), second.pod("two").await.unwrap());
    serve(&pod).await;
    serve(&other).await;
    let (ip, other_ip) = (address(&pod).await, address(&other).await);
    // Each runtime has its own subnet or network namespace: in both cases each pod reaches itself at its address.
    assert_eq!(send_request(&pod, &ip).await, "this is one\n");
    assert_eq!(send_request(&other, &other_ip).await, "this is two\n");
    drop(second);
    let client = first.pod("client").await.unwrap();
    assert_eq!(send_request(&client, &ip).await, "this is one\n");
}

/// Servers without root on ports such as 80, and health checks that ping: other runtimes' pods support both.
#[tokio::test]
async fn ordinary_program_has_low_ports_and_pings_in_network_of_its_own() {
    const TRY: &str = r#"exec perl -e '
        socket(S, 2, 1, 6) and bind(S, pack("Sna4x8", 2, 80, "")) and print "listens\n";
        socket(P, 2, 2, 1) and print "pings\n";
        print "tried\n"'"#;
    harness::needs!(UserIds);
    let seen = async |runtime: &Runtime, config| {
        let pod = Pod::run(&runtime.client, config).await.unwrap();
        let mut config = pod.script("c", TRY);
        fixture::security(&mut config).run_as_user = Some(v1::Int64Value { value: 1000 });
        pod.output(config).await.unwrap()
    };
    let runtime = Runtime::start().await.unwrap();
    let in_own_users = with_user_namespace(&runtime, runtime.sandbox("users")).await;
    for config in [runtime.sandbox("pod"), in_own_users] {
        assert_eq!(seen(&runtime, config).await, "listens\npings\ntried\n");
    }
    let mut requested = runtime.sandbox("asked");
    let sysctls =
        [("net.ipv4.ip_unprivileged_port_start", "81"), ("net/ipv4/ping_group_range", "1 0")];
    let sysctls = sysctls.map(|(name, value)| (name.to_owned(), value.to_owned()));
    requested.linux.get_or_insert_default().sysctls.extend(sysctls);
    assert_eq!(seen(&runtime, requested).await, "tried\n");
    let settings = "network: {unprivileged_ports: false, unprivileged_ping: false}";
    let runtime = Runtime::with().config(settings).start().await.unwrap();
    assert_eq!(seen(&runtime, runtime.sandbox("off")).await, "tried\n");
}

/// An empty range is valid even if only one group is mapped.
#[rstest]
#[case::as_the_kernels("1 0")]
#[case::from_another_group("10 0")]
#[tokio::test]
async fn empty_ping_range_lets_no_group_ping(#[case] range: &str) {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    let sysctls = &mut config.linux.get_or_insert_default().sysctls;
    sysctls.insert("net.ipv4.ping_group_range".to_owned(), range.to_owned());
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = r#"exec perl -e 'socket(P, 2, 2, 1) and print "pings\n"; print "tried\n"'"#;
    assert_eq!(pod.output(pod.script("c", script)).await.unwrap(), "tried\n");
}

/// The kernel refuses local ports below the first unprivileged port, and the pod changes both.
#[rstest]
#[case::below_the_default("100", "200 300")]
#[case::above_it("40000", "50000 60000")]
#[tokio::test]
async fn local_ports_and_first_unprivileged_port_are_set_together(
    #[case] first: &str,
    #[case] range: &str,
) {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("p");
    let sysctls = &mut config.linux.get_or_insert_default().sysctls;
    sysctls.insert("net.ipv4.ip_unprivileged_port_start".to_owned(), first.to_owned());
    sysctls.insert("net.ipv4.ip_local_port_range".to_owned(), range.to_owned());
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = "cd /proc/sys/net/ipv4; cat ip_unprivileged_port_start ip_local_port_range";
    let out = pod.output(pod.script("c", script)).await.unwrap();
    let words: Vec<&str> = out.split_whitespace().collect();
    assert_eq!(words.join(" "), format!("{first} {range}"));
}

/// The hardware addresses in the neighbour table of a pod, by address, once it contains the address `has`.
pub(crate) async fn neighbours(pod: &Pod, has: &str) -> BTreeMap<String, String> {
    let script = format!(
        "until grep -q '^{has}.* 0x2 ' /proc/net/arp; do bash -c 'echo >/dev/udp/198.51.100.1/9'; done; cat /proc/net/arp"
    );
    let table = pod.output(pod.script(&fixture::unique("table"), &script)).await.unwrap();
    let rows = table.lines().skip(1).map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.map(|row| (row[0].to_owned(), row[3].to_owned())).collect()
}

/// The class of attacks that NET_RAW, a default capability, allows.
#[tokio::test]
async fn pod_does_not_get_what_is_sent_to_the_gateway() {
    // Broadcast ARP requests on the link of eth0 (sender, target).
    const ARP: &str = r#"exec perl -e '
        socket(S, 17, 3, 0x0608) or die "socket: $!";
        $r = pack("a40", "eth0"); ioctl(S, 0x8933, $r) or die $!;
        bind(S, pack("SnlSCCa8", 17, 0x0806, unpack("x16l", $r), 0, 0, 0, "")) or die $!;
        ioctl(S, 0x8927, $r) or die $!; $own = substr($r, 18, 6);
        while (@ARGV) {
            ($from, $about) = splice @ARGV, 0, 2;
            ($from, $about) = map { pack("C4", split /[.]/) } $from, $about;
            $frame = pack("H12a6nnnCCn", "f" x 12, $own, 0x0806, 1, 0x0800, 6, 4, 1);
            send(S, $frame . $own . $from . "\xff" x 6 . $about, 0) or die "send: $!";
        }' -- "#;
    harness::needs!(Namespaces);
    let runtime = Runtime::with().start().await.unwrap();
    let (pod, other) = (runtime.pod("one").await.unwrap(), runtime.pod("two").await.unwrap());
    let before = neighbours(&other, "").await;
    let (gateway, hardware) = before.first_key_value().unwrap();
    // One that announces the gateway (its sender asks for itself), and one of the pod itself.
    let (own, about) = (address(&pod).await, address(&other).await);
    let script = format!("{ARP} {gateway} {gateway} {own} {about}");
    pod.output(pod.script("attacker", &script)).await.unwrap();
    let after = neighbours(&other, &own).await;
    assert_eq!(after[gateway], *hardware, "{after:?}");
    assert_ne!(after[&own], *hardware, "{after:?}");
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

/// A runtime whose bridge is outside the host's network namespace, so that every subnet is free.
async fn runtime_in_netns(argument: Option<&str>) -> (Option<Netns>, Runtime) {
    let netns = nix::unistd::geteuid().is_root().then(|| Netns::make().unwrap());
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
    harness::needs!(Namespaces, Ipv6);
    let runtime = Runtime::start().await.unwrap();
    let (server, client) =
        (runtime.pod("server").await.unwrap(), runtime.pod("client").await.unwrap());
    server.start_ready(server.script("server", BOTH)).await.unwrap();
    let all = addresses(&server).await;
    assert_eq!(all.len(), 2, "{all:?}");
    // A kubelet uses the first address as the primary one: it must be the IPv4 address.
    assert!(all[0].contains('.') && all[1].starts_with("fd"), "{all:?}");
    for address in &all {
        assert_eq!(send_request(&client, address).await, "this is server\n");
    }
}

#[tokio::test]
async fn pod_addresses_come_from_pod_cidr() {
    harness::needs!(Namespaces, Ipv6);
    for (argument, expected) in [
        ("--pod-cidr=10.77.0.0/16", &["10.77.0.2"][..]),
        ("--pod-cidr=fd77::/112,10.77.0.0/16", &["10.77.0.2", "fd77::2"]),
        ("--pod-cidr=fd77::/64", &["fd77::2"]),
    ] {
        let (_netns, mut runtime) = runtime_in_netns(Some(argument)).await;
        let server = runtime.pod("server").await.unwrap();
        assert_eq!(addresses(&server).await, expected);
        server.start_ready(server.script("server", BOTH)).await.unwrap();
        // The restarted daemon does not assign the same address again.
        runtime.kill_and_restart().await.unwrap();
        let client = runtime.pod("client").await.unwrap();
        let second = addresses(&client).await;
        assert_ne!(second, expected);
        assert_eq!(second.len(), expected.len());
        for address in expected {
            assert_eq!(send_request(&client, address).await, "this is server\n");
        }
    }
}

/// A kubelet calls UpdateRuntimeConfig when its node gets a pod CIDR, and retries if that fails.
#[tokio::test]
async fn update_runtime_config_changes_subnet_only_without_pods() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(None).await;
    update(&runtime, "").await.unwrap();
    let host_bits = update(&runtime, "10.77.0.1/16").await;
    rejected(host_bits, Code::InvalidArgument, "did you mean 10.77.0.0/16?");
    update(&runtime, "10.77.0.0/16").await.unwrap();
    let first = runtime.pod("first").await.unwrap();
    assert_eq!(address(&first).await, "10.77.0.2");
    // The same range has no effect, even with pods.
    update(&runtime, "10.77.0.0/16").await.unwrap();
    // With a running pod the subnet stays.
    let other = update(&runtime, "10.78.0.0/16").await;
    rejected(other, Code::FailedPrecondition, "pods use addresses of 10.77.0.0/16");
    let second = runtime.pod("second").await.unwrap();
    assert_eq!(address(&second).await, "10.77.0.3");
    assert!(runtime.log().contains("kept pod subnet"));
    for pod in [first, second] {
        pod.client.stop_pod(&pod.id).await.unwrap();
    }
    update(&runtime, "10.78.0.0/16").await.unwrap();
    let third = runtime.pod("third").await.unwrap();
    assert_eq!(address(&third).await, "10.78.0.2");
}

/// A kubelet sends it only once: the next daemon must remember it.
#[tokio::test]
async fn pod_subnet_of_a_client_is_the_next_daemons_too() {
    harness::needs!(Namespaces);
    for argument in [None, Some("--pod-cidr=10.76.0.0/16")] {
        let (_netns, mut runtime) = runtime_in_netns(argument).await;
        update(&runtime, "10.77.1.0/24").await.unwrap();
        let restart = runtime.restart().await;
        restart.unwrap();
        let first = runtime.pod("first").await.unwrap();
        assert_eq!(address(&first).await, "10.77.1.2");
        runtime.kill_and_restart().await.unwrap();
        let second = runtime.pod("second").await.unwrap();
        assert_eq!(address(&second).await, "10.77.1.3");
    }
}

/// Services have addresses of the subnet: their client loses its stream, and gets new addresses with the next one.
#[tokio::test]
async fn services_move_with_the_pod_subnet() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(None).await;
    let mut stream = services::open(&runtime, 1).await.unwrap();
    update(&runtime, "10.77.0.0/16").await.unwrap();
    rejected(
        stream.responses.message().await,
        Code::Aborted,
        "the pod network is being reconfigured",
    );
    let next = services::open(&runtime, 1).await.unwrap();
    assert!(next.first.addresses[0].starts_with("10.77."), "{:?}", next.first);
    let pod = runtime.pod("pod").await.unwrap();
    assert!(address(&pod).await.starts_with("10.77."));
}

async fn update(
    runtime: &Runtime,
    cidr: &str,
) -> Result<tonic::Response<v1::UpdateRuntimeConfigResponse>, tonic::Status> {
    let network_config = Some(v1::NetworkConfig { pod_cidr: cidr.to_owned() });
    let request = v1::UpdateRuntimeConfigRequest {
        runtime_config: Some(v1::RuntimeConfig { network_config }),
    };
    runtime.client.runtime.clone().update_runtime_config(request).await
}
