//! Packet rules: nftables, address translation, connection tracking, and the socket of the kernel's netfilter subsystems.

pub(crate) mod conntrack;
pub(crate) mod nat;
pub(crate) mod nft;

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

use crate::message::messages;

/// Room for the rules of some thousand ports in one transaction.
const SEND_BUFFER: usize = 8 << 20;

/// A socket of nfnetlink, opened at the first request and kept open: closing one waits until the kernel has freed the objects
/// that the last nf_tables transaction replaced, which takes about 10 ms.
#[derive(Debug, Default)]
pub(crate) struct Nfnetlink(Option<Socket>);

impl Nfnetlink {
    /// Whether a socket is open; otherwise the next request opens one in the calling thread's network namespace.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Sends a transaction, or a request that has no answer but an error.
    pub(crate) fn transact(&mut self, transaction: &[u8]) -> io::Result<()> {
        self.exchange(transaction, false, |_, _| ())
    }

    /// Sends `request` and passes each answer to `hear`: its kind, and the message without its netlink header.
    pub(crate) fn exchange(
        &mut self,
        request: &[u8],
        dump: bool,
        hear: impl FnMut(u16, &[u8]),
    ) -> io::Result<()> {
        let mut socket = match self.0.take() {
            Some(socket) => socket,
            None => open()?,
        };
        // After an error the socket may hold responses of this request, so it is not reused.
        exchange(&mut socket, request, dump, hear)?;
        self.0 = Some(socket);
        Ok(())
    }
}

/// Opens a socket in the calling thread's network namespace.
pub(crate) fn open() -> io::Result<Socket> {
    let mut socket = Socket::new(NETLINK_NETFILTER)?;
    let _ = rustix::net::sockopt::set_socket_send_buffer_size_force(&socket, SEND_BUFFER);
    socket.bind_auto()?;
    Ok(socket)
}

/// Sends `request` and reads the responses. The kernel responds during the send, so a response that cannot be read immediately
/// does not exist. A dump continues until its DONE message.
pub(crate) fn exchange(
    socket: &mut Socket,
    request: &[u8],
    dump: bool,
    mut hear: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    socket.set_non_blocking(!dump)?;
    socket.send_to(request, &SocketAddr::new(0, 0), 0)?;
    loop {
        let mut answer = Vec::with_capacity(64 * 1024);
        match socket.recv(&mut answer, 0) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
        for message in messages(&answer) {
            match message.outcome() {
                None if message.is_done() => return Ok(()),
                Some(0) | None => hear(message.kind, message.payload),
                Some(code) => return Err(io::Error::from_raw_os_error(code)),
            }
        }
    }
}
