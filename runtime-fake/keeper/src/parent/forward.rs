//! The forwarder of a pod's host ports: a process that the keeper forks for the pod.
//!
//! Its sockets listen in the host's network namespace, where the daemon made them. The process itself lives in the pod's network
//! namespace, and so reaches the pod whatever its network is, even without one. It exits with the keeper. It does not inspect the
//! data. The pod sees its own address as the client's. On the bridge, packet rules forward traffic from other machines without
//! this process, and keep the client's address.

mod datagrams;
mod reactor;
mod streams;

use std::{
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
};

use datagrams::DatagramPort;
use reactor::{Port, Reactor};
use streams::StreamPort;

use crate::contract::plan::{ForwardPlan, Transport};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};

/// Forks the forwarder; it exits with this process.
pub(crate) fn start(plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> Step {
    if plan.sockets.len() != sockets.len() || plan.addresses.is_empty() {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "{} sockets came for {} host ports of a pod with {} addresses",
                sockets.len(),
                plan.sockets.len(),
                plan.addresses.len()
            ),
        ));
    }
    match sys::fork(0).context("start the forwarder of the pod's host ports")? {
        Fork::Parent(_) => Ok(()),
        Fork::Child => {
            let result = run(plan, sockets);
            // Standard error is the sandbox's keeper.log.
            let text = match result {
                Ok(()) => "the forwarder of host ports ended\n".to_owned(),
                Err(error) => format!("the forwarder of host ports failed: {error}\n"),
            };
            let _ = std::io::Write::write_all(&mut std::io::stderr(), text.as_bytes());
            std::process::exit(1)
        }
    }
}

fn run(plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
    sys::die_with_parent()?;
    let _ = rustix::thread::set_name(c"crib-forward");
    // Close the keeper's pipes and sockets, including its listening one: they must close when the keeper exits.
    let mut keep: Vec<i32> = sockets.iter().map(|socket| socket.as_raw_fd()).collect();
    sys::close_others(&mut keep);
    rustix::stdio::dup2_stdin(std::fs::File::open("/dev/null")?)?;
    sys::reset_signals();
    serve(plan, sockets)
}

/// Returns only on an error.
fn serve(plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
    serve_with(Reactor::new()?, plan, sockets)
}

fn serve_with(reactor: Reactor, plan: &ForwardPlan, sockets: Vec<OwnedFd>) -> std::io::Result<()> {
    let count = sockets.len();
    let mut ports: Vec<Box<dyn Port>> = Vec::new();
    for ((socket, forward), index) in sockets.into_iter().zip(&plan.sockets).zip(0..) {
        let tokens = (index..).step_by(count);
        let targets = targets(&plan.addresses, forward.ipv6);
        ports.push(match forward.transport {
            Transport::Tcp | Transport::Sctp => {
                let port = StreamPort::new(socket, *forward, targets, tokens, &reactor)?;
                Box::new(port)
            }
            Transport::Udp => {
                let target = SocketAddr::new(targets[0], forward.port);
                Box::new(DatagramPort::new(socket, target, tokens, &reactor)?)
            }
        });
    }
    reactor.run(&mut ports)
}

