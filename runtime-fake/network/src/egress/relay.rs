//! crib's own relay: kernel sockets in the bridge's namespace, joined with kernel sockets of the host.
//!
//! ```text
//! pod ── bridge ── SYN: logged and dropped ── relay: connect ── destination
//!                  the same SYN once connected, from a raw socket ── tproxy ── accepted, joined with the connection
//!                  UDP, ping: logged and dropped ── relay: send ── destination; answers from a raw socket
//! ```
//!
//! A local default route (`local default dev lo`) lets sockets of this namespace have any address. So the kernel handles each
//! side of a TCP connection, with its windows, and no data is lost between them. It needs no device and no program.
//!
//! `packet` ◆, `rules` ◆ and [`Failure`] decide; `sockets` are in the bridge's namespace; `streams` and
//! `datagrams` relay. One thread takes packets from the log, and one runs the tasks that copy.

mod datagrams;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
mod packet;
mod rules;
mod sockets;
mod streams;

use std::io::{self, Error, ErrorKind, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use tokio::runtime::Builder;

use self::datagrams::Datagrams;
use self::packet::{Content, Packet};
use self::sockets::Sockets;
use self::streams::Streams;
use super::program::HOST;
use crate::Slots;
use crate::links::within;

pub(super) use rules::TABLE;

/// The maximum number of connections of all pods together. Each has two sockets.
const CONNECTIONS: usize = 16_384;
/// The maximum number of datagram flows of all pods together. Each has a socket.
const FLOWS: usize = 4096;
/// File descriptors reserved for other purposes than connections, flows and DNS: the relay itself uses about 20.
pub(super) const OWN_DESCRIPTORS: u64 = 32;
/// The largest message of the packet log: a packet and its metadata.
const MESSAGE: usize = 128 * 1024;

/// Notifies the reader of a pipe when it is dropped.
struct End(io::PipeWriter);

impl Drop for End {
    fn drop(&mut self) {
        let _ = self.0.write_all(b"x");
    }
}

/// Relays for the pods of `subnets` on `bridge` in `netns` until the process ends. Returns the read end of a pipe that becomes
/// readable when either of the relay's threads has ended.
pub(crate) fn start(
    netns: BorrowedFd<'_>,
    bridge: &str,
    subnets: &[(Ipv4Addr, u8)],
) -> io::Result<io::PipeReader> {
    let sockets = within(Some(netns), || sockets::open(bridge, subnets))??;
    let Sockets { listener, log, sender, table } = sockets;
    let (connections, flows) = limits();
    let sender = Arc::new(sender);
    let streams = Streams::new(Slots::on_stderr("connections", connections), sender.clone());
    let datagrams = Datagrams::new(Slots::on_stderr("datagrams", flows), sender);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let handle = runtime.handle().clone();
    let (ended, ends) = io::pipe()?;
    let (accept_end, begin_end) = (End(ends.try_clone()?), End(ends));
    let accepting = streams.clone();
    let accept = move || {
        let _end = accept_end;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            accepting.accept(listener).await
        })
    };
    thread::Builder::new().name("relay".to_owned()).spawn(accept)?;
    let begin = move || {
        let (_end, _table) = (begin_end, table);
        let _context = handle.enter();
        take_packets(&log, &streams, &datagrams)
    };
    thread::Builder::new().name("packets".to_owned()).spawn(begin)?;
    Ok(ended)
}

/// Raises the limit on file descriptors as far as allowed, and returns the numbers of connections and flows that fit below it.
fn limits() -> (usize, usize) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap_or((1024, 1024));
    let limit = match setrlimit(Resource::RLIMIT_NOFILE, hard, hard) {
        Ok(()) => hard,
        Err(_) => soft,
    };
    shares(limit)
}

/// The numbers of connections and flows that fit below a limit on file descriptors. Some are reserved for the relay itself and
/// for DNS.
fn shares(limit: u64) -> (usize, usize) {
    let part = limit.saturating_sub(OWN_DESCRIPTORS) / 4;
    let part = usize::try_from(part).unwrap_or(usize::MAX).max(1);
    (part.min(CONNECTIONS), part.min(FLOWS))
}

