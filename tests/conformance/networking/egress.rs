//! The egress of a rootless runtime's pods: to the host's loopback interface, to other machines, and to name servers.

mod host_ports;
mod relay;

use std::io::{BufRead as _, BufReader};
use std::net::Ipv4Addr;
use std::process::Stdio;

use harness::Netns;
use harness::process::Process;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, UdpSocket};

use crate::networking::network;
use crate::support::*;

/// The number of bytes of a long stream.
const MANY: usize = 50_000_000;
/// The address of the host's loopback interface in pods.
const HOST: &str = "169.254.77.2";
/// The pods' name server.
const DNS: &str = "169.254.77.100";

/// The environment variable that selects a runtime's egress program.
const CHOICE: &str = "CRIB_EGRESS";

/// The needs of an egress program. crib's own has none.
fn needs_of(program: &str) -> Vec<Need> {
    match program {
        "pasta" => vec![Need::UserNamespaces, Need::TunForUsers, Need::Pasta],
        "slirp4netns" => vec![Need::UserNamespaces, Need::TunForUsers, Need::Slirp4netns],
        _ => vec![Need::UserNamespaces],
    }
}

/// A runtime of an ordinary user, whose pods are connected by `program`.
fn rootless_by(program: &str) -> Options {
    rootless().durable().env(CHOICE, program)
}

/// The runtime's egress program, and the message of its network condition.
async fn way_out(runtime: &Runtime) -> (String, String) {
    let answer = runtime.client.status().await.unwrap();
    let conditions = answer.status.unwrap().conditions;
    let network = conditions.into_iter().find(|c| c.r#type == "NetworkReady").unwrap();
    assert!(network.status, "{network:?}");
    let program = answer.info.get("egress").cloned().unwrap_or_default();
    (program, network.message)
}

/// The response of the server at `address` to a line that a container of the pod sends over `transport`. A datagram may be lost on
/// a busy machine, so a UDP client repeats its request each second, as resolvers do.
async fn ask(pod: &Pod, transport: &str, address: &str, port: u16) -> String {
    let name = fixture::unique("client");
    let wait = if transport == "udp" { 1 } else { 20 };
    let script = format!(
        "exec timeout 20 bash -c 'exec 3<>/dev/{transport}/{address}/{port} && while echo question >&3; do \
            timeout {wait} head -n 1 <&3 && exit; done'"
    );
    pod.output(pod.script(&name, &script)).await.unwrap()
}

/// Responds to every client over TCP and UDP on one port of the loopback interface.
async fn serve() -> u16 {
    let tcp = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = tcp.local_addr().unwrap().port();
    let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((mut client, _)) = tcp.accept().await {
            tokio::spawn(async move {
                let mut question = [0; 9];
                // A client may have disconnected.
                if client.read_exact(&mut question).await.is_ok() {
                    let _ = client.write_all(b"answer over tcp\n").await;
                }
            });
        }
    });
    tokio::spawn(async move {
        let mut question = [0; 64];
        while let Ok((_, client)) = udp.recv_from(&mut question).await {
            udp.send_to(b"answer over udp\n", client).await.unwrap();
        }
    });
    port
}

#[rstest]
#[tokio::test]
async fn rootless_pods_reach_host_while_any_lives(
    #[values("pasta", "slirp4netns", "crib")] program: &str,
) {
    harness::needs!(..&needs_of(program));
    let mut runtime = rootless_by(program).start().await.unwrap();
    let message = format!("pods reach other hosts through {program}");
    assert_eq!(way_out(&runtime).await, (program.to_owned(), message));
    let port = serve().await;
    let pod = runtime.pod("a").await.unwrap();
    assert_eq!(ask(&pod, "tcp", HOST, port).await, "answer over tcp\n");
    assert_eq!(ask(&pod, "udp", HOST, port).await, "answer over udp\n");
    // pasta accepts before it connects.
    if program != "pasta" {
        let refused = refusal(&pod, HOST, closed_port().await).await;
        assert!(refused.contains("Connection refused"), "{refused}");
    }
    // The program copies single packets: with the kernel's MTU of 1500 bytes, a stream gets only 1 MB/s.
    let mtu = pod.script("mtu", "cat /sys/class/net/eth0/mtu");
    assert_eq!(pod.output(mtu).await.unwrap(), "65520\n");

    // Without the daemon the pod keeps its egress, and the next daemon finds the same process.
    let processes = egress_processes(&runtime);
    assert_eq!(processes.len(), 1, "{processes:?}");
    runtime.kill_and_restart().await.unwrap();
    assert_eq!(way_out(&runtime).await.0, program);
    assert_eq!(egress_processes(&runtime), processes);
    assert_eq!(ask(&pod, "tcp", HOST, port).await, "answer over tcp\n");

    // The program exits with the last pod if there is no daemon, and with the daemon if there is no pod.
    runtime.client.stop_pod(&pod.id).await.unwrap();
    runtime.kill9().await;
    all_gone("the way out to end", || egress_processes(&runtime)).await;
    runtime.restart().await.unwrap();
    assert_eq!(way_out(&runtime).await.0, program);
}

