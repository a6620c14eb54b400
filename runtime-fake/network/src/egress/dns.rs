//! The pods' DNS server: passes queries on to the host's name servers, which pods cannot reach themselves when they
//! listen on the host's loopback interface only, as systemd-resolved does.

use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use super::program::DNS;
use crate::namespace::within;

const PORT: u16 = 53;
/// The host's configuration, read for each query: a laptop changes its network.
const RESOLV_CONF: &str = "/etc/resolv.conf";
/// The resolver's limit (resolv.conf(5)).
const SERVERS: usize = 3;
/// Timeout for an answer of one name server: the resolver's own.
const ANSWER: Duration = Duration::from_secs(5);
/// The wait after a failed accept: no file descriptor is left until a query has ended.
const EXHAUSTED: Duration = Duration::from_millis(50);
/// The number of queries in progress. A client asks again when its query is dropped.
const QUERIES: usize = 64;
/// The stack of a thread that copies a message.
const STACK: usize = 128 * 1024;
/// The largest message over UDP.
const MESSAGE: usize = 65_535;

/// Listens in the namespace and serves on threads of their own.
pub(super) fn serve(netns: BorrowedFd<'_>) -> io::Result<()> {
    let (udp, tcp) = within(Some(netns), || -> io::Result<_> {
        let address = (DNS, PORT);
        Ok((UdpSocket::bind(address)?, TcpListener::bind(address)?))
    })??;
    let (udp, slots) = (Arc::new(udp), Slots::default());
    let more = slots.clone();
    spawn(move || receive(&udp, &slots))?;
    spawn(move || accept(&tcp, &more))
}

fn spawn(work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = thread::Builder::new().name("dns".to_owned());
    thread.stack_size(STACK).spawn(work).map(drop)
}

/// Counts the queries in progress.
#[derive(Clone, Default)]
struct Slots(Arc<AtomicUsize>);

impl Slots {
    /// Runs `work` on a thread of its own unless too many run.
    fn run(&self, work: impl FnOnce() + Send + 'static) {
        let slots = self.0.clone();
        if slots.fetch_add(1, Ordering::Relaxed) >= QUERIES {
            slots.fetch_sub(1, Ordering::Relaxed);
            return;
        }
        let finished = slots.clone();
        let spawned = spawn(move || {
            work();
            finished.fetch_sub(1, Ordering::Relaxed);
        });
        if spawned.is_err() {
            slots.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn receive(socket: &Arc<UdpSocket>, slots: &Slots) {
    let mut buffer = vec![0; MESSAGE];
    loop {
        let Ok((length, client)) = socket.recv_from(&mut buffer) else {
            continue;
        };
        let (query, socket) = (buffer[..length].to_vec(), socket.clone());
        slots.run(move || {
            if let Some(answer) = first_answer(&query) {
                let _ = socket.send_to(&answer, client);
            }
        });
    }
}

/// The answer of the first name server that gives one.
fn first_answer(query: &[u8]) -> Option<Vec<u8>> {
    servers()
        .into_iter()
        .find_map(|server| ask(server, query).ok())
}

fn ask(server: SocketAddr, query: &[u8]) -> io::Result<Vec<u8>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(server)?;
    socket.set_read_timeout(Some(ANSWER))?;
    socket.send(query)?;
    let mut answer = vec![0; MESSAGE];
    let length = socket.recv(&mut answer)?;
    answer.truncate(length);
    Ok(answer)
}

fn accept(listener: &TcpListener, slots: &Slots) {
    for client in listener.incoming() {
        match client {
            Ok(client) => slots.run(move || {
                let _ = converse(&client);
            }),
            // The client stays in the queue, and the next attempt fails at once too.
            Err(_) => thread::sleep(EXHAUSTED),
        }
    }
}

/// Connects the client with the first name server that takes a connection, until either is silent for too long.
fn converse(client: &TcpStream) -> io::Result<()> {
    let mut tried = servers().into_iter();
    let server = tried.find_map(|server| TcpStream::connect_timeout(&server, ANSWER).ok());
    let Some(server) = server else {
        return Ok(());
    };
    for stream in [client, &server] {
        stream.set_read_timeout(Some(ANSWER))?;
        stream.set_write_timeout(Some(ANSWER))?;
    }
    loop {
        // A message has its length in front (RFC 1035, 4.2.2).
        copy_message(client, &server)?;
        copy_message(&server, client)?;
    }
}

fn copy_message(mut from: impl Read, mut to: impl Write) -> io::Result<()> {
    let mut length = [0; 2];
    from.read_exact(&mut length)?;
    let mut message = vec![0; 2 + usize::from(u16::from_be_bytes(length))];
    message[..2].copy_from_slice(&length);
    from.read_exact(&mut message[2..])?;
    to.write_all(&message)
}

/// The host's name servers.
pub fn servers() -> Vec<SocketAddr> {
    name_servers(&fs::read_to_string(RESOLV_CONF).unwrap_or_default())
}

/// The name servers of a resolv.conf; without any, the local one (resolv.conf(5)).
fn name_servers(conf: &str) -> Vec<SocketAddr> {
    let named = conf.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        let address = (words.next()? == "nameserver").then(|| words.next())??;
        address.parse::<IpAddr>().ok()
    });
    let mut servers: Vec<IpAddr> = named.take(SERVERS).collect();
    if servers.is_empty() {
        servers.push(Ipv4Addr::LOCALHOST.into());
    }
    let with_port = servers.into_iter().map(|ip| SocketAddr::new(ip, PORT));
    with_port.collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::stub("# made\nnameserver 127.0.0.53\noptions edns0\n", &["127.0.0.53:53"])]
    #[case::both_families("nameserver 10.0.0.1\nnameserver fd00::1\n", &["10.0.0.1:53", "[fd00::1]:53"])]
    #[case::first_three(
        "nameserver 1.0.0.1\nnameserver x\nnameserver 1.0.0.2\nnameserver 1.0.0.3\nnameserver 1.0.0.4\n",
        &["1.0.0.1:53", "1.0.0.2:53", "1.0.0.3:53"]
    )]
    #[case::none("search example.org\nnameserver\n", &["127.0.0.1:53"])]
    fn name_servers_are_those_of_the_resolver(#[case] conf: &str, #[case] expected: &[&str]) {
        let servers: Vec<String> = name_servers(conf).iter().map(ToString::to_string).collect();
        assert_eq!(servers, expected);
    }

    #[test]
    fn message_is_copied_with_its_length() {
        let mut copied = Vec::new();
        let mut from: &[u8] = &[0, 3, 7, 8, 9, 0];
        copy_message(&mut from, &mut copied).unwrap();
        assert_eq!(copied, [0, 3, 7, 8, 9]);
        assert!(copy_message(&mut from, &mut copied).is_err());
    }
}
