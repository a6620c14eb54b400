//! The relay's sockets in the bridge's namespace, and the kernel's log of packets (nfnetlink_log), which hands dropped packets to
//! the relay.

use std::net::{Ipv4Addr, SocketAddrV4, TcpListener};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::{fs, io};

use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockProtocol, SockType, SockaddrIn, bind, listen,
    sendto, setsockopt, socket, sockopt,
};

use super::packet;
use super::rules::{self, CONNECTED, GROUP};
use crate::links::netlink::Netlink;
use crate::links::{link_query, requests};
use crate::message::{REQUEST, attribute, find, messages};
use crate::netfilter::nft::{self, number};
use crate::netfilter::{self, Nfnetlink};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;

/// The relay's sockets in the bridge's namespace.
pub(super) struct Sockets {
    /// Accepts connections to any address.
    pub(super) listener: TcpListener,
    /// Receives the packets that begin a connection or flow.
    pub(super) log: OwnedFd,
    pub(super) sender: PacketSender,
    /// Keeps the packet rules in place.
    pub(super) table: Nfnetlink,
}

/// Makes the sockets in the calling thread's network namespace, and then the rules that direct pods' packets to them.
pub(super) fn open(bridge: &str, subnets: &[(Ipv4Addr, u8)]) -> io::Result<Sockets> {
    // A reinjected packet arrives on the loopback interface, with a pod's address.
    for interface in ["all", "lo"] {
        let _ = fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "0");
    }
    let listener = listener().map_err(doing("listening for connections of pods"))?;
    let port = listener.local_addr()?.port();
    let sender = PacketSender::open().map_err(doing("opening raw sockets"))?;
    let log = open_packet_log(GROUP).map_err(doing("opening the packet log (nfnetlink_log)"))?;
    let mut table = Nfnetlink::default();
    let transaction = rules::transaction(bridge, subnets, port);
    let set = table.transact(&transaction);
    set.map_err(doing("setting packet rules (nf_tables with log and tproxy)"))?;
    add_route().map_err(io::Error::other)?;
    Ok(Sockets { listener, log, sender, table })
}

fn doing(what: &'static str) -> impl Fn(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{what}: {error}"))
}

/// Delivers packets for any address to this namespace's own sockets.
fn add_route() -> Result<(), crate::NetError> {
    let mut netlink = Netlink::open()?;
    let lo = link_query::link(&mut netlink, "lo")?.map_or(1, |lo| lo.index);
    let steps = [requests::delete_local_default_route(lo), requests::local_default_route(lo)];
    Ok(netlink.batch(&steps)?)
}

/// Accepts connections that the packet rules direct to it, to any address. A pod cannot reach its own address.
fn listener() -> io::Result<TcpListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Stream, flags, None)?;
    setsockopt(&socket, sockopt::IpTransparent, &true)?;
    let address = SockaddrIn::from(SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0));
    bind(socket.as_raw_fd(), &address)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket.into())
}

/// Sends packets with foreign addresses. A packet that the kernel does not accept is lost, as any packet may be.
pub(super) struct PacketSender {
    plain: OwnedFd,
    marked: OwnedFd,
}

impl PacketSender {
    fn open() -> io::Result<Self> {
        let open = || {
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let protocol = SockProtocol::Raw;
            socket(AddressFamily::Inet, SockType::Raw, flags, protocol)
        };
        let marked = open()?;
        setsockopt(&marked, sockopt::Mark, &CONNECTED)?;
        Ok(Self { plain: open()?, marked })
    }

    /// Reinjects the SYN of a connection, for the listener.
    pub(super) fn connect(&self, syn: &[u8], destination: Ipv4Addr) {
        if let Some(packet) = packet::with_tcp_checksum(syn) {
            send(&self.marked, &packet, destination);
        }
    }

    /// Reinjects the SYN of a connection to a port without a listener, so that the kernel resets the connection.
    pub(super) fn reset(&self, syn: &[u8], destination: Ipv4Addr) {
        if let Some(packet) = packet::with_tcp_checksum(syn) {
            send(&self.plain, &packet, destination);
        }
    }

    /// Reports to a pod that its packet cannot reach its destination, with a code of RFC 792.
    pub(super) fn unreachable(&self, code: u8, about: &[u8], pod: Ipv4Addr) {
        if let Some(packet) = packet::unreachable(code, about) {
            send(&self.plain, &packet, pod);
        }
    }

    /// Sends an answer to a pod.
    pub(super) fn answer(&self, packet: &[u8], pod: Ipv4Addr) {
        send(&self.plain, packet, pod);
    }
}

fn send(socket: &OwnedFd, packet: &[u8], to: Ipv4Addr) {
    let to = SockaddrIn::from(SocketAddrV4::new(to, 0));
    let _ = sendto(socket.as_raw_fd(), packet, &to, MsgFlags::empty());
}

const SUBSYSTEM: u16 = 4 << 8;
const PACKET: u16 = SUBSYSTEM;
const CONFIGURE: u16 = SUBSYSTEM | 1;
/// `NFULA_PAYLOAD`: the packet from its network header on.
const PAYLOAD: u16 = 9;
/// Room for packets that wait to be read; the kernel has a limit of its own (net.core.rmem_max).
const RECEIVE_BUFFER: usize = 4 << 20;

/// Receives the packets of a group, complete and without delay, in the calling thread's network namespace.
pub(super) fn open_packet_log(group: u16) -> io::Result<OwnedFd> {
    let mut socket = netfilter::open()?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
    let (bind, copy_packets) = (1, 2);
    let range = u32::from(u16::MAX).to_be_bytes();
    let settings = [
        attribute(1, &[bind]),
        attribute(2, &[&range[..], &[copy_packets, 0]].concat()),
        number(5, 1),
    ];
    let request = nft::message(CONFIGURE, REQUEST, 0, group, &settings.concat());
    netfilter::exchange(&mut socket, &request, false, |_, _| ())?;
    socket.set_non_blocking(false)?;
    socket.as_fd().try_clone_to_owned()
}

/// The packets in the data of one read.
pub(super) fn packets(read: &[u8]) -> impl Iterator<Item = &[u8]> {
    messages(read).filter_map(|message| match message.kind {
        PACKET => find(message.payload.get(4..)?, PAYLOAD),
        _ => None,
    })
}
