//! UDP: each client has its own socket towards the pod, so that answers reach it.

use std::{
    collections::HashMap,
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    os::fd::OwnedFd,
    time::Instant,
};

use super::reactor::{Port, Reactor, Tokens};

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
    slot: u64,
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
        Ok(Self { socket, target, token, tokens, flows: HashMap::new(), clients: HashMap::new() })
    }

    /// The flow of a client, created on its first datagram.
    fn flow(&mut self, client: SocketAddr, reactor: &mut Reactor) -> Option<&mut Flow> {
        if let Some(token) = self.clients.get(&client) {
            return self.flows.get_mut(token);
        }
        let token = self.tokens.next()?;
        let pod = connect(self.target).ok()?;
        reactor.watch_datagrams(&pod, token).ok()?;
        let slot = reactor.take(|reactor| &mut reactor.flows, client.ip(), token)?;
        reactor.flows.expiry(slot).into_iter().for_each(|time| reactor.wake_at(time));
        self.clients.insert(client, token);
        Some(self.flows.entry(token).or_insert(Flow { client, pod, slot }))
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
                reactor.flows.record_request(flow.slot, false, Instant::now());
                let _ = flow.pod.send(&reactor.buffer[..length]);
            }
        } else if let Some(flow) = self.flows.get_mut(&token)
            && let Ok(length) = flow.pod.recv(&mut reactor.buffer)
        {
            reactor.flows.record_response(flow.slot, Instant::now());
            let _ = self.socket.send_to(&reactor.buffer[..length], flow.client);
        }
    }

    fn end(&mut self, token: u64, reactor: &mut Reactor) {
        if let Some(flow) = self.flows.remove(&token) {
            self.clients.remove(&flow.client);
            reactor.flows.release(flow.slot);
        }
    }

    fn expire(&mut self, now: Instant, reactor: &mut Reactor) {
        let times =
            self.flows.iter().map(|(token, flow)| (*token, reactor.flows.expiry(flow.slot)));
        for (token, time) in times.collect::<Vec<_>>() {
            match time.filter(|time| *time > now) {
                Some(time) => reactor.wake_at(time),
                None => self.end(token, reactor),
            }
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn flows_are_shared_and_expire_in_silence() {
        let mut reactor = Reactor::new().unwrap();
        reactor.flows = shares::Shares::new(100);
        let [socket, pod] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (address, target) = (socket.local_addr().unwrap(), pod.local_addr().unwrap());
        let tokens = (0..).step_by(1);
        let port = DatagramPort::new(socket.into(), target, tokens, &reactor).unwrap();
        let mut ports: [Box<dyn Port>; 1] = [Box::new(port)];
        let mut buffer = [0; 9];
        // Each client port gets its answer, and another client's flows remain.
        let other = UdpSocket::bind("127.0.0.2:0").unwrap();
        for number in 0..300 {
            let own = UdpSocket::bind("127.0.0.1:0").unwrap();
            let client = if number % 100 == 0 { &other } else { &own };
            client.send_to(&[number as u8], address).unwrap();
            reactor.turn(&mut ports).unwrap();
            let (length, from) = pod.recv_from(&mut buffer).unwrap();
            pod.send_to(&buffer[..length], from).unwrap();
            reactor.turn(&mut ports).unwrap();
            client.recv_from(&mut buffer).unwrap();
            assert_eq!(buffer[0], number as u8);
        }
        assert_eq!(reactor.flows.len(), 100);
        let later = |seconds| Instant::now() + Duration::from_secs(seconds);
        ports[0].expire(later(100), &mut reactor);
        assert_eq!(reactor.flows.len(), 100);
        ports[0].expire(later(120), &mut reactor);
        assert_eq!(reactor.flows.len(), 0);
    }
}
