//! The share of one pod in the resources of Services and DNS: connections, flows, queries, and the daemon's memory.

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::Stdio;

use cri::services::{Backend, Balancer, Name, ServeRequest, Table, Transport};
use harness::Netns;
use harness::process::Process;

use super::services::{Opened, open};
use super::{address, runtime_in_netns};
use crate::support::*;

/// The port of both Services and of the server.
const PORT: u16 = 8080;

/// Two Services for one server: their addresses, and that of the DNS server.
struct Served {
    runtime: Runtime,
    server: Pod,
    first: String,
    second: String,
    dns: String,
    _stream: Opened,
    _netns: Option<Netns>,
}

/// Starts the runtime, limits its descriptors, and runs the server, a perl script.
async fn served(transport: Transport, descriptors: Option<u64>, server: &str) -> Served {
    let (netns, runtime) = runtime_in_netns(None).await;
    if let Some(limit) = descriptors {
        let pid = runtime.pid().unwrap().to_string();
        let limit = format!("--nofile={limit}:{limit}");
        let output = std::process::Command::new("prlimit").args(["--pid", &pid, &limit]).output();
        assert!(output.as_ref().unwrap().status.success(), "{output:?}");
    }
    let pod = runtime.pod("server").await.unwrap();
    pod.start_ready(pod.script("server", &perl(server, &[]))).await.unwrap();
    let stream = open(&runtime, 2).await.unwrap();
    let [first, second] = &stream.first.addresses[..] else {
        panic!("{:?}", stream.first);
    };
    let backend = Backend { address: address(&pod).await, port: PORT.into() };
    let balancer = |address: &String| Balancer {
        address: address.clone(),
        port: PORT.into(),
        transport: transport.into(),
        backends: vec![backend.clone()],
        affinity_seconds: 0,
    };
    let name = Name {
        name: "web.default.svc.cluster.local".to_owned(),
        addresses: vec![first.clone()],
        ..Name::default()
    };
    let table = Table {
        zone: "cluster.local".to_owned(),
        names: vec![name],
        balancers: [first, second].map(balancer).into(),
        addresses: Vec::new(),
    };
    let (first, second, dns) = (first.clone(), second.clone(), stream.first.dns_server.clone());
    let mut stream = stream;
    stream.requests.send(ServeRequest { addresses: 0, table: Some(table) }).await.unwrap();
    let answer = stream.responses.message().await.unwrap().unwrap();
    assert_eq!(answer.problems, [""; 0]);
    Served { runtime, server: pod, first, second, dns, _stream: stream, _netns: netns }
}

/// A container's command that runs a perl script with these arguments.
pub(crate) fn perl(script: &str, arguments: &[&str]) -> String {
    let arguments = arguments.join(" ");
    format!(
        "exec timeout 120 perl -MIO::Socket::INET -MIO::Select -MSocket -e '$| = 1; {script}' {arguments}"
    )
}

/// Responds to each line of each connection, and keeps all connections open.
const ANSWERS: &str = r#"my $server = IO::Socket::INET->new(Listen => 500, LocalPort => 8080, ReuseAddr => 1) or die $@;
    my $all = IO::Select->new($server); print "ready\n";
    while (my @ready = $all->can_read) { for (@ready) {
        if ($_ == $server) { $all->add($server->accept); next }
        if (sysread $_, my $line, 100) { syswrite $_, "heard $line" } else { $all->remove($_); close $_ }
    } }"#;

/// Connects to the Service until a connection is refused, then holds the others silently.
const HOLDS: &str = r#"my @all;
    for (1..500) {
        my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 8080) or last;
        syswrite $s, "hello\n"; sysread $s, my $answer, 100 or last; push @all, $s;
    }
    print "holds " . @all . "\nready\n"; sleep 100;"#;

/// Connects to each Service once.
const ASKS: &str = r#"for (@ARGV) {
        my $s = IO::Socket::INET->new(PeerAddr => $_, PeerPort => 8080) or die "connect: $@";
        syswrite $s, "hello\n"; sysread $s, my $answer, 100; print $answer || "nothing: $!\n";
    }"#;

#[tokio::test]
async fn idle_connections_of_one_pod_leave_others_their_share() {
    harness::needs!(Namespaces);
    let served = served(Transport::Tcp, Some(300), ANSWERS).await;
    let greedy = served.runtime.pod("greedy").await.unwrap();
    let holder = greedy.script("holder", &perl(HOLDS, &[&served.first]));
    let held = greedy.start_ready(holder).await.unwrap();
    let status = greedy.client.container(&held).await.unwrap();
    let printed: Vec<String> = greedy.log(&status).iter().map(|line| line.text.clone()).collect();
    // A sixth of the descriptors: the pod could use all of them while it was the only one.
    assert_eq!(printed[0], "holds 50");
    let other = served.runtime.pod("other").await.unwrap();
    let asks = other.script("client", &perl(ASKS, &[&served.second, &served.first]));
    assert_eq!(other.output(asks).await.unwrap(), "heard hello\nheard hello\n");
    // The refusal is logged once, with the pod's address.
    let address = address(&greedy).await;
    let log = served.runtime.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("shared pool is full")).collect();
    assert_eq!(lines.len(), 1, "{log}");
    assert!(lines[0].contains("TCP of Services") && lines[0].contains(&address), "{lines:?}");
}

