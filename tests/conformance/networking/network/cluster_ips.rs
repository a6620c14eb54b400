//! ClusterIPs: addresses outside the pod network, whose packets the bridge passes to the proxy of Services.

use cri::services::{Backend, Balancer, ServeRequest, Table, Transport};

use super::services::{Opened, open};
use super::shares::perl;
use super::{address, runtime_in_netns};
use crate::support::*;

/// Responds to each TCP line and each datagram with the client's address.
const ANSWERS: &str = r#"my $tcp = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die $@;
    my $udp = IO::Socket::INET->new(Proto => "udp", LocalPort => 8080) or die $@;
    my $all = IO::Select->new($tcp, $udp); print "ready\n";
    while (my @ready = $all->can_read) { for (@ready) {
        if ($_ == $udp) { $udp->recv(my $asked, 100); $udp->send("udp $asked"); next }
        my $client = $tcp->accept; sysread $client, my $line, 100; syswrite $client, "tcp $line"; close $client
    } }"#;

/// Connects to ADDRESS PORT over TCP and UDP.
const ASKS: &str = r#"alarm 20; for my $kind ("tcp", "udp") {
        my $s = IO::Socket::INET->new(Proto => $kind, PeerAddr => $ARGV[0], PeerPort => $ARGV[1]);
        if (!$s) { print "$kind: $!\n"; next }
        syswrite $s, "hello"; my $got = sysread $s, my $answer, 100; print $got ? "$answer\n" : "$kind: $!\n"
    }"#;

async fn asks(runtime: &Runtime, at: &str, port: &str) -> String {
    let pod = runtime.pod(&fixture::unique("client")).await.unwrap();
    let script = pod.script("client", &perl(ASKS, &[at, port]));
    pod.output(script).await.unwrap()
}

/// Sends a table, and returns the reported problems.
async fn publish(stream: &mut Opened, table: Table) -> Vec<String> {
    stream.requests.send(ServeRequest { addresses: 0, table: Some(table) }).await.unwrap();
    stream.responses.message().await.unwrap().unwrap().problems
}

/// Port 80 of an address over both protocols, which forwards to a pod or has no endpoint.
fn table(cluster_ip: &str, pod: Option<&str>) -> Table {
    let backend = |pod: &str| Backend { address: pod.to_owned(), port: 8080 };
    let balancer = |transport: Transport| Balancer {
        address: cluster_ip.to_owned(),
        port: 80,
        transport: transport.into(),
        backends: pod.map(backend).into_iter().collect(),
        affinity_seconds: 0,
    };
    Table {
        balancers: [Transport::Tcp, Transport::Udp].map(balancer).into(),
        addresses: vec![cluster_ip.to_owned()],
        ..Table::default()
    }
}

#[tokio::test]
async fn cluster_ips_outside_the_pod_network_lead_to_pods_until_they_are_withdrawn() {
    harness::needs!(Namespaces);
    let (_netns, runtime) = runtime_in_netns(None).await;
    let server = runtime.pod("server").await.unwrap();
    server.start_ready(server.script("server", &perl(ANSWERS, &[]))).await.unwrap();
    let pod = address(&server).await;
    let mut stream = open(&runtime, 0).await.unwrap();
    let problems = publish(&mut stream, table("10.96.0.7", Some(&pod))).await;
    assert_eq!(problems, [""; 0]);
    assert_eq!(asks(&runtime, "10.96.0.7", "80").await, "tcp hello\nudp hello\n");
    // A port that no Service has, and a Service without endpoints: connections are refused, and packets are not dropped.
    let refused = "tcp: Connection refused\nudp: Connection refused\n";
    assert_eq!(asks(&runtime, "10.96.0.7", "81").await, refused);
    assert_eq!(publish(&mut stream, table("10.96.0.7", None)).await, [""; 0]);
    assert_eq!(asks(&runtime, "10.96.0.7", "80").await, refused);
    // Another Service replaces the first one, whose address is removed.
    assert_eq!(publish(&mut stream, table("10.96.0.8", Some(&pod))).await, [""; 0]);
    assert_eq!(asks(&runtime, "10.96.0.8", "80").await, "tcp hello\nudp hello\n");
    // A pod's own addresses do not belong to the proxy.
    assert_eq!(asks(&runtime, &pod, "8080").await, "tcp hello\nudp hello\n");
    let problems = publish(&mut stream, table(&pod, None)).await;
    assert!(problems[0].contains("is an address of the pods' network"), "{problems:?}");
}

/// Two nodes of a cluster on one machine: the same ClusterIPs; each node's proxy serves its own pods.
#[tokio::test]
async fn daemons_of_one_machine_serve_the_same_cluster_ip_to_their_own_pods() {
    harness::needs!(Namespaces);
    let (netns, first) = runtime_in_netns(None).await;
    let mut options = Runtime::with().durable();
    if let Some(netns) = &netns {
        options = options.netns(&netns.path());
    }
    let second = options.start().await.unwrap();
    let mut streams = Vec::new();
    for runtime in [&first, &second] {
        let server = runtime.pod("server").await.unwrap();
        server.start_ready(server.script("server", &perl(ANSWERS, &[]))).await.unwrap();
        let mut stream = open(runtime, 0).await.unwrap();
        let served = table("10.96.0.7", Some(&address(&server).await));
        assert_eq!(publish(&mut stream, served).await, [""; 0]);
        streams.push(stream);
    }
    for runtime in [&first, &second] {
        assert_eq!(asks(runtime, "10.96.0.7", "80").await, "tcp hello\nudp hello\n");
    }
}

/// Without a client nothing is forwarded, and the next client can use all ClusterIPs again.
#[tokio::test]
async fn cluster_ips_end_with_their_client_and_return_with_next_one() {
    harness::needs!(Namespaces);
    let (_netns, mut runtime) = runtime_in_netns(None).await;
    let server = runtime.pod("server").await.unwrap();
    server.start_ready(server.script("server", &perl(ANSWERS, &[]))).await.unwrap();
    let pod = address(&server).await;
    for _ in 0..2 {
        let mut stream = open(&runtime, 0).await.unwrap();
        assert_eq!(publish(&mut stream, table("10.96.0.7", Some(&pod))).await, [""; 0]);
        assert_eq!(asks(&runtime, "10.96.0.7", "80").await, "tcp hello\nudp hello\n");
        drop(stream);
        let mut next = open(&runtime, 0).await.unwrap();
        assert_eq!(publish(&mut next, Table::default()).await, [""; 0]);
        // Such packets go to the gateway, and on to the host's route for that address, if any.
        let pod = runtime.pod(&fixture::unique("client")).await.unwrap();
        let script = "timeout 3 bash -c 'exec 3<>/dev/tcp/10.96.0.7/80 && printf hello >&3 && cat <&3'; true";
        let answer = pod.output(pod.script("client", script)).await.unwrap();
        assert!(!answer.contains("tcp hello"), "{answer}");
        drop(next);
        runtime.kill_and_restart().await.unwrap();
    }
}