/// A user may deny pods access to the host's services.
#[tokio::test]
async fn egress_can_be_turned_off() {
    harness::needs!(UserNamespaces);
    let runtime = rootless_by("none").start().await.unwrap();
    let (program, message) = way_out(&runtime).await;
    assert_eq!(program, "none");
    assert_eq!(message, "pods cannot reach other hosts: CRIB_EGRESS=none");
    let pod = runtime.pod("a").await.unwrap();
    let refused = refusal(&pod, HOST, closed_port().await).await;
    assert!(refused.contains("unreachable"), "{refused}");
}

/// The daemon restarts a killed program for running pods.
#[rstest]
#[tokio::test]
async fn killed_egress_program_is_replaced(
    #[values("pasta", "slirp4netns", "crib")] program: &str,
) {
    harness::needs!(..&needs_of(program));
    let runtime = rootless_by(program).start().await.unwrap();
    let port = serve().await;
    let pod = runtime.pod("a").await.unwrap();
    way_out(&runtime).await;
    let processes = egress_processes(&runtime);
    for process in &processes {
        let pid = Pid::from_raw(*process);
        kill(pid, Signal::SIGKILL).unwrap();
    }
    eventually(WAIT_LIMIT, "another process", || async {
        way_out(&runtime).await;
        let now = egress_processes(&runtime);
        let replaced = now.len() == 1 && now != processes;
        replaced.then_some(()).ok_or(now)
    })
    .await;
    assert_eq!(ask(&pod, "tcp", HOST, port).await, "answer over tcp\n");
}

/// The error that a container of the pod gets when it connects to a port without a listener.
async fn refusal(pod: &Pod, address: &str, port: u16) -> String {
    let script =
        format!("exec 2>&1; timeout 20 bash -c 'exec 3<>/dev/tcp/{address}/{port}'; echo done");
    pod.output(pod.script("refused", &script)).await.unwrap()
}

/// A port of the loopback interface that is not in use.
async fn closed_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    listener.local_addr().unwrap().port()
}

/// A connection outlives the daemon, and a long stream arrives completely.
#[rstest]
#[tokio::test]
async fn connections_of_rootless_pods_outlive_daemon(
    #[values("pasta", "slirp4netns", "crib")] program: &str,
) {
    harness::needs!(..&needs_of(program));
    let mut runtime = rootless_by(program).start().await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let pod = runtime.pod("a").await.unwrap();
    const LINE: &str = "neither a period of two nor a short one";
    // Only a short stream for programs other than crib's: on a busy machine Debian 12's pasta sometimes ends a long stream before
    // its last bytes.
    let bytes = if program == "crib" { MANY } else { MANY / 10 };
    let lines = bytes / (LINE.len() + 1);
    let script = format!(
        "exec bash -c 'exec 3<>/dev/tcp/{HOST}/{port} && echo first >&3 && read -r word <&3 && echo $word >&3 && yes {LINE} | head -n {lines} >&3 && read -r word <&3'"
    );
    let client = pod.start(pod.script("client", &script)).await.unwrap();
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut word = [0; 6];
    stream.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"first\n");
    runtime.kill_and_restart().await.unwrap();
    stream.write_all(b"again\n").await.unwrap();
    stream.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"again\n");
    let mut sent = vec![0; lines * (LINE.len() + 1)];
    stream.read_exact(&mut sent).await.unwrap();
    assert!(sent.chunks(LINE.len() + 1).all(|line| line == format!("{LINE}\n").as_bytes()));
    // The client closes only now.
    stream.write_all(b"ended\n").await.unwrap();
    assert_eq!(stream.read(&mut word).await.unwrap(), 0);
    drop(client);
}

