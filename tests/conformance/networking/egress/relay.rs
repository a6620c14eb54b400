//! Outgoing connections and datagrams as programs in pods see them, and the resources that they use.

use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt as _;

use harness::Netns;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::time::timeout;

use super::{HOST, ask, egress_processes, needs_of, rootless_by, serve, way_out};
use crate::networking::network::shares;
use crate::support::*;

/// Connects to the port in `$ARGV[1]` of the host.
const CONNECT: &str = r#"use IO::Socket::INET; use Socket; $| = 1;
    sub connected { IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) }
    sub linger { setsockopt($_[0], SOL_SOCKET, SO_LINGER, pack("ii", 1, 0)) }
    my $s = connected() or die "connect: $@";"#;

/// A container's command that runs a perl script with the host's address and a port.
fn perl(script: &str, port: u16) -> String {
    format!("exec timeout 60 perl -e '{script}' {HOST} {port}")
}

/// The output of a perl script in a container of the pod after [`CONNECT`].
async fn connected(pod: &Pod, script: &str, port: u16) -> String {
    let name = fixture::unique("client");
    let script = perl(&format!("{CONNECT}{script}"), port);
    pod.output(pod.script(&name, &script)).await.unwrap()
}

async fn listen() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// Accepts the next connection of a pod.
async fn accept(listener: &TcpListener) -> TcpStream {
    timeout(WAIT_LIMIT, listener.accept()).await.unwrap().unwrap().0
}

/// Reads everything that a pod sends until it closes its end.
async fn read_all(stream: &mut TcpStream) -> std::io::Result<String> {
    let mut text = String::new();
    let read = timeout(WAIT_LIMIT, stream.read_to_string(&mut text)).await;
    read.unwrap().map(|_| text)
}

/// The process of the runtime's egress.
fn relay(runtime: &Runtime) -> ObservedProcess {
    let processes = egress_processes(runtime);
    let [pid] = processes[..] else {
        panic!("{processes:?}");
    };
    ObservedProcess { pid }
}

/// How many file descriptors a process has.
fn descriptors(process: ObservedProcess) -> usize {
    std::fs::read_dir(process.path("fd")).unwrap().count()
}

/// With pasta, the pod does not see the end of the host's direction.
#[rstest]
#[tokio::test]
async fn half_closed_connection_carries_other_direction(
    #[values("slirp4netns", "crib")] program: &str,
) {
    harness::needs!(..&needs_of(program));
    let (_runtime, pod) = pod_of(rootless_by(program)).await;
    let (listener, port) = listen().await;

    let asks = r#"print $s "question\n"; shutdown($s, 1); print <$s>;"#;
    let answers = async {
        let mut stream = accept(&listener).await;
        assert_eq!(read_all(&mut stream).await.unwrap(), "question\n");
        stream.write_all(b"answer after the end\n").await.unwrap();
    };
    let (printed, ()) = tokio::join!(connected(&pod, asks, port), answers);
    assert_eq!(printed, "answer after the end\n");

    let listens = r#"print <$s>; print $s "thanks after the end\n";"#;
    let greets = async {
        let mut stream = accept(&listener).await;
        stream.write_all(b"greeting\n").await.unwrap();
        stream.shutdown().await.unwrap();
        read_all(&mut stream).await.unwrap()
    };
    let (printed, thanks) = tokio::join!(connected(&pod, listens, port), greets);
    assert_eq!(printed, "greeting\n");
    assert_eq!(thanks, "thanks after the end\n");
}

/// With pasta, a reset by a pod arrives as an end of stream.
#[tokio::test]
async fn reset_arrives_as_reset() {
    harness::needs!(UserNamespaces);
    let (_runtime, pod) = pod_of(rootless_by("crib")).await;
    let (listener, port) = listen().await;

    let reads = r#"print $s "ready\n"; print defined sysread($s, my $byte, 1) ? "end" : $!;"#;
    let resets = async {
        let mut stream = accept(&listener).await;
        let mut ready = [0; 6];
        stream.read_exact(&mut ready).await.unwrap();
        stream.set_zero_linger().unwrap();
    };
    let (printed, ()) = tokio::join!(connected(&pod, reads, port), resets);
    assert_eq!(printed, "Connection reset by peer\n");

    let resets = r#"sysread($s, my $byte, 1); linger($s); close($s);"#;
    let reads = async {
        let mut stream = accept(&listener).await;
        stream.write_all(b"x").await.unwrap();
        read_all(&mut stream).await.unwrap_err().kind()
    };
    let (_, error) = tokio::join!(connected(&pod, resets, port), reads);
    assert_eq!(error, std::io::ErrorKind::ConnectionReset);
}

