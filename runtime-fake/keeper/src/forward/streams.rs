//! TCP connections, and SCTP ones, whose bytes are moved in the same way.

use std::{
    collections::HashMap,
    io::{self, Read as _, Write as _},
    net::{IpAddr, Shutdown, SocketAddr, TcpListener, TcpStream},
    os::fd::OwnedFd,
    time::{Duration, Instant},
};

use rustix::{
    io::Errno,
    net::{AddressFamily, SocketFlags, SocketType, ipproto, socket_with, sockopt},
};

use super::reactor::{Port, Reactor, Tokens};
use crate::plan::{Forward, Transport};

/// How long a connection attempt to the pod may take; a closed port refuses at once.
const CONNECTING: Duration = Duration::from_secs(10);
/// How long accepting pauses when the process has no free descriptor.
const EXHAUSTED: Duration = Duration::from_millis(100);
/// How much is read at once, and so the most that is buffered for a slow receiver.
const CHUNK: usize = 16 << 10;
/// How many reads and writes a direction may do before other connections get their turn.
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
    up: Direction,
    down: Direction,
}

struct Dialing {
    deadline: Instant,
    /// How many targets have been tried.
    tried: usize,
}

/// One direction of a connection.
#[derive(Default)]
struct Direction {
    /// Bytes read and not yet written.
    pending: Vec<u8>,
    /// The end of the stream has been passed on.
    ended: bool,
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
            Ok(Some((client, _))) => {
                reactor.resume(self.token);
                if client.set_nonblocking(true).is_ok()
                    && let Some(token) = self.tokens.next()
                {
                    self.dial(token, client, 0, reactor);
                }
            }
            Ok(None) => {}
            // The client has disconnected, or no descriptor is free: other connections free some when they close.
            Err(_) => self.retry = Some(reactor.wake_after(EXHAUSTED)),
        }
    }

    /// Starts to connect a client to the next untried address of the pod.
    fn dial(&mut self, token: u64, client: TcpStream, tried: usize, reactor: &mut Reactor) {
        let mut untried = self.targets.iter().enumerate().skip(tried);
        let connecting = untried.find_map(|(index, target)| {
            let pod = connect(self.forward, *target).ok()?;
            reactor.watch_changes(&pod, token).ok()?;
            Some((pod, index + 1))
        });
        let Some((pod, tried)) = connecting else {
            // The client sees a reset, as from a closed port of the pod, not an orderly end.
            return reset(&client);
        };
        let deadline = reactor.wake_after(CONNECTING);
        let connection = Connection {
            client,
            pod,
            dialing: Some(Dialing { deadline, tried }),
            up: Direction::default(),
            down: Direction::default(),
        };
        self.connections.insert(token, connection);
    }

    fn serve(&mut self, token: u64, mut connection: Connection, reactor: &mut Reactor) {
        let Connection { client, pod, .. } = &connection;
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
                }
                Ok(_) | Err(_) => return self.dial(token, connection.client, tried, reactor),
            }
        }
        match connection.pump(&mut reactor.buffer[..CHUNK]) {
            Ok(_) if connection.up.ended && connection.down.ended => {}
            Ok(more) => {
                if more {
                    reactor.resume(token);
                }
                self.connections.insert(token, connection);
            }
            Err(_) => {
                // One side failed: reset both.
                reset(&connection.client);
                reset(&connection.pod);
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
            self.dial(token, connection.client, tried, reactor);
        }
        let dialing = self.connections.values().filter_map(|c| c.dialing.as_ref());
        let deadlines = dialing.map(|dialing| dialing.deadline).chain(self.retry);
        deadlines.for_each(|deadline| reactor.wake_at(deadline));
    }
}

impl Connection {
    /// Moves what both sides can send and receive now. Returns whether there is more.
    fn pump(&mut self, buffer: &mut [u8]) -> io::Result<bool> {
        let up = self.up.pump(&self.client, &self.pod, buffer)?;
        let down = self.down.pump(&self.pod, &self.client, buffer)?;
        Ok(up || down)
    }
}

impl Direction {
    fn pump(
        &mut self,
        mut from: &TcpStream,
        mut to: &TcpStream,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        for _ in 0..TURN {
            if self.ended {
                return Ok(false);
            }
            if !self.pending.is_empty() {
                let Some(sent) = unblocked(to.write(&self.pending))? else {
                    return Ok(false);
                };
                self.pending = self.pending.split_off(sent);
                continue;
            }
            match unblocked(from.read(buffer))? {
                None => return Ok(false),
                Some(0) => {
                    self.ended = true;
                    match to.shutdown(Shutdown::Write) {
                        Err(error) if error.kind() != io::ErrorKind::NotConnected => {
                            return Err(error);
                        }
                        Ok(()) | Err(_) => {}
                    }
                }
                Some(length) => {
                    let sent = unblocked(to.write(&buffer[..length]))?.unwrap_or(0);
                    self.pending = buffer[sent..length].to_vec();
                }
            }
        }
        Ok(true)
    }
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
