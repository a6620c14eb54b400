//! The kernel's log of packets (nfnetlink_log), which hands dropped packets to the relay.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use crate::netfilter::nfnetlink;
use crate::netfilter::nft::{self, attribute, number};

const SUBSYSTEM: u16 = 4 << 8;
const PACKET: u16 = SUBSYSTEM;
const CONFIGURE: u16 = SUBSYSTEM | 1;
/// `NFULA_PAYLOAD`: the packet from its network header on.
const PAYLOAD: u16 = 9;
/// Room for packets that wait to be read; the kernel has a limit of its own (net.core.rmem_max).
const RECEIVE_BUFFER: usize = 4 << 20;

/// Receives the packets of a group, whole and at once, in the calling thread's network namespace.
pub(super) fn open(group: u16) -> io::Result<OwnedFd> {
    let mut socket = nfnetlink::open()?;
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, RECEIVE_BUFFER);
    let (bind, copy_packets) = (1, 2);
    let range = u32::from(u16::MAX).to_be_bytes();
    let settings = [
        attribute(1, &[bind]),
        attribute(2, &[&range[..], &[copy_packets, 0]].concat()),
        number(5, 1),
    ];
    let request = nft::message(CONFIGURE, nft::FLAG_REQUEST, 0, group, &settings.concat());
    nfnetlink::exchange(&mut socket, &request, false, |_, _| ())?;
    socket.set_non_blocking(false)?;
    socket.as_fd().try_clone_to_owned()
}

/// The packets in what one read returned.
pub(super) fn packets(read: &[u8]) -> impl Iterator<Item = &[u8]> {
    nfnetlink::messages(read).filter_map(|(kind, message)| match kind {
        PACKET => nft::find(message.get(4..)?, PAYLOAD),
        _ => None,
    })
}
