//! Host ports forward to the pod for every client, as long as the pod exists.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use crate::support::*;

/// Echoes every line with a prefix.
const TCP: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Listen => 50, LocalPort => 8080) or die "listen: $!";
    $| = 1; print "ready\n";
    while ($client = $server->accept) { while (<$client>) { print $client "tcp: $_" } close $client }'"#;
const UDP: &str = r#"exec perl -MIO::Socket::INET -e '
    $server = IO::Socket::INET->new(Proto => "udp", LocalPort => 8080) or die "bind: $!";
    $| = 1; print "ready\n";
    while ($from = $server->recv($text, 65536)) { $server->send("udp: $text") }'"#;

/// A port that is free on all addresses of the host, for TCP and UDP.
pub(crate) fn free_port() -> u16 {
    harness::ports::free().unwrap()
}

fn mapping(protocol: v1::Protocol, host_ip: &str, host_port: u16) -> v1::PortMapping {
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: 8080,
        host_port: host_port.into(),
        host_ip: host_ip.to_owned(),
    }
}

fn with_ports(runtime: &Runtime, name: &str, ports: Vec<v1::PortMapping>) -> v1::PodSandboxConfig {
    let mut config = runtime.sandbox(name);
    config.port_mappings = ports;
    config
}

/// A pod with a TCP host port.
async fn with_tcp_port(runtime: &Runtime, name: &str, port: u16) -> Pod {
    let config = with_ports(runtime, name, vec![mapping(v1::Protocol::Tcp, "", port)]);
    Pod::run(&runtime.client, config).await.unwrap()
}

async fn serve(pod: &Pod, script: &str) {
    pod.start_ready(pod.script("server", script)).await.unwrap();
}

fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse::<IpAddr>().unwrap(), port)
}

/// Sends `text`, closes the writing end, and reads the whole response.
fn send_request_blocking(to: SocketAddr, text: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&to, WAIT_LIMIT)?;
    stream.set_read_timeout(Some(WAIT_LIMIT))?;
    stream.write_all(text.as_bytes())?;
    stream.shutdown(std::net::Shutdown::Write)?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

async fn send_request(to: SocketAddr, text: &str) -> std::io::Result<String> {
    let text = text.to_owned();
    tokio::task::spawn_blocking(move || send_request_blocking(to, &text)).await.unwrap()
}

fn has_ipv6() -> bool {
    TcpListener::bind("[::1]:0").is_ok()
}

#[tokio::test]
async fn tcp_host_port_forwards_to_pod() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let port = free_port();
    let pod = with_tcp_port(&runtime, "server", port).await;
    serve(&pod, TCP).await;
    let hosts: &[&str] =
        if has_ipv6() { &["127.0.0.1", "127.1.2.3", "::1"] } else { &["127.0.0.1", "127.1.2.3"] };
    for host in hosts {
        let answer = send_request(address(host, port), "hello\n").await.unwrap();
        assert_eq!(answer, "tcp: hello\n", "{host}");
    }
    // One megabyte, then many concurrent clients.
    let long = "x".repeat(1 << 20) + "\n";
    let answer = send_request(address("127.0.0.1", port), &long).await.unwrap();
    assert_eq!(answer.len(), long.len() + "tcp: ".len());
    // The server handles one client at a time; the others wait.
    let mut requested = tokio::task::JoinSet::new();
    for number in 0..20 {
        requested.spawn(async move {
            let text = format!("number {number}\n");
            let answer = send_request(address("127.0.0.1", port), &text).await.unwrap();
            assert_eq!(answer, format!("tcp: {text}"));
        });
    }
    requested.join_all().await;
    // The port is free once the pod has stopped.
    runtime.client.stop_pod(&pod.id).await.unwrap();
    TcpListener::bind(("0.0.0.0", port)).unwrap();
}

#[tokio::test]
async fn host_port_resets_connection_when_pod_does_not_listen() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let port = free_port();
    let _pod = with_tcp_port(&runtime, "nobody", port).await;
    let error = send_request(address("127.0.0.1", port), "hello\n").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
}