/// Starts the connections and flows that logged packets request. Blocks until a packet arrives.
fn take_packets(
    log: &OwnedFd,
    streams: &Arc<Streams>,
    datagrams: &Arc<Datagrams>,
) -> io::Result<()> {
    let mut read = vec![0; MESSAGE];
    loop {
        let length = match rustix::net::recv(log, &mut read[..], RecvFlags::empty()) {
            Ok((length, _)) => length,
            // Packets were lost: pods retransmit them.
            Err(Errno::NOBUFS | Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        for bytes in sockets::packets(&read[..length]) {
            let Some(packet) = Packet::parse(bytes) else {
                continue;
            };
            let target = target(packet.destination);
            match packet.content {
                Content::Syn => streams.begin(&packet, bytes, target),
                Content::Datagram(_) | Content::Echo(_) => {
                    datagrams.forward(&packet, bytes, target);
                }
            }
        }
    }
}

/// The destination as the host reaches it: the address that pods use for the host becomes its loopback address.
fn target(destination: SocketAddrV4) -> SocketAddrV4 {
    match *destination.ip() == HOST {
        true => SocketAddrV4::new(Ipv4Addr::LOCALHOST, destination.port()),
        false => destination,
    }
}

/// The answer to a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    /// The destination refuses the packet: a reset, or "port unreachable".
    Refused,
    /// No route: "destination unreachable" with this code (RFC 792, RFC 1812).
    Unreachable(u8),
    /// No answer: the pod waits as for a host that does not respond.
    Silence,
}

impl Failure {
    /// The answer for the kernel's error.
    fn of(error: &Error) -> Self {
        const NETWORK: u8 = 0;
        const HOST: u8 = 1;
        const PROHIBITED: u8 = 13;
        let kind = error.kind();
        match () {
            () if kind == ErrorKind::ConnectionRefused => Self::Refused,
            () if kind == ErrorKind::ConnectionReset => Self::Refused,
            () if kind == ErrorKind::NetworkUnreachable => Self::Unreachable(NETWORK),
            () if kind == ErrorKind::HostUnreachable => Self::Unreachable(HOST),
            () if kind == ErrorKind::PermissionDenied => Self::Unreachable(PROHIBITED),
            () => Self::Silence,
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::io::Read as _;

    use nix::errno::Errno;
    use rstest::rstest;

    use super::*;

    #[test]
    fn relay_reports_end_of_either_thread() {
        let (mut ended, ends) = io::pipe().unwrap();
        let (one, other) = (End(ends.try_clone().unwrap()), End(ends));
        drop(one);
        assert_eq!(ended.read(&mut [0; 2]).unwrap(), 1);
        drop(other);
    }

    #[rstest]
    #[case::tiny(20, (1, 1))]
    #[case::small(64, (8, 8))]
    #[case::usual(1024, (248, 248))]
    #[case::flows_have_a_limit_of_their_own(20_000, (4992, FLOWS))]
    #[case::none(u64::MAX, (CONNECTIONS, FLOWS))]
    fn connections_and_flows_fit_below_limit(#[case] limit: u64, #[case] expected: (usize, usize)) {
        assert_eq!(shares(limit), expected);
    }

    #[rstest]
    #[case(Errno::ECONNREFUSED, Failure::Refused)]
    #[case(Errno::ECONNRESET, Failure::Refused)]
    #[case(Errno::ENETUNREACH, Failure::Unreachable(0))]
    #[case(Errno::EHOSTUNREACH, Failure::Unreachable(1))]
    #[case(Errno::EACCES, Failure::Unreachable(13))]
    #[case(Errno::ETIMEDOUT, Failure::Silence)]
    #[case(Errno::EMFILE, Failure::Silence)]
    fn connect_errors_map_to_icmp_failures(#[case] error: Errno, #[case] expected: Failure) {
        assert_eq!(Failure::of(&error.into()), expected);
    }
}