/// Connects 300 times, then sends a number over each connection, and expects it back.
const MANY: &str = r#"my @all = map { connected() or die "connection $_: $@" } 1..299;
    unshift @all, $s;
    for my $n (0..299) { syswrite $all[$n], pack("N", $n) }
    for my $n (0..299) { sysread $all[$n], my $word, 4; unpack("N", $word) == $n or die "answer of another" }
    print "300 answers";"#;

#[tokio::test]
async fn three_hundred_connections_leave_no_descriptor() {
    harness::needs!(UserNamespaces);
    let (runtime, pod) = pod_of(rootless_by("crib")).await;
    let relay = relay(&runtime);
    let before = descriptors(relay);
    let (listener, port) = listen().await;
    let serves = async {
        let mut clients = Vec::new();
        for _ in 0..300 {
            clients.push(accept(&listener).await);
        }
        let mut words = vec![[0; 4]; clients.len()];
        for (client, word) in clients.iter_mut().zip(&mut words) {
            client.read_exact(word).await.unwrap();
        }
        // Everything that the pod sent has arrived, so the relay has both ends of each connection.
        let during = descriptors(relay);
        for (client, word) in clients.iter_mut().zip(words) {
            client.write_all(&word).await.unwrap();
        }
        during
    };
    let (printed, during) = tokio::join!(connected(&pod, MANY, port), serves);
    assert_eq!(printed, "300 answers\n");
    assert!(during >= before + 600, "{before}, then {during}");
    eventually(WAIT_LIMIT, "no descriptor of a connection", || async {
        let now = descriptors(relay);
        (now <= before).then_some(()).ok_or((before, now))
    })
    .await;
}

/// docs/cri.md: connections end, and the next Status call or pod starts another process.
#[tokio::test]
async fn connections_end_when_relay_is_killed_and_new_ones_are_made() {
    harness::needs!(UserNamespaces);
    let (runtime, pod) = pod_of(rootless_by("crib")).await;
    let (listener, port) = listen().await;
    let reads = r#"print $s "ready\n"; 1 while sysread($s, my $bytes, 65536); print "it ended";"#;
    let old = relay(&runtime);
    let kills = async {
        let mut stream = accept(&listener).await;
        let mut ready = [0; 6];
        stream.read_exact(&mut ready).await.unwrap();
        // The stream is active when it breaks.
        let bytes = vec![b'x'; 65536];
        for _ in 0..100 {
            stream.write_all(&bytes).await.unwrap();
        }
        kill(Pid::from_raw(old.pid), Signal::SIGKILL).unwrap();
        while timeout(WAIT_LIMIT, stream.write_all(&bytes)).await.unwrap().is_ok() {}
    };
    let (printed, ()) = tokio::join!(connected(&pod, reads, port), kills);
    assert_eq!(printed, "it ended\n");
    eventually(WAIT_LIMIT, "another process", || async {
        way_out(&runtime).await;
        let now = egress_processes(&runtime);
        let replaced = now.len() == 1 && now[0] != old.pid;
        replaced.then_some(()).ok_or(now)
    })
    .await;
    let port = serve().await;
    assert_eq!(ask(&pod, "tcp", HOST, port).await, "answer over tcp\n");
    assert_eq!(ask(&pod, "udp", HOST, port).await, "answer over udp\n");
}

/// Sends datagrams of these sizes, waits for each response, and prints its size. A datagram that is too large is only sent.
const DATAGRAMS: &str = r#"use IO::Socket::INET; $| = 1;
    my $s = IO::Socket::INET->new(Proto => "udp", PeerAddr => $ARGV[0], PeerPort => $ARGV[1]) or die $@;
    for my $size (1, 1472, 9000, 65507, 65492) {
        print "cannot send $size: $!\n" unless $s->send("x" x $size);
        next if $size > 65503;
        $s->recv(my $answer, 70000); print length $answer, "\n";
    }"#;

