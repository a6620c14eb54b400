//! TCP connections, and SCTP ones, whose bytes are moved in the same way.

use std::{
    collections::HashMap,
    io::{self, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, RecvFlags, SocketFlags, SocketType, ipproto, recv, socket_with, sockopt},
};

use super::reactor::{Port, Reactor, Tokens};
use crate::contract::plan::{Forward, Transport};

/// How long a connection attempt to the pod may take; a closed port refuses immediately.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long accepting pauses when the process has no free descriptor.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// Limit on the reads and writes of one direction before other connections get their turn.
const TURN: usize = 32;

/// A listening socket and its connections.
pub(super) struct StreamPort {
    listener: TcpListener,
    forward: Forward,
    targets: Vec<IpAddr>,
    token: u64,
    tokens: Tokens,
    connections: HashMap<u64, Connection>,
    /// When accepting is retried after an error.
    retry: Option<Instant>,
}

struct Connection {
    client: TcpStream,
    pod: TcpStream,
    /// Set until the pod accepts.
    dialing: Option<Dialing>,
    slot: u64,
    /// Whose end of stream has been passed on: the client's, and the pod's.
    ended: [bool; 2],
}

struct Dialing {
    deadline: Instant,
    /// The number of tried targets.
    tried: usize,
}

impl StreamPort {
    pub(super) fn new(
        listener: OwnedFd,
        forward: Forward,
        targets: Vec<IpAddr>,
        mut tokens: Tokens,
        reactor: &Reactor,
    ) -> io::Result<Self> {
        let listener = TcpListener::from(listener);
        listener.set_nonblocking(true)?;
        let token = tokens.next().unwrap_or_default();
        reactor.watch_changes(&listener, token)?;
        Ok(Self {
            listener,
            forward,
            targets,
            token,
            tokens,
            connections: HashMap::new(),
            retry: None,
        })
    }

    fn accept(&mut self, reactor: &mut Reactor) {
        match unblocked(self.listener.accept()) {
            Ok(Some((client, peer))) => {
                reactor.resume(self.token);
                let Some(token) = self.tokens.next() else {
                    return;
                };
                let slot = reactor.take(|reactor| &mut reactor.connections, peer.ip(), token);
                match slot.filter(|_| client.set_nonblocking(true).is_ok()) {
                    Some(slot) => self.dial(token, client, slot, 0, reactor),
                    None => reset(&client),
                }
            }
            Ok(None) => {}
            // The client has disconnected, or no descriptor is free.
            Err(error) => {
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    reactor.evict_connection();
                }
                self.retry = Some(reactor.wake_after(EXHAUSTED));
            }
        }
    }

    /// Starts to connect a client to the next untried address of the pod.
    fn dial(
        &mut self,
        token: u64,
        client: TcpStream,
        slot: u64,
        tried: usize,
        reactor: &mut Reactor,
    ) {
        let mut untried = self.targets.iter().enumerate().skip(tried);
        let connecting = untried.find_map(|(index, target)| {
            let pod = connect(self.forward, *target).ok()?;
            reactor.watch_changes(&pod, token).ok()?;
            Some((pod, index + 1))
        });
        let Some((pod, tried)) = connecting else {
            // The client sees a reset, as from a closed port of the pod, not an orderly end.
            reactor.connections.release(slot);
            return reset(&client);
        };
        let deadline = reactor.wake_after(CONNECTING);
        let connection = Connection {
            client,
            pod,
            dialing: Some(Dialing { deadline, tried }),
            slot,
            ended: [false; 2],
        };
        self.connections.insert(token, connection);
    }

    fn serve(&mut self, token: u64, mut connection: Connection, reactor: &mut Reactor) {
        let Connection { client, pod, slot, .. } = &connection;
        let slot = *slot;
        if let Some(Dialing { tried, .. }) = connection.dialing {
            match pod.take_error() {
                // The event predates the connection attempt.
                Ok(None) if pod.peer_addr().is_err() => {
                    self.connections.insert(token, connection);
                    return;
                }
                Ok(None) if reactor.watch_changes(client, token).is_ok() => {
                    let _ = client.set_nodelay(true);
                    let _ = pod.set_nodelay(true);
                    connection.dialing = None;
                    reactor.connections.record_request(slot, true, Instant::now());
                }
                Ok(_) | Err(_) => return self.dial(token, connection.client, slot, tried, reactor),
            }
        }
        let is_tcp = self.forward.transport == Transport::Tcp;
        match connection.pump(is_tcp, &mut reactor.buffer) {
            Ok(_) if connection.ended == [true; 2] => drop(reactor.connections.release(slot)),
            Ok((moved, more)) => {
                if moved {
                    reactor.connections.record_request(slot, false, Instant::now());
                }
                if more {
                    reactor.resume(token);
                }
                self.connections.insert(token, connection);
            }
            Err(_) => {
                // One side failed: reset both.
                self.connections.insert(token, connection);
                self.end(token, reactor);
            }
        }
    }
}