/// The processes of the runtime's egress.
fn egress_processes(runtime: &Runtime) -> Vec<i32> {
    let fifo = runtime.state_dir().join("egress-").display().to_string();
    let command = |process: &ObservedProcess| process.command_line();
    let all = procfs::processes().into_iter();
    let own = all.filter(|process| command(process).contains(&fifo));
    own.map(|process| process.pid).collect()
}

/// Responds to every query with the query's own bytes; the first two, its id, identify the query.
const NAME_SERVER: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Proto => "udp", LocalAddr => $ARGV[0], LocalPort => 53) or die "bind: $!";
    $| = 1; print "ready\n";
    while ($server->recv($query, 512)) { chomp $query; $server->send("$query answered\n") }' "$0""#;

/// The runtime uses the test's own network, in which another machine has the name server of this machine's configuration.
#[rstest]
fn rootless_pods_reach_name_server_and_other_machines(
    #[values("pasta", "slirp4netns", "crib")] program: &'static str,
) {
    harness::needs!(Root);
    harness::needs!(..&needs_of(program));
    let (host, other) = (Netns::make().unwrap(), Netns::make().unwrap());
    host.connect("203.0.113.1/24", &other, "203.0.113.2/24").unwrap();
    host.run("ip", &["route", "add", "default", "via", "203.0.113.2"]).unwrap();
    let conf = std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default();
    let server = conf.lines().find_map(|line| {
        let address = line.strip_prefix("nameserver ")?.trim();
        address.parse::<Ipv4Addr>().ok()
    });
    let server = server.unwrap_or(Ipv4Addr::LOCALHOST);
    let at = if server.is_loopback() { &host } else { &other };
    if !server.is_loopback() {
        let address = format!("{server}/32");
        at.run("ip", &["address", "add", &address, "dev", "lo"]).unwrap();
    }
    let mut command = at.command("sh");
    command.args(["-c", NAME_SERVER, &server.to_string()]);
    let mut process = Process::spawn(command.stdout(Stdio::piped())).unwrap();
    let mut ready = String::new();
    let stdout = process.take_stdout().unwrap();
    BufReader::new(stdout).read_line(&mut ready).unwrap();
    assert_eq!(ready, "ready\n");

    in_network(&host, ask_name_server(program, server));
}

/// Runs the body in a network namespace. The runtime is started by an ordinary user, but only root can enter a namespace, so a
/// thread of the test enters it.
fn in_network(namespace: &Netns, body: impl Future<Output = ()> + Send + 'static) {
    let netns = std::fs::File::open(namespace.path()).unwrap();
    let work = move || {
        nix::sched::setns(netns, nix::sched::CloneFlags::CLONE_NEWNET).unwrap();
        let executor = tokio::runtime::Builder::new_current_thread().enable_all().build();
        executor.unwrap().block_on(body);
    };
    std::thread::spawn(work).join().unwrap();
}

async fn ask_name_server(program: &str, server: Ipv4Addr) {
    let (_runtime, pod) = pod_of(rootless_by(program)).await;
    assert_eq!(ask(&pod, "udp", DNS, 53).await, "question answered\n");
    if !server.is_loopback() {
        // The same server is also another machine.
        let server = server.to_string();
        assert_eq!(ask(&pod, "udp", &server, 53).await, "question answered\n");
    }
}