/// Responds to each datagram.
const ECHOES: &str = r#"my $server = IO::Socket::INET->new(Proto => "udp", LocalPort => 8080) or die $@; print "ready\n";
    while ($server->recv(my $asked, 100)) { $server->send("heard $asked") }"#;

/// Sends one datagram from each of 3,000 ports.
const PORTS: &str = r#"alarm 100;
    for (1..3000) {
        my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => 8080) or die $@;
        $s->send($_); $s->recv(my $answer, 100); $answer eq "heard $_" or die "port $_: $answer";
    }
    print "3000 answers";"#;

#[tokio::test]
async fn udp_service_answers_three_thousand_client_ports_in_a_row() {
    harness::needs!(Namespaces);
    let served = served(Transport::Udp, Some(1024), ECHOES).await;
    let client = served.runtime.pod("client").await.unwrap();
    let script = client.script("client", &perl(PORTS, &[&served.first]));
    assert_eq!(client.output(script).await.unwrap(), "3000 answers\n");
}

/// Queries the DNS server, `$ARGV[0]`, for an address.
const QUERY: &str = r#"my $id = 0;
    sub dns { IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => 53) or die $@ }
    sub query { pack("n6", ++$id, 256, 1, 0, 0, 0) . join("", map { pack "C/a*", $_ } split /\./, $_[0]) . pack("C n2", 0, 1, 1) }
    sub asked {
        my $s = dns(); $s->send(query($_[0])); IO::Select->new($s)->can_read(60) or return "no answer for $_[0]";
        $s->recv(my $answer, 1000); sprintf "code %d", 15 & unpack "x3 C", $answer
    }"#;

/// 2,000 external names without a response, and a name of the cluster after every 50 of them.
const FLOODS: &str = r#"my $slow = dns();
    for my $n (1..2000) {
        $slow->send(query("slow$n.example"));
        if ($n % 50 == 0) { my $said = asked("web.default.svc.cluster.local"); $said eq "code 0" or die "$n: $said" }
    }
    print "40 answers\nready\n"; sleep 100;"#;

/// Responds to names that contain "fast" with the query itself, which has no records, and does not respond to other names.
const NAME_SERVER: &str = r#"my $server = IO::Socket::INET->new(Proto => "udp", LocalAddr => $ARGV[0], LocalPort => 53) or die $@;
    print "ready\n";
    while ($server->recv(my $query, 512)) { $server->send($query) if $query =~ /fast/ }"#;

#[tokio::test]
async fn slow_names_of_one_pod_leave_answers_to_all() {
    harness::needs!(Root, Namespaces);
    let served = served(Transport::Tcp, None, ANSWERS).await;
    let netns = served._netns.as_ref().unwrap();
    let conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let server = conf.lines().find_map(|line| {
        let address = line.strip_prefix("nameserver ")?.trim();
        address.parse::<Ipv4Addr>().ok()
    });
    let server = server.unwrap_or(Ipv4Addr::LOCALHOST).to_string();
    netns.run("ip", &["link", "set", "lo", "up"]).unwrap();
    if server != "127.0.0.1" {
        netns.run("ip", &["address", "add", &format!("{server}/32"), "dev", "lo"]).unwrap();
    }
    let mut command = netns.command("perl");
    command.args(["-MIO::Socket::INET", "-e", &format!("$| = 1; {NAME_SERVER}"), &server]);
    let mut process = Process::spawn(command.stdout(Stdio::piped())).unwrap();
    let mut ready = String::new();
    BufReader::new(process.take_stdout().unwrap()).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");

    let greedy = served.runtime.pod("greedy").await.unwrap();
    let floods = perl(&format!("{QUERY}{FLOODS}"), &[&served.dns]);
    greedy.start_ready(greedy.script("client", &floods)).await.unwrap();
    // Another pod gets responses for names of both kinds.
    let other = served.runtime.pod("other").await.unwrap();
    let asks = r#"print asked($_), "\n" for "web.default.svc.cluster.local", "fast.example", "none.cluster.local""#;
    let asks = perl(&format!("{QUERY}{asks}"), &[&served.dns]);
    let printed = other.output(other.script("client", &asks)).await.unwrap();
    assert_eq!(printed, "code 0\ncode 0\ncode 3\n");
}

/// Accepts no connections: the kernel buffers a limited amount.
const DEAF: &str = r#"my $server = IO::Socket::INET->new(Listen => 500, LocalPort => 8080) or die $@;
    setsockopt $server, SOL_SOCKET, SO_RCVBUF, pack("i", 8192); print "ready\n"; sleep 100;"#;