/// The pod's addresses in the order of the attempts: the client's address family first.
fn targets(addresses: &[IpAddr], ipv6: bool) -> Vec<IpAddr> {
    let (same, other): (Vec<IpAddr>, Vec<IpAddr>) =
        addresses.iter().copied().partition(|address| address.is_ipv6() == ipv6);
    [same, other].concat()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{
        io::{ErrorKind, Read as _, Write as _},
        net::{Shutdown, TcpListener, TcpStream, UdpSocket},
        thread,
    };

    use rustix::process::{Resource, getrlimit, setrlimit};

    use super::*;
    use crate::contract::plan::Forward;

    /// Forwards a new loopback port to `port`; returns the new port's address.
    fn forwarded(transport: Transport, port: u16) -> SocketAddr {
        let (address, socket): (_, OwnedFd) = match transport {
            Transport::Udp => {
                let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
                (socket.local_addr().unwrap(), socket.into())
            }
            Transport::Tcp | Transport::Sctp => {
                let socket = TcpListener::bind("127.0.0.1:0").unwrap();
                (socket.local_addr().unwrap(), socket.into())
            }
        };
        let plan = ForwardPlan {
            sockets: vec![Forward { transport, ipv6: false, port }],
            // The first address has no listener.
            addresses: match transport {
                Transport::Udp => vec![[127, 0, 0, 1].into()],
                Transport::Tcp | Transport::Sctp => {
                    vec![[127, 9, 9, 9].into(), [127, 0, 0, 1].into()]
                }
            },
        };
        thread::spawn(move || serve(&plan, vec![socket]));
        address
    }

    #[test]
    fn forward_tries_address_family_of_client_first() {
        let addresses: Vec<IpAddr> = ["10.0.0.2", "fd00::2"].map(|a| a.parse().unwrap()).into();
        assert_eq!(targets(&addresses, false), addresses);
        assert_eq!(targets(&addresses, true), [addresses[1], addresses[0]]);
        assert_eq!(targets(&addresses[..1], true), addresses[..1]);
    }

    #[test]
    fn thousand_connections_are_served_at_once_with_half_close() {
        let mut limit = getrlimit(Resource::Nofile);
        limit.current = limit.maximum;
        setrlimit(Resource::Nofile, limit).unwrap();
        let pod = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = forwarded(Transport::Tcp, pod.local_addr().unwrap().port());
        let pairs: Vec<(TcpStream, TcpStream)> = (0..1000)
            .map(|_| (TcpStream::connect(address).unwrap(), pod.accept().unwrap().0))
            .collect();
        for (client, pod) in &pairs {
            let (mut client, mut pod, mut text) = (client, pod, String::new());
            client.write_all(b"question").unwrap();
            client.shutdown(Shutdown::Write).unwrap();
            pod.read_to_string(&mut text).unwrap();
            pod.write_all(b", answer").unwrap();
            pod.shutdown(Shutdown::Write).unwrap();
            client.read_to_string(&mut text).unwrap();
            assert_eq!(text, "question, answer");
        }
    }

    #[test]
    fn bytes_wait_for_slow_receiver_in_both_directions() {
        let pod = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = forwarded(Transport::Tcp, pod.local_addr().unwrap().port());
        let client = TcpStream::connect(address).unwrap();
        let (pod, _) = pod.accept().unwrap();
        let sent: Vec<u8> = (0..20_000_000u32).map(|number| number as u8).collect();
        // Neither peer reads before both directions block.
        let filled = [(&client, &pod), (&pod, &client)].map(|(mut to, from)| {
            to.set_nonblocking(true).unwrap();
            let mut length = 0;
            while let Ok(more) = to.write(&sent[length..]) {
                length += more;
            }
            to.set_nonblocking(false).unwrap();
            (to, from, &sent[length..])
        });
        thread::scope(|scope| {
            for (mut to, mut from, rest) in filled {
                scope.spawn(move || {
                    to.write_all(rest).unwrap();
                    to.shutdown(Shutdown::Write).unwrap();
                });
                let sent = &sent;
                scope.spawn(move || {
                    let mut received = Vec::new();
                    from.read_to_end(&mut received).unwrap();
                    assert!(received == *sent);
                });
            }
        });
    }

    #[test]
    fn client_sees_reset_when_pod_refuses_or_resets() {
        let pod = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = forwarded(Transport::Tcp, pod.local_addr().unwrap().port());
        let mut client = TcpStream::connect(address).unwrap();
        let (accepted, _) = pod.accept().unwrap();
        rustix::net::sockopt::set_socket_linger(&accepted, Some(std::time::Duration::ZERO))
            .unwrap();
        drop((accepted, pod));
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        let mut client = TcpStream::connect(address).unwrap();
        let error = client.read(&mut [0]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    }

    /// Connects from this loopback address.
    fn connected_from(address: [u8; 4], to: SocketAddr) -> TcpStream {
        use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        bind(&socket, &SocketAddr::from((address, 0))).unwrap();
        connect(&socket, &to).unwrap();
        socket.into()
    }

    #[test]
    fn forward_limits_each_client_to_its_share() {
        let pod = TcpListener::bind("127.0.0.1:0").unwrap();
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let plan = ForwardPlan {
            sockets: vec![Forward {
                transport: Transport::Tcp,
                ipv6: false,
                port: pod.local_addr().unwrap().port(),
            }],
            addresses: vec![[127, 0, 0, 1].into()],
        };
        thread::spawn(move || {
            let mut reactor = Reactor::new().unwrap();
            reactor.connections = shares::Shares::new(8);
            serve_with(reactor, &plan, vec![socket.into()])
        });
        // A connection counts as established when bytes have passed.
        let established = |from| {
            let (mut client, mut server) = (connected_from(from, address), pod.accept().unwrap().0);
            server.write_all(b"x").unwrap();
            client.read_exact(&mut [0]).unwrap();
            (client, server)
        };
        let greedy = [(); 8].map(|()| established([127, 0, 0, 2]));
        let refused = connected_from([127, 0, 0, 2], address).read(&mut [0]).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ConnectionReset);
        // Others get half of them, and the oldest ones of the first client are reset for that.
        let mut others = Vec::new();
        for (client, server) in &greedy[..4] {
            others.push(established([127, 0, 0, 3]));
            for mut end in [client, server] {
                assert_eq!(end.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
            }
        }
        for (mut client, mut server) in greedy[4..].iter().map(|(client, server)| (client, server))
        {
            client.write_all(b"x").unwrap();
            server.read_exact(&mut [0]).unwrap();
        }
    }

    #[test]
    fn forward_returns_datagrams_to_their_clients() {
        let pod = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = forwarded(Transport::Udp, pod.local_addr().unwrap().port());
        let clients = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let mut buffer = [0; 9];
        for round in 0..3u8 {
            for (number, client) in (0..).zip(&clients) {
                client.send_to(&[number, round], address).unwrap();
                let (length, from) = pod.recv_from(&mut buffer).unwrap();
                pod.send_to(&buffer[..length], from).unwrap();
            }
            for (number, client) in (0..).zip(&clients) {
                assert_eq!(client.recv_from(&mut buffer).unwrap(), (2, address));
                assert_eq!(buffer[..2], [number, round]);
            }
        }
    }
}