/// docs/cri.md documents the limits.
#[tokio::test]
async fn large_datagrams_are_relayed_up_to_documented_size() {
    harness::needs!(UserNamespaces);
    let runtime = rootless_by("crib").start().await.unwrap();
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = server.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut buffer = vec![0; 70_000];
        while let Ok((length, client)) = server.recv_from(&mut buffer).await {
            server.send_to(&buffer[..length], client).await.unwrap();
        }
    });
    let pod = runtime.pod("a").await.unwrap();
    let script = pod.script("client", &perl(DATAGRAMS, port));
    let printed = pod.output(script).await.unwrap();
    assert_eq!(printed, "1\n1472\n9000\n65492\n");
}

/// Connects 40 times concurrently, and prints how many connections got a response.
const BURST: &str = r#"my @children;
    for (1..40) {
        my $pid = fork // die "fork: $!";
        if ($pid) { push @children, $pid; next }
        my $c = connected() or exit 1;
        print $c "question\n"; exit(defined <$c> ? 0 : 1);
    }
    my $answered = 0;
    for (@children) { waitpid($_, 0); $answered++ unless $? }
    print "$answered answered";"#;

/// Sets a process's limit on file descriptors, as its user.
fn limit_descriptors(process: ObservedProcess, limit: usize) {
    let mut command = std::process::Command::new("prlimit");
    command.args(["--pid", &process.pid.to_string()]);
    command.arg(format!("--nofile={limit}:{limit}"));
    if nix::unistd::geteuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

/// Without a free file descriptor, connections wait or are refused; the same process serves later ones.
#[tokio::test]
async fn relay_without_descriptors_recovers() {
    harness::needs!(UserNamespaces);
    let (runtime, pod) = pod_of(rootless_by("crib")).await;
    let relay = relay(&runtime);
    let before = descriptors(relay);
    limit_descriptors(relay, before + 9);
    let port = serve().await;
    let printed = connected(&pod, BURST, port).await;
    let answered: u32 = printed.trim_end_matches(" answered\n").parse().unwrap();
    assert!(answered > 0, "{printed}");
    assert_eq!(ask(&pod, "tcp", HOST, port).await, "answer over tcp\n");
    assert_eq!(ask(&pod, "udp", HOST, port).await, "answer over udp\n");
    assert_eq!(self::relay(&runtime), relay);
}

/// Connects until the relay has no slot left, then holds the other connections silently.
const HOLDS: &str = r#"my @all;
    for (1..500) { push @all, IO::Socket::INET->new(PeerAddr => $ARGV[0], PeerPort => $ARGV[1], Timeout => 10) || last }
    print "holds " . @all . "\nready\n"; sleep 100;"#;

/// A runtime whose relay has 300 descriptors.
async fn with_limited_relay() -> Runtime {
    let runtime = rootless_by("crib").start().await.unwrap();
    // The next relay has the daemon's limit from its start.
    way_out(&runtime).await;
    limit_descriptors(ObservedProcess { pid: runtime.pid().unwrap() }, 300);
    let old = relay(&runtime);
    kill(Pid::from_raw(old.pid), Signal::SIGKILL).unwrap();
    eventually(WAIT_LIMIT, "another process", || async {
        way_out(&runtime).await;
        let now = egress_processes(&runtime);
        (now.len() == 1 && now[0] != old.pid).then_some(()).ok_or(now)
    })
    .await;
    runtime
}

/// The relay's log messages about its pools, and the pod's address as the log shows it.
async fn relay_log(runtime: &Runtime, pod: &Pod) -> (String, String) {
    let files = std::fs::read_dir(runtime.state_dir()).unwrap().flatten();
    let log =
        files.map(|file| file.path()).find(|path| path.extension().is_some_and(|e| e == "log"));
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let named = format!("of {}, ", status.network.unwrap().ip);
    (std::fs::read_to_string(log.unwrap()).unwrap(), named)
}

#[tokio::test]
async fn idle_connections_of_one_pod_leave_others_their_share_of_the_relay() {
    harness::needs!(UserNamespaces);
    let runtime = with_limited_relay().await;
    let greedy = runtime.pod("greedy").await.unwrap();
    let (_listener, port) = listen().await;
    let holds = shares::perl(HOLDS, &[HOST, &port.to_string()]);
    let holder = greedy.start_ready(greedy.script("holder", &holds)).await.unwrap();
    let status = greedy.client.container(&holder).await.unwrap();
    // A quarter of the descriptors: the pod could use all of them while it was the only one. A connection that the relay had not
    // accepted yet may have been replaced by the next one.
    let printed = greedy.log(&status)[0].text.clone();
    let held: u32 = printed.strip_prefix("holds ").unwrap().parse().unwrap();
    assert!((67..80).contains(&held), "{printed}");
    let other = runtime.pod("other").await.unwrap();
    let port = serve().await;
    assert_eq!(ask(&other, "tcp", HOST, port).await, "answer over tcp\n");
    assert_eq!(ask(&other, "udp", HOST, port).await, "answer over udp\n");
    let (log, expected) = relay_log(&runtime, &greedy).await;
    assert!(
        log.lines().count() == 1 && log.contains("connections") && log.contains(&expected),
        "{log}"
    );
}

#[tokio::test]
async fn flows_of_one_pod_leave_others_their_share_of_the_relay() {
    harness::needs!(UserNamespaces);
    let runtime = with_limited_relay().await;
    let port = serve().await.to_string();
    let greedy = runtime.pod("greedy").await.unwrap();
    let asks = greedy.script("client", &shares::perl(shares::KEEPS_ASKING, &[HOST, &port]));
    greedy.start_ready(asks).await.unwrap();
    let other = runtime.pod("other").await.unwrap();
    let asks = other.script("client", &shares::perl(shares::ASKS_ONCE, &[HOST, &port]));
    assert_eq!(other.output(asks).await.unwrap(), "answer over udp\n");
    let (log, expected) = relay_log(&runtime, &greedy).await;
    assert!(log.contains("datagrams") && log.contains(&expected), "{log}");
}

#[tokio::test]
async fn unread_connections_do_not_grow_memory_of_relay() {
    harness::needs!(UserNamespaces);
    let (runtime, pod) = pod_of(rootless_by("crib")).await;
    let relay = relay(&runtime);
    let server = serve().await;
    assert_eq!(ask(&pod, "tcp", HOST, server).await, "answer over tcp\n");
    let (listener, port) = listen().await;
    rustix::net::sockopt::set_socket_recv_buffer_size(&listener, 8192).unwrap();
    tokio::spawn(async move {
        let mut unread = Vec::new();
        while let Ok(accepted) = listener.accept().await {
            unread.push(accepted);
        }
    });
    let before = shares::memory(relay);
    let fills = shares::perl(shares::FILLS, &[HOST, &port.to_string()]);
    pod.start_ready(pod.script("client", &fills)).await.unwrap();
    let of_one = shares::memory(relay).saturating_sub(before) / 200;
    assert!(of_one < 24, "{of_one} KiB for a connection");
}

/// Sends an echo request, and prints type and code of the response: 0 0 is a reply.
const PING: &str = r#"use Socket;
    socket(my $s, PF_INET, SOCK_RAW, 1) or die "socket: $!";
    my $request = pack("C C n n n a*", 8, 0, 0, 4711, 1, "some data!");
    my $sum = 0; $sum += $_ for unpack("n*", $request);
    $sum = ($sum >> 16) + ($sum & 0xffff); substr($request, 2, 2) = pack("n", ~$sum & 0xffff);
    send($s, $request, 0, sockaddr_in(0, inet_aton($ARGV[0]))) or die "send: $!";
    for (;;) {
        recv($s, my $packet, 2000, 0);
        my ($type, $code, $rest) = unpack("x20 C C x2 a*", $packet);
        # The error quotes the request.
        my $own = $type == 3 ? unpack("x28 n", $rest) : unpack("n", $rest);
        next if $type == 8 || $own != 4711;
        print "$type $code"; exit;
    }"#;

/// The sysctl of the runtime's network namespace applies, which is the test's own.
#[rstest]
#[case::allowed("0 65534", "0 0\n")]
#[case::not_allowed("1 0", "3 13\n")]
fn ping_is_answered_or_prohibited(#[case] groups: &str, #[case] expected: &'static str) {
    harness::needs!(Root, UserNamespaces);
    let host = Netns::make().unwrap();
    let set = format!("echo {groups} >/proc/sys/net/ipv4/ping_group_range");
    host.run("sh", &["-c", &set]).unwrap();
    super::in_network(&host, async move {
        let (_runtime, pod) = pod_of(rootless_by("crib")).await;
        let script = pod.script("client", &perl(PING, 0));
        assert_eq!(pod.output(script).await.unwrap(), expected);
    });
}
