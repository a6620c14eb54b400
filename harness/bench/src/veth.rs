//! A veth pair, created with three rtnetlink(7) messages.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

const ADDRESS: [u8; 4] = [10, 254, 254, 2];
const PREFIX: u8 = 24;
/// linux/veth.h.
const VETH_INFO_PEER: u16 = 1;
const UP: u32 = nix::libc::IFF_UP as u32;

/// A network namespace, for use from another one: its file, and a socket that was created in it.
pub(super) struct Host {
    namespace: File,
    socket: OwnedFd,
    /// The name of the interface in the namespace, new for each round: the kernel removes the old one some time after the namespace
    /// of its peer.
    name: String,
}

impl Host {
    /// The namespace of this process.
    pub(super) fn open() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Ok(Self {
            namespace: File::open("/proc/self/ns/net")?,
            socket: netlink()?,
            name: format!("fl{}-{number}", process::id()),
        })
    }
}

/// Creates `eth0`, up and with an address. Its peer is up, too, in the network namespace `host` if one is given.
pub(super) fn connect(host: Option<&Host>) -> io::Result<()> {
    let socket = netlink()?;
    let name = host.map_or("peer", |host| host.name.as_str());
    let name = format!("{name}\0");
    let mut peer = interface(0);
    attribute(&mut peer, nix::libc::IFLA_IFNAME, name.as_bytes());
    if let Some(host) = host {
        let namespace = host.namespace.as_raw_fd().to_ne_bytes();
        attribute(&mut peer, nix::libc::IFLA_NET_NS_FD, &namespace);
    }
    let (mut data, mut about) = (Vec::new(), Vec::new());
    attribute(&mut data, VETH_INFO_PEER, &peer);
    attribute(&mut about, nix::libc::IFLA_INFO_KIND, b"veth");
    attribute(&mut about, nix::libc::IFLA_INFO_DATA, &data);
    let mut link = interface(UP);
    attribute(&mut link, nix::libc::IFLA_IFNAME, b"eth0\0");
    attribute(&mut link, nix::libc::IFLA_LINKINFO, &about);
    let new = nix::libc::NLM_F_CREATE | nix::libc::NLM_F_EXCL;
    send_request(&socket, &message(nix::libc::RTM_NEWLINK, new, &link))?;
    // An end can go up only when it has a peer.
    let mut up = interface(UP);
    attribute(&mut up, nix::libc::IFLA_IFNAME, name.as_bytes());
    let at = host.map_or(&socket, |host| &host.socket);
    send_request(at, &message(nix::libc::RTM_NEWLINK, 0, &up))?;
    let index = nix::net::if_::if_nametoindex("eth0")?;
    let mut address = vec![nix::libc::AF_INET as u8, PREFIX, 0, 0];
    address.extend(index.to_ne_bytes());
    attribute(&mut address, nix::libc::IFA_LOCAL, &ADDRESS);
    attribute(&mut address, nix::libc::IFA_ADDRESS, &ADDRESS);
    send_request(&socket, &message(nix::libc::RTM_NEWADDR, new, &address))
}

fn netlink() -> io::Result<OwnedFd> {
    let (family, flags) = (AddressFamily::Netlink, SockFlag::SOCK_CLOEXEC);
    let protocol = SockProtocol::NetlinkRoute;
    Ok(socket(family, SockType::Raw, flags, protocol)?)
}

fn send_request(socket: &OwnedFd, request: &[u8]) -> io::Result<()> {
    send(socket.as_raw_fd(), request, MsgFlags::empty())?;
    let mut answer = [0; 1024];
    let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
    // A header of 16 bytes, then the negative errno.
    let error = answer.get(16..20).filter(|_| length >= 20);
    let error = error.and_then(|bytes| bytes.first_chunk().copied());
    match error.map(i32::from_ne_bytes) {
        Some(0) => Ok(()),
        Some(error) => Err(io::Error::from_raw_os_error(-error)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// `struct ifinfomsg` with these flags set.
fn interface(flags: u32) -> Vec<u8> {
    let mut bytes = vec![0; 8];
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// A request with NLM_F_ACK.
fn message(kind: u16, flags: i32, body: &[u8]) -> Vec<u8> {
    let flags = nix::libc::NLM_F_REQUEST | nix::libc::NLM_F_ACK | flags;
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}
