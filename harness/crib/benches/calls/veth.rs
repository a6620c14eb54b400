//! A pair of interfaces, by three messages of rtnetlink(7).

use std::{
    io,
    os::fd::{AsRawFd as _, BorrowedFd},
    process,
};

use nix::sys::socket::{
    AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket,
};

const ADDRESS: [u8; 4] = [10, 254, 254, 2];
const PREFIX: u8 = 24;
/// linux/veth.h.
const VETH_INFO_PEER: u16 = 1;
const UP: u32 = libc::IFF_UP as u32;

/// Makes `eth0`, up and with an address; its peer is up too, in the network namespace `host` if one is given.
pub(crate) fn connect(host: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let kind = SockType::Raw;
    let socket = socket(
        AddressFamily::Netlink,
        kind,
        SockFlag::SOCK_CLOEXEC,
        SockProtocol::NetlinkRoute,
    )?;
    let ask = |request: &[u8]| -> io::Result<()> {
        send(socket.as_raw_fd(), request, MsgFlags::empty())?;
        let mut answer = [0; 1024];
        let length = recv(socket.as_raw_fd(), &mut answer, MsgFlags::empty())?;
        // A header of 16 bytes, then the error number, negative.
        let error = answer.get(16..20).filter(|_| length >= 20);
        let error = error.and_then(|bytes| bytes.first_chunk().copied());
        match error.map(i32::from_ne_bytes) {
            Some(0) => Ok(()),
            Some(error) => Err(io::Error::from_raw_os_error(-error)),
            None => Err(io::ErrorKind::InvalidData.into()),
        }
    };
    let name = format!("fl{}", process::id());
    let mut peer = interface(0);
    attribute(&mut peer, libc::IFLA_IFNAME, format!("{name}\0").as_bytes());
    if let Some(host) = host {
        let host = host.as_raw_fd().to_ne_bytes();
        attribute(&mut peer, libc::IFLA_NET_NS_FD, &host);
    }
    let (mut data, mut about) = (Vec::new(), Vec::new());
    attribute(&mut data, VETH_INFO_PEER, &peer);
    attribute(&mut about, libc::IFLA_INFO_KIND, b"veth");
    attribute(&mut about, libc::IFLA_INFO_DATA, &data);
    let mut link = interface(0);
    attribute(&mut link, libc::IFLA_IFNAME, b"eth0\0");
    attribute(&mut link, libc::IFLA_LINKINFO, &about);
    ask(&message(libc::RTM_NEWLINK, &link))?;
    let index = nix::net::if_::if_nametoindex("eth0")?;
    let mut address = vec![libc::AF_INET as u8, PREFIX, 0, 0];
    address.extend(index.to_ne_bytes());
    attribute(&mut address, libc::IFA_LOCAL, &ADDRESS);
    attribute(&mut address, libc::IFA_ADDRESS, &ADDRESS);
    ask(&message(libc::RTM_NEWADDR, &address))
}

/// `struct ifinfomsg` of an interface that is to be up.
fn interface(index: i32) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(index.to_ne_bytes());
    bytes.extend(UP.to_ne_bytes());
    bytes.extend(UP.to_ne_bytes());
    bytes
}

fn attribute(to: &mut Vec<u8>, kind: u16, value: &[u8]) {
    let length = u16::try_from(4 + value.len()).unwrap_or(u16::MAX);
    to.extend(length.to_ne_bytes());
    to.extend(kind.to_ne_bytes());
    to.extend(value);
    to.resize(to.len().next_multiple_of(4), 0);
}

/// A request that makes something new, and wants an answer.
fn message(kind: u16, body: &[u8]) -> Vec<u8> {
    let flags = libc::NLM_F_REQUEST | libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
    let length = u32::try_from(16 + body.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::from(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend((flags as u16).to_ne_bytes());
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}
