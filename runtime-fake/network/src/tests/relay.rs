//! crib's own relay, in a namespace of the test, to servers on the loopback interface of the host.

use std::{
    collections::BTreeMap,
    fs,
    io::{ErrorKind, PipeReader, Read as _, Write as _},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::{AsFd as _, OwnedFd},
    thread,
    time::Duration,
};

use super::{Pod, inside, open, with_namespace};
use crate::{Bridge, EGRESS_HOST, Nat, egress::start_relay};

/// Far longer than any answer takes.
const LIMIT: Duration = Duration::from_secs(30);

/// Runs the body in a pod whose bridge has a relay.
fn with_pod(test: &str, body: impl FnOnce(&Pod)) {
    with_namespace(&format!("relay::{test}"), |namespace| {
        let bridge = open("relayed0", &namespace);
        let (_nat, _ended, pod) = relayed(&bridge, &namespace);
        body(&pod);
    });
}

/// The masquerading rules for installed programs exist too.
fn relayed(bridge: &Bridge, namespace: &OwnedFd) -> (Nat, PipeReader, Pod) {
    let subnet = (bridge.subnet().network(), bridge.subnet().prefix_len());
    let nat = inside(namespace, || {
        fs::write("/proc/sys/net/ipv4/ip_forward", "1").unwrap();
        Nat::open(bridge.name(), &[(subnet.0.into(), subnet.1)], BTreeMap::new())
    });
    assert!(nat.is_applied());
    let ended = start_relay(namespace.as_fd(), bridge.name(), &[subnet]).unwrap();
    (nat, ended, Pod::attached(bridge, "sandbox"))
}

/// The address of a port of the host, as pods see it.
fn at_host(port: u16) -> SocketAddr {
    (EGRESS_HOST, port).into()
}

fn connect(pod: &Pod, port: u16) -> std::io::Result<TcpStream> {
    let stream = inside(&pod.netns, || TcpStream::connect(at_host(port)))?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    Ok(stream)
}

fn listener() -> (TcpListener, u16) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}

/// A port of the host's loopback interface without a listener.
fn closed_port() -> u16 {
    listener().1
}

#[test]
fn stream_keeps_its_bytes_and_half_closes() {
    with_pod("stream_keeps_its_bytes_and_half_closes", |pod| {
        let (listener, port) = listener();
        // Longer than all buffers on the path; the period is not a power of two.
        let sent: Vec<u8> = (0..40_000_000_u32).map(|n| (n % 251) as u8).collect();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut received = Vec::new();
            stream.read_to_end(&mut received).unwrap();
            received.reverse();
            stream.write_all(&received).unwrap();
        });
        let mut stream = connect(pod, port).unwrap();
        stream.write_all(&sent).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        server.join().unwrap();
        answer.reverse();
        assert!(answer == sent, "{} bytes of {}", answer.len(), sent.len());
    });
}

#[test]
fn connection_to_closed_port_is_refused() {
    with_pod("connection_to_closed_port_is_refused", |pod| {
        let error = connect(pod, closed_port()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

#[test]
fn reset_passes_in_both_directions() {
    with_pod("reset_passes_in_both_directions", |pod| {
        let (listener, port) = listener();
        let client = connect(pod, port).unwrap();
        let (server, _) = listener.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&server, Some(Duration::ZERO)).unwrap();
        drop(server);
        let error = (&client).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);

        let client = connect(pod, port).unwrap();
        let (server, _) = listener.accept().unwrap();
        server.set_read_timeout(Some(LIMIT)).unwrap();
        rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO)).unwrap();
        drop(client);
        let error = (&server).read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    });
}

#[test]
fn relay_answers_datagrams_from_their_destination() {
    with_pod("relay_answers_datagrams_from_their_destination", |pod| {
        let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = server.local_addr().unwrap().port();
        let client = inside(&pod.netns, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let client = client.unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(LIMIT)).unwrap();
        }
        let mut buffer = vec![0; 65_535];
        // The largest one arrives in several packets.
        for length in [0, 1, 1400, 65_000, 65_503] {
            let sent: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
            client.send_to(&sent, at_host(port)).unwrap();
            let (received, from) = server.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[..received], sent);
            // An answer has to fit in one packet.
            let answer = &sent[..length.min(65_492)];
            server.send_to(answer, from).unwrap();
            let (received, from) = client.recv_from(&mut buffer).unwrap();
            assert_eq!((&buffer[..received], from), (answer, at_host(port)));
        }
    });
}

#[test]
fn datagram_to_closed_port_is_refused() {
    with_pod("datagram_to_closed_port_is_refused", |pod| {
        let client = inside(&pod.netns, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)));
        let client = client.unwrap();
        client.set_read_timeout(Some(LIMIT)).unwrap();
        client.connect(at_host(closed_port())).unwrap();
        client.send(b"question").unwrap();
        let error = client.recv(&mut [0; 16]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
    });
}

/// Concurrent connections do not mix their data.
#[test]
fn concurrent_connections_keep_their_own_data() {
    with_pod("concurrent_connections_keep_their_own_data", |pod| {
        const CONNECTIONS: u32 = 100;
        let (listener, port) = listener();
        let server = thread::spawn(move || {
            let mut clients: Vec<_> =
                (0..CONNECTIONS).map(|_| listener.accept().unwrap().0).collect();
            for client in &mut clients {
                let mut word = [0; 4];
                client.read_exact(&mut word).unwrap();
                client.write_all(&word).unwrap();
            }
        });
        let mut clients: Vec<_> = (0..CONNECTIONS).map(|_| connect(pod, port).unwrap()).collect();
        for (number, client) in clients.iter_mut().enumerate() {
            client.write_all(&(number as u32).to_be_bytes()).unwrap();
        }
        for (number, client) in clients.iter_mut().enumerate() {
            let mut word = [0; 4];
            client.read_exact(&mut word).unwrap();
            assert_eq!(u32::from_be_bytes(word), number as u32);
        }
        server.join().unwrap();
    });
}