/// Sends on 200 connections to `$ARGV[0]`, port `$ARGV[1]`, until none takes more.
pub(crate) const FILLS: &str = r#"my @all = map { IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die "connect $_: $@" } 1..200;
    setsockopt($_, SOL_SOCKET, SO_SNDBUF, pack("i", 65536)), $_->blocking(0) for @all;
    my $all = IO::Select->new(@all);
    while (my @ready = $all->can_write(2)) { syswrite $_, "x" x 65536 for @ready }
    print "full\nready\n"; sleep 100;"#;

/// The anonymous memory of a process, in KiB.
pub(crate) fn memory(process: ObservedProcess) -> u64 {
    let text = process.text("smaps_rollup");
    let line = text.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[tokio::test]
async fn unread_connections_do_not_grow_memory_of_proxy() {
    harness::needs!(Namespaces);
    let served = served(Transport::Tcp, None, DEAF).await;
    let client = served.runtime.pod("client").await.unwrap();
    let daemon = ObservedProcess { pid: served.runtime.pid().unwrap() };
    // The first connection includes one-time allocations of the proxy.
    let once = perl(
        "my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 8080) or die; syswrite $s, \"x\" x 65536",
        &[&served.first],
    );
    client.output(client.script("once", &once)).await.unwrap();
    let before = memory(daemon);
    let fills = client.script("client", &perl(FILLS, &[&served.first, "8080"]));
    client.start_ready(fills).await.unwrap();
    let of_one = memory(daemon).saturating_sub(before) / 200;
    assert!(of_one < 24, "{of_one} KiB for a connection");
    drop(served.server);
}

/// Sends datagrams to the server at `$ARGV[0]`, port `$ARGV[1]`, from each of 500 ports, and keeps sending from all of them.
pub(crate) const KEEPS_ASKING: &str = r#"my @all = map { IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die $@ } 1..500;
    $_->send("greedy") for @all; print "ready\n";
    my $all = IO::Select->new(@all);
    for (;;) { for ($all->can_read(0.01)) { $_->recv(my $answer, 100) } $_->send("greedy") for @all }"#;

/// Repeats a request until there is a response: a datagram may be lost on a busy host.
pub(crate) const ASKS_ONCE: &str = r#"my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die $@;
    for (1..60) { $s->send("other"); IO::Select->new($s)->can_read(1) or next; $s->recv(my $answer, 100); print $answer; exit }"#;

#[tokio::test]
async fn flows_of_one_pod_leave_others_their_share() {
    harness::needs!(Namespaces);
    let served = served(Transport::Udp, Some(300), ECHOES).await;
    let greedy = served.runtime.pod("greedy").await.unwrap();
    let asks = greedy.script("client", &perl(KEEPS_ASKING, &[&served.first, "8080"]));
    greedy.start_ready(asks).await.unwrap();
    let other = served.runtime.pod("other").await.unwrap();
    for service in [&served.second, &served.first] {
        let name = fixture::unique("client");
        let asks = other.script(&name, &perl(ASKS_ONCE, &[service, "8080"]));
        assert_eq!(other.output(asks).await.unwrap(), "heard other\n");
    }
    let address = address(&greedy).await;
    let log = served.runtime.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("shared pool is full")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&address)), "{log}");
}

/// Connects to the DNS server, `$ARGV[0]`, and sends nothing.
const HOLDS_DNS: &str = r#"my @all;
    for (1..500) { push @all, IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 53) || last }
    print "ready\n"; sleep 100;"#;

/// Queries the DNS server over TCP, where each message has a length prefix (RFC 1035, 4.2.2).
const ASKS_DNS: &str = r#"my $s = IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => 53) or die $@;
    syswrite $s, pack("n/a*", query("web.default.svc.cluster.local")); sysread $s, my $answer, 1000;
    printf "code %d\n", 15 & unpack "x5 C", $answer;"#;

#[tokio::test]
async fn silent_dns_connections_of_one_pod_leave_others_their_share() {
    harness::needs!(Namespaces);
    let served = served(Transport::Tcp, Some(300), ANSWERS).await;
    let greedy = served.runtime.pod("greedy").await.unwrap();
    let holds = greedy.script("holder", &perl(HOLDS_DNS, &[&served.dns]));
    greedy.start_ready(holds).await.unwrap();
    let other = served.runtime.pod("other").await.unwrap();
    let asks = other.script("client", &perl(&format!("{QUERY}{ASKS_DNS}"), &[&served.dns]));
    assert_eq!(other.output(asks).await.unwrap(), "code 0\n");
    let address = address(&greedy).await;
    let log = served.runtime.log();
    let lines: Vec<&str> =
        log.lines().filter(|line| line.contains("shared pool is full")).collect();
    assert!(!lines.is_empty() && lines.iter().all(|line| line.contains(&address)), "{log}");
}