#[tokio::test]
async fn run_pod_rejects_host_port_of_another_pod() {
    let runtime = Runtime::start().await.unwrap();
    let port = free_port();
    let first = with_tcp_port(&runtime, "first", port).await;
    let second = with_ports(&runtime, "second", first.config.port_mappings.clone());
    let refused = runtime.client.run_pod(second.clone()).await;
    let expected = format!("the host port {port}/TCP is taken by the pod test/first");
    rejected(refused, Code::FailedPrecondition, &expected);
    // The failed call leaves nothing, and the same call succeeds once the port is free.
    assert_eq!(runtime.client.pods(v1::PodSandboxFilter::default()).await.unwrap().len(), 1);
    runtime.client.stop_pod(&first.id).await.unwrap();
    runtime.client.run_pod(second).await.unwrap();
}

#[tokio::test]
async fn run_pod_rejects_host_port_in_use_on_host() {
    let runtime = Runtime::start().await.unwrap();
    let program = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = program.local_addr().unwrap().port();
    let config = |ip| with_ports(&runtime, "late", vec![mapping(v1::Protocol::Tcp, ip, port)]);
    rejected(
        runtime.client.run_pod(config("")).await,
        Code::FailedPrecondition,
        "a program of the host",
    );
    // The same port on another address is free.
    runtime.client.run_pod(config("127.0.0.2")).await.unwrap();
}

#[tokio::test]
async fn host_ports_survive_daemon_restart() {
    harness::needs!(Namespaces);
    let mut runtime = Runtime::with().durable().start().await.unwrap();
    let port = free_port();
    let pod = with_tcp_port(&runtime, "server", port).await;
    serve(&pod, TCP).await;
    runtime.kill9().await;
    let answer = send_request(address("127.0.0.1", port), "alone\n").await;
    assert_eq!(answer.unwrap(), "tcp: alone\n");
    runtime.restart().await.unwrap();
    let answer = send_request(address("127.0.0.1", port), "again\n").await;
    assert_eq!(answer.unwrap(), "tcp: again\n");
    // The restarted daemon knows which pod uses the port.
    let second = with_ports(&runtime, "second", pod.config.port_mappings);
    let refused = runtime.client.run_pod(second).await.unwrap_err();
    assert!(refused.message().contains("the pod test/server"), "{refused}");
}

#[tokio::test]
async fn privileged_host_port_requires_root() {
    harness::needs!(PrivilegedPorts);
    let first = harness::need::first_unprivileged_port();
    let mut low = (first.saturating_sub(300)..first).rev();
    let unused = |port: &u16| {
        *port > 0 && TcpStream::connect_timeout(&address("127.0.0.7", *port), WAIT_LIMIT).is_err()
    };
    let port = low.find(unused).unwrap();
    let make = async |runtime: &Runtime| {
        let ports = vec![mapping(v1::Protocol::Tcp, "127.0.0.7", port)];
        runtime.client.run_pod(with_ports(runtime, "low", ports)).await
    };
    let runtime = if nix::unistd::geteuid().is_root() {
        make(&Runtime::start().await.unwrap()).await.unwrap();
        let nobody = Runtime::with().user(65534, 65534);
        nobody.start().await.unwrap()
    } else {
        Runtime::start().await.unwrap()
    };
    rejected(make(&runtime).await, Code::PermissionDenied, &format!("below {first}"));
}

#[rstest]
#[case("localhost", 12000, 80, "is not an address")]
#[case("192.0.2.77", 12000, 80, "this host has no such address")]
#[case("", 70000, 80, "70000 is not a port")]
#[case("", -1, 80, "-1 is not a port")]
#[case("", 12000, 0, "0 is not a port")]
#[tokio::test]
async fn run_pod_rejects_invalid_port_mapping(
    #[case] host_ip: &str,
    #[case] host_port: i32,
    #[case] container_port: i32,
    #[case] part: &str,
) {
    let runtime = Runtime::start().await.unwrap();
    let port = v1::PortMapping {
        protocol: v1::Protocol::Tcp.into(),
        container_port,
        host_port,
        host_ip: host_ip.to_owned(),
    };
    let config = with_ports(&runtime, "nonsense", vec![port]);
    rejected(runtime.client.run_pod(config).await, Code::InvalidArgument, part);
    assert!(runtime.client.pods(v1::PodSandboxFilter::default()).await.unwrap().is_empty());
}

