//! Host ports of rootless pods, with each egress program.

use std::net::Ipv4Addr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

use super::{needs_of, rootless_by};
use crate::networking::host_ports::free_port;
use crate::support::*;

/// Responds over TCP and UDP, each with its name.
const SERVER: &str = r#"exec perl -MIO::Socket::INET -MIO::Select -e '
    my $tcp = IO::Socket::INET->new(Listen => 5, LocalPort => 8080) or die "listen: $!";
    my $udp = IO::Socket::INET->new(Proto => "udp", LocalPort => 8080) or die "bind: $!";
    my $all = IO::Select->new($tcp, $udp);
    $| = 1; print "ready\n";
    for (;;) { for my $ready ($all->can_read) {
        if ($ready == $udp) { $udp->recv(my $text, 2000); $udp->send("udp: $text"); next }
        my $client = $tcp->accept; my $text = <$client>; print $client "tcp: $text"; close $client;
    } }'"#;

fn mapping(protocol: v1::Protocol, host_port: u16) -> v1::PortMapping {
    v1::PortMapping {
        protocol: protocol.into(),
        container_port: 8080,
        host_port: host_port.into(),
        host_ip: String::new(),
    }
}

#[rstest]
#[tokio::test]
async fn host_ports_of_rootless_pods_answer_beside_each_way_out(
    #[values("pasta", "slirp4netns", "crib", "none")] program: &str,
) {
    harness::needs!(..&needs_of(program));
    let runtime = rootless_by(program).start().await.unwrap();
    let port = free_port();
    let mut config = runtime.sandbox("server");
    config.port_mappings =
        [v1::Protocol::Tcp, v1::Protocol::Udp].map(|protocol| mapping(protocol, port)).into();
    let pod = Pod::run(&runtime.client, config).await.unwrap();
    pod.start_ready(pod.script("server", SERVER)).await.unwrap();

    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).await.unwrap();
    stream.write_all(b"question\n").await.unwrap();
    let mut answer = String::new();
    let read = timeout(WAIT_LIMIT, stream.read_to_string(&mut answer)).await;
    read.unwrap().unwrap();
    assert_eq!(answer, "tcp: question\n");

    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    socket.send_to(b"question", (Ipv4Addr::LOCALHOST, port)).await.unwrap();
    let mut answer = [0; 100];
    let received = timeout(WAIT_LIMIT, socket.recv_from(&mut answer)).await;
    let (length, from) = received.unwrap().unwrap();
    assert_eq!((&answer[..length], from.port()), (&b"udp: question"[..], port));
}
