//! UDP: each client has its own socket towards the pod, so that answers reach it.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use super::reactor::{Port, Reactor, Tokens};

/// How long a flow without datagrams in either direction is kept, as in conntrack.
const SILENCE: Duration = Duration::from_secs(120);
/// The most flows at once; datagrams of further clients are dropped. Each flow takes a descriptor.
const FLOWS: usize = 512;

/// A host port's socket, and its flows.
pub(super) struct DatagramPort {
    socket: UdpSocket,
    target: SocketAddr,
    token: u64,
    tokens: Tokens,
    flows: HashMap<u64, Flow>,
    clients: HashMap<SocketAddr, u64>,
}

struct Flow {
    client: SocketAddr,
    pod: UdpSocket,
    last: Instant,
}

impl DatagramPort {
    pub(super) fn new(
        socket: OwnedFd,
        target: SocketAddr,
        mut tokens: Tokens,
        reactor: &Reactor,
    ) -> io::Result<Self> {
        let socket = UdpSocket::from(socket);
        socket.set_nonblocking(true)?;
        let token = tokens.next().unwrap_or_default();
        reactor.watch_datagrams(&socket, token)?;
        Ok(Self {
            socket,
            target,
            token,
            tokens,
            flows: HashMap::new(),
            clients: HashMap::new(),
        })
    }

    /// The flow of a client, created on its first datagram.
    fn flow(&mut self, client: SocketAddr, reactor: &mut Reactor) -> Option<&mut Flow> {
        if let Some(token) = self.clients.get(&client) {
            return self.flows.get_mut(token);
        }
        if self.flows.len() >= FLOWS {
            return None;
        }
        let token = self.tokens.next()?;
        let pod = connect(self.target).ok()?;
        reactor.watch_datagrams(&pod, token).ok()?;
        reactor.wake_after(SILENCE);
        self.clients.insert(client, token);
        let last = Instant::now();
        Some(
            self.flows
                .entry(token)
                .or_insert(Flow { client, pod, last }),
        )
    }
}

impl Port for DatagramPort {
    // An error of recv(2) refers to an earlier datagram that was refused; the next one may be accepted. A datagram that
    // the kernel cannot send is lost, as UDP allows.
    fn ready(&mut self, token: u64, reactor: &mut Reactor) {
        if token == self.token {
            if let Ok((length, client)) = self.socket.recv_from(&mut reactor.buffer)
                && let Some(flow) = self.flow(client, reactor)
            {
                flow.last = Instant::now();
                let _ = flow.pod.send(&reactor.buffer[..length]);
            }
        } else if let Some(flow) = self.flows.get_mut(&token)
            && let Ok(length) = flow.pod.recv(&mut reactor.buffer)
        {
            flow.last = Instant::now();
            let _ = self.socket.send_to(&reactor.buffer[..length], flow.client);
        }
    }

    fn expire(&mut self, now: Instant, reactor: &mut Reactor) {
        for (_, flow) in self.flows.extract_if(|_, flow| flow.last + SILENCE <= now) {
            self.clients.remove(&flow.client);
        }
        for flow in self.flows.values() {
            reactor.wake_at(flow.last + SILENCE);
        }
    }
}

fn connect(target: SocketAddr) -> io::Result<UdpSocket> {
    let any: IpAddr = match target {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let pod = UdpSocket::bind((any, 0))?;
    pod.connect(target)?;
    pod.set_nonblocking(true)?;
    Ok(pod)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn flows_are_limited_and_expire_in_silence() {
        let mut reactor = Reactor::new().unwrap();
        let [socket, pod] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (address, target) = (socket.local_addr().unwrap(), pod.local_addr().unwrap());
        let tokens = (0..).step_by(1);
        let mut port = DatagramPort::new(socket.into(), target, tokens, &reactor).unwrap();
        for number in 0..=FLOWS as u32 {
            let own = Ipv4Addr::from_bits(0x7f01_0001 + number);
            let client = UdpSocket::bind((own, 0)).unwrap();
            client.send_to(b"x", address).unwrap();
            port.ready(port.token, &mut reactor);
        }
        assert_eq!(port.flows.len(), FLOWS);
        let (first, now) = (port.tokens.next().unwrap() - FLOWS as u64, Instant::now());
        port.flows.get_mut(&first).unwrap().last = now + SILENCE / 2;
        port.expire(now + SILENCE, &mut reactor);
        assert_eq!((port.flows.len(), port.clients.len()), (1, 1));
        port.expire(now + 2 * SILENCE, &mut reactor);
        assert_eq!((port.flows.len(), port.clients.len()), (0, 0));
    }
}