/// A sysctl of the pod's interface is set after the interface exists.
#[tokio::test]
async fn sysctl_of_pod_interface_is_applied() {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let mut config = runtime.sandbox("tuned");
    let linux = config.linux.as_mut().unwrap();
    linux.sysctls = [("net.ipv4.conf.eth0.arp_ignore", "2")]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    let script = "cat /proc/sys/net/ipv4/conf/eth0/arp_ignore";
    let output = pod.output(pod.script("look", script)).await.unwrap();
    assert_eq!(output, "2\n");
}

/// Without network namespaces a pod still has its own loopback address.
#[tokio::test]
async fn host_port_forwards_without_namespaces() {
    let runtime = Runtime::with().isolation("process").start().await.unwrap();
    let port = free_port();
    let ports = vec![mapping(v1::Protocol::Tcp, "127.0.0.1", port)];
    let pod = Pod::run(&runtime.client, with_ports(&runtime, "plain", ports)).await.unwrap();
    let status = runtime.client.pod(&pod.id).await.unwrap().status.unwrap();
    let own = status.network.unwrap().ip;
    // Another process may have port 8080 of other addresses.
    let script = TCP.replace("LocalPort", &format!("LocalAddr => \"{own}\", LocalPort"));
    serve(&pod, &script).await;
    let answer = send_request(address("127.0.0.1", port), "hello\n").await;
    assert_eq!(answer.unwrap(), "tcp: hello\n");
}

/// Without SCTP in the kernel the pod is rejected with that reason.
#[tokio::test]
async fn sctp_host_port_requires_kernel_support() {
    let runtime = Runtime::start().await.unwrap();
    let ports = vec![mapping(v1::Protocol::Sctp, "127.0.0.1", free_port())];
    let made = runtime.client.run_pod(with_ports(&runtime, "sctp", ports)).await;
    let protocols = std::fs::read_to_string("/proc/net/protocols").unwrap();
    if protocols.lines().any(|line| line.starts_with("SCTP ")) {
        made.unwrap();
    } else if let Err(refused) = made {
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains("does not have SCTP"), "{refused}");
    }
}

/// Below the kernel's ephemeral ports, so that only a test with the same address could use one.
const FIRST: u16 = 20_000;

#[rstest]
#[case::few("127.76.0.6", 6)]
#[case::more_than_old_message("127.76.0.60", 60)]
#[case::more_than_any_message("127.76.1.44", 300)]
#[tokio::test]
async fn every_host_port_forwards_to_pod(#[case] host: &str, #[case] count: u16) {
    harness::needs!(Namespaces);
    let runtime = Runtime::start().await.unwrap();
    let protocols = [v1::Protocol::Tcp, v1::Protocol::Udp];
    let ports = (FIRST..FIRST + count)
        .flat_map(|port| protocols.map(|protocol| mapping(protocol, host, port)))
        .collect();
    let run = Pod::run(&runtime.client, with_ports(&runtime, "many", ports));
    let pod = tokio::time::timeout(WAIT_LIMIT, run).await.unwrap().unwrap();
    serve(&pod, TCP).await;
    pod.start_ready(pod.script("udp", UDP)).await.unwrap();

    let address = |port: u16| SocketAddr::new(host.parse().unwrap(), port);
    for port in FIRST..FIRST + count {
        let answer = send_request(address(port), &format!("{port}\n")).await;
        assert_eq!(answer.unwrap(), format!("tcp: {port}\n"));
    }
    let client = UdpSocket::bind("127.0.0.1:0").unwrap();
    client.set_read_timeout(Some(WAIT_LIMIT)).unwrap();
    let mut answers = BTreeSet::new();
    for port in FIRST..FIRST + count {
        let (text, mut buffer) = (format!("{port}"), [0; 100]);
        client.send_to(text.as_bytes(), address(port)).unwrap();
        let (length, from) = client.recv_from(&mut buffer).unwrap();
        assert_eq!(from, address(port));
        answers.insert(String::from_utf8_lossy(&buffer[..length]).into_owned());
    }
    assert_eq!(answers.len(), usize::from(count));
    runtime.client.remove_pod(&pod.id).await.unwrap();
}