/// Sends raw frames to the gateway's hardware address, for each address of `@ARGV` after its own address and the two ports: a
/// datagram that contains the address, and the first packet of a connection.
const FRAMES: &str = r#"until grep -q ' 0x2 ' /proc/net/arp; do bash -c 'echo >/dev/udp/198.51.100.1/9'; done; exec perl -e '
    my ($ip, $udp, $tcp) = splice @ARGV, 0, 3;
    open A, "<", "/proc/net/arp"; my ($gateway) = map { (split)[3] =~ s/://gr } grep / 0x2 /, <A>;
    socket(S, 17, 3, 8) or die "socket: $!"; my $r = pack("a40", "eth0"); ioctl(S, 0x8933, $r) or die $!;
    bind(S, pack("SnlSCCa8", 17, 0x0800, unpack("x16l", $r), 0, 0, 0, "")) or die $!;
    ioctl(S, 0x8927, $r) or die $!; my $own = substr($r, 18, 6);
    sub bytes { pack "C4", split /[.]/, $_[0] }
    sub sum { my $s = 0; $s += $_ for unpack "n*", $_[0]; $s = ($s >> 16) + ($s & 0xffff) while $s >> 16; ~$s & 0xffff }
    for my $to (@ARGV) {
        my $says = "to $to";
        my $datagram = pack("n4 a*", 4000, $udp, 8 + length $says, 0, $says);
        my $syn = pack("n2 N2 n4", 4000, $tcp, 1, 0, 0x5002, 65535, 0, 0);
        for ([17, $datagram], [6, $syn]) {
            my ($protocol, $rest) = @$_;
            my $head = pack("C2 n3 C2 n a4 a4", 69, 0, 20 + length $rest, 1, 0, 64, $protocol, 0, bytes($ip), bytes($to));
            substr($head, 10, 2) = pack "n", sum($head);
            send(S, pack("H12 a6 n", $gateway, $own, 0x0800) . $head . $rest, 0) or die "send: $!";
        }
    }' -- "#;

/// Addresses that the kernel treats as its own.
const OWN: &str = "127.0.0.1 127.0.0.2 0.0.0.0";

/// The relay processes a pod's packets in order: the last one arrives, and the earlier ones did not.
#[tokio::test]
async fn frames_for_loopback_addresses_reach_nothing_of_the_host() {
    harness::needs!(UserNamespaces);
    let (_runtime, pod) = pod_of(rootless_by("crib")).await;
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let [udp, tcp] = [&server.local_addr(), &listener.local_addr()]
        .map(|address| address.as_ref().unwrap().port());
    let own = network::address(&pod).await;
    // The same frame with the address of the host in pods arrives.
    let script = format!("{FRAMES} {own} {udp} 1 {OWN} {HOST}");
    pod.output(pod.script("datagrams", &script)).await.unwrap();
    let mut printed = [0; 64];
    let received =
        tokio::time::timeout(WAIT_LIMIT, server.recv(&mut printed)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed[..received]), format!("to {HOST}"));
    let connect =
        format!("bash -c 'exec 3<>/dev/tcp/{HOST}/{tcp}; echo control >&3; read -r _ <&3'");
    let script = format!("{} {own} 1 {tcp} {OWN}; {connect}", FRAMES.replace("exec perl", "perl"));
    let client = pod.start(pod.script("connections", &script)).await.unwrap();
    let (mut stream, _) =
        tokio::time::timeout(WAIT_LIMIT, listener.accept()).await.unwrap().unwrap();
    let mut word = [0; 8];
    stream.read_exact(&mut word).await.unwrap();
    assert_eq!(&word, b"control\n");
    drop(stream);
    pod.ended(&client).await.unwrap();
}

/// The kernel accepts packets for its loopback interface from other interfaces if route_localnet is set (CVE-2020-8558).
#[tokio::test]
async fn pods_of_root_reach_no_loopback_service_of_the_host() {
    harness::needs!(HostMounts);
    let (runtime, pod) = pod_of(Runtime::with()).await;
    let own = network::address(&pod).await;
    let (gateway, _) = network::neighbours(&pod, "").await.pop_first().unwrap();
    let loopback = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    loopback.set_nonblocking(true).unwrap();
    let udp = loopback.local_addr().unwrap().port();
    // The last frame is for a service that pods may use.
    let server = UdpSocket::bind((gateway.as_str(), udp)).await.unwrap();
    let script = format!("{FRAMES} {own} {udp} 1 {OWN} {HOST} {gateway}");
    pod.output(pod.script("frames", &script)).await.unwrap();
    let mut printed = [0; 64];
    let received =
        tokio::time::timeout(WAIT_LIMIT, server.recv(&mut printed)).await.unwrap().unwrap();
    assert_eq!(String::from_utf8_lossy(&printed[..received]), format!("to {gateway}"));
    let error = loopback.recv(&mut printed).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    drop(runtime);
}
