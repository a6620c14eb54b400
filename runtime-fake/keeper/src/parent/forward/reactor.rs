//! The forwarder's event loop: one thread, one epoll instance, and one buffer for all connections.

use std::{
    io::{self, Write as _},
    net::{IpAddr, Ipv6Addr},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use nix::{
    errno::Errno,
    poll::PollTimeout,
    sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags},
};

use rustix::process::{Resource, getrlimit};
use shares::Shares;

/// Connections and flows of all ports, at most.
const CONNECTIONS: u64 = 16_384;
const FLOWS: u64 = 4096;
/// The longest UDP datagram.
const BUFFER: usize = 65536;
/// The maximum number of events of one epoll_wait.
const EVENTS: usize = 256;

/// The tokens of the sockets of one port; the first one is the listening socket's.
pub(super) type Tokens = std::iter::StepBy<std::ops::RangeFrom<u64>>;

/// A listening socket and the connections accepted from it.
pub(super) trait Port {
    /// Handles the readiness of a socket, which may be closed by now.
    fn ready(&mut self, token: u64, reactor: &mut Reactor);
    /// Closes a connection or flow to make room for another one.
    fn end(&mut self, token: u64, reactor: &mut Reactor);
    /// Closes connections and flows that have timed out, and sets the next deadline.
    fn expire(&mut self, now: Instant, reactor: &mut Reactor);
}

/// The state that the ports share.
pub(super) struct Reactor {
    epoll: Epoll,
    /// The earliest deadline of all ports.
    deadline: Option<Instant>,
    /// Sockets with data left when their turn was over.
    unfinished: Vec<u64>,
    pub(super) buffer: Box<[u8]>,
    /// The slots of all ports, which hold tokens.
    pub(super) connections: Pool,
    pub(super) flows: Pool,
    /// Tokens of the connections and flows that end to make room for others.
    ended: Vec<u64>,
}

/// Slots that the clients share.
pub(super) type Pool = Shares<IpAddr, u64>;

impl Reactor {
    /// Flows get a quarter of the descriptors, and connections two quarters, because each has two descriptors.
    pub(super) fn new() -> io::Result<Self> {
        let quarter = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX) / 4;
        let pool = |most| Shares::new(quarter.saturating_sub(8).min(most) as usize);
        Ok(Self {
            connections: pool(CONNECTIONS),
            flows: pool(FLOWS),
            ended: Vec::new(),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            deadline: None,
            unfinished: Vec::new(),
            buffer: vec![0; BUFFER].into(),
        })
    }

    /// Serves the ports. `token % ports.len()` is the index of a token's port.
    pub(super) fn run(mut self, ports: &mut [Box<dyn Port>]) -> io::Result<()> {
        loop {
            self.turn(ports)?;
        }
    }

    /// Waits for events and handles them.
    pub(super) fn turn(&mut self, ports: &mut [Box<dyn Port>]) -> io::Result<()> {
        let count = ports.len() as u64;
        for token in self.wait()? {
            ports[(token % count) as usize].ready(token, self);
            while let Some(token) = self.ended.pop() {
                ports[(token % count) as usize].end(token, self);
            }
        }
        let now = Instant::now();
        if self.deadline.take_if(|deadline| *deadline <= now).is_some() {
            for port in &mut *ports {
                port.expire(now, self);
            }
        }
        Ok(())
    }

    fn wait(&mut self) -> io::Result<Vec<u64>> {
        let mut ready = std::mem::take(&mut self.unfinished);
        let timeout = match self.deadline {
            _ if !ready.is_empty() => PollTimeout::ZERO,
            None => PollTimeout::NONE,
            Some(deadline) => {
                // Rounded up, so that epoll_wait does not return just before the deadline.
                let left = deadline.saturating_duration_since(Instant::now());
                PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX)
            }
        };
        let mut events = [EpollEvent::empty(); EVENTS];
        match self.epoll.wait(&mut events, timeout) {
            Ok(count) => ready.extend(events[..count].iter().map(EpollEvent::data)),
            Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(ready)
    }

    /// Polls a socket for datagrams (level-triggered).
    pub(super) fn watch_datagrams(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        self.watch(socket, token, EpollFlags::EPOLLIN)
    }

    /// Polls a socket for changes (edge-triggered): its port uses it until it would block, or calls [`Self::resume`].
    pub(super) fn watch_changes(&self, socket: impl AsFd, token: u64) -> io::Result<()> {
        let both = EpollFlags::EPOLLIN | EpollFlags::EPOLLOUT;
        self.watch(socket, token, both | EpollFlags::EPOLLET)
    }

    /// Adds a socket to epoll; closing the socket removes it.
    fn watch(&self, socket: impl AsFd, token: u64, events: EpollFlags) -> io::Result<()> {
        Ok(self.epoll.add(socket, EpollEvent::new(events, token))?)
    }

    /// Takes a slot for a client's connection or flow. The slot may be another one's, which then ends.
    pub(super) fn take(
        &mut self,
        pool: fn(&mut Self) -> &mut Pool,
        client: IpAddr,
        token: u64,
    ) -> Option<u64> {
        let now = Instant::now();
        let taken = pool(self).take(counted(client), token, now);
        if let Some(refused) = pool(self).report(now) {
            // Standard error is the sandbox's keeper.log.
            let _ = writeln!(io::stderr(), "host port pool is full: {refused}");
        }
        let (slot, ended) = taken?;
        self.ended.extend(ended);
        Some(slot)
    }

    /// Ends a connection because no descriptor is free.
    pub(super) fn evict_connection(&mut self) {
        self.ended.extend(self.connections.evict());
    }

    /// Gives a socket another turn, after the sockets that are ready.
    pub(super) fn resume(&mut self, token: u64) {
        self.unfinished.push(token);
    }

    /// Calls [`Port::expire`] at this time, or earlier.
    pub(super) fn wake_at(&mut self, time: Instant) {
        self.deadline = Some(self.deadline.map_or(time, |deadline| deadline.min(time)));
    }

    /// As [`Self::wake_at`]; returns the time.
    pub(super) fn wake_after(&mut self, delay: Duration) -> Instant {
        let time = Instant::now() + delay;
        self.wake_at(time);
        time
    }
}

/// The client that a connection or flow counts for. One host has all public IPv6 addresses of a network of 64 bits if it wants, so
/// they count together. Pods have addresses of their own, which are not public by default.
fn counted(client: IpAddr) -> IpAddr {
    const NETWORK: u128 = !(u64::MAX as u128);
    match client {
        IpAddr::V6(address) if address.segments()[0] >> 13 == 1 => {
            Ipv6Addr::from_bits(address.to_bits() & NETWORK).into()
        }
        IpAddr::V4(_) | IpAddr::V6(_) => client,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::ipv4("192.0.2.7", "192.0.2.7")]
    #[case::public("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::")]
    #[case::another_of_its_network("2001:db8:1:2::1", "2001:db8:1:2::")]
    #[case::another_network("2001:db8:1:3::1", "2001:db8:1:3::")]
    #[case::pod("fd00:1:2:3::5", "fd00:1:2:3::5")]
    #[case::local("fe80::1", "fe80::1")]
    #[case::loopback("::1", "::1")]
    fn public_addresses_of_one_network_count_together(#[case] client: &str, #[case] want: &str) {
        let [client, want]: [IpAddr; 2] = [client, want].map(|address| address.parse().unwrap());
        assert_eq!(counted(client), want);
    }
}