impl Port for StreamPort {
    fn ready(&mut self, token: u64, reactor: &mut Reactor) {
        if token == self.token {
            self.accept(reactor);
        } else if let Some(connection) = self.connections.remove(&token) {
            self.serve(token, connection, reactor);
        }
    }

    fn end(&mut self, token: u64, reactor: &mut Reactor) {
        if let Some(connection) = self.connections.remove(&token) {
            reset(&connection.client);
            reset(&connection.pod);
            reactor.connections.release(connection.slot);
        }
    }

    fn expire(&mut self, now: Instant, reactor: &mut Reactor) {
        if self.retry.take_if(|retry| *retry <= now).is_some() {
            self.accept(reactor);
        }
        let overdue = self.connections.extract_if(|_, connection| {
            let dialing = connection.dialing.as_ref();
            dialing.is_some_and(|dialing| dialing.deadline <= now)
        });
        for (token, connection) in overdue.collect::<Vec<_>>() {
            let tried = connection.dialing.map_or(0, |dialing| dialing.tried);
            self.dial(token, connection.client, connection.slot, tried, reactor);
        }
        let dialing = self.connections.values().filter_map(|c| c.dialing.as_ref());
        let deadlines = dialing.map(|dialing| dialing.deadline).chain(self.retry);
        deadlines.for_each(|deadline| reactor.wake_at(deadline));
    }
}

impl Connection {
    /// Moves the bytes that both sides can send and receive now. Returns whether any byte moved, and whether there are more.
    fn pump(&mut self, is_tcp: bool, buffer: &mut [u8]) -> io::Result<(bool, bool)> {
        let [up, down] = &mut self.ended;
        let up = pump(&self.client, &self.pod, up, is_tcp, buffer)?;
        let down = pump(&self.pod, &self.client, down, is_tcp, buffer)?;
        Ok((up.0 || down.0, up.1 || down.1))
    }
}

/// Moves bytes in one direction. Bytes for a slow receiver stay in the sender's socket: they are peeked at, and removed after
/// they have been passed on.
fn pump(
    from: &TcpStream,
    mut to: &TcpStream,
    ended: &mut bool,
    is_tcp: bool,
    buffer: &mut [u8],
) -> io::Result<(bool, bool)> {
    for turn in 0..TURN {
        if *ended {
            return Ok((turn > 0, false));
        }
        let peeked = recv(from, &mut *buffer, RecvFlags::PEEK).map_err(io::Error::from);
        let Some((length, _)) = unblocked(peeked)? else {
            return Ok((turn > 0, false));
        };
        if length == 0 {
            *ended = true;
            match to.shutdown(Shutdown::Write) {
                Err(error) if error.kind() != io::ErrorKind::NotConnected => return Err(error),
                Ok(()) | Err(_) => continue,
            }
        }
        let Some(sent) = unblocked(to.write(&buffer[..length]))? else {
            return Ok((turn > 0, false));
        };
        // TCP copies nothing for MSG_TRUNC (tcp(7)); SCTP does not support it.
        let flags = if is_tcp { RecvFlags::TRUNC } else { RecvFlags::empty() };
        let mut rest = &mut buffer[..sent];
        while !rest.is_empty() {
            let (taken, _) = recv(from, &mut *rest, flags)?;
            rest = match taken {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                taken => &mut rest[taken..],
            };
        }
    }
    Ok((true, true))
}

/// `None` if the operation would block.
fn unblocked<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

/// Makes close(2) send a reset.
fn reset(stream: &TcpStream) {
    let _ = sockopt::set_socket_linger(stream, Some(Duration::ZERO));
}

/// Starts a non-blocking connect.
fn connect(forward: Forward, target: IpAddr) -> io::Result<TcpStream> {
    let family = match target {
        IpAddr::V4(_) => AddressFamily::INET,
        IpAddr::V6(_) => AddressFamily::INET6,
    };
    let protocol = (forward.transport == Transport::Sctp).then_some(ipproto::SCTP);
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, protocol)?;
    match rustix::net::connect(&socket, &SocketAddr::new(target, forward.port)) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket.into()),
        Err(error) => Err(error.into()),
    }
}
