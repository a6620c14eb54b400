//! Packet rules: nftables, address translation, connection tracking, and packets that rules hand to a program.
//! The socket of the kernel's netfilter subsystems is here.

pub(crate) mod conntrack;
pub(crate) mod nat;
pub(crate) mod nft;

use std::io;

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

/// Room for the rules of some thousand ports in one transaction.
const SEND_BUFFER: usize = 8 << 20;

/// A socket of nfnetlink, opened at the first request and kept open: closing one waits until the kernel has freed what
/// the last transaction of nf_tables replaced, which takes about 10 ms.
#[derive(Debug, Default)]
pub(crate) struct Nfnetlink(Option<Socket>);

impl Nfnetlink {
    /// Whether there is a socket; the next request opens one in the calling thread's network namespace otherwise.
    pub(crate) fn is_open(&self) -> bool {
        self.0.is_some()
    }

    /// Sends a transaction, or a request that has no answer but an error.
    pub(crate) fn transact(&mut self, transaction: &[u8]) -> io::Result<()> {
        self.exchange(transaction, false, |_, _| ())
    }

    /// Sends `request` and hands each answer to `hear`: its kind, and the message without its netlink header.
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
        // After an error the socket may hold responses that belong to no later request: it is not used again.
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

/// Sends `request` and reads the responses. The kernel responds during the send, so a response that cannot be
/// read at once does not exist. A dump continues until its DONE message.
pub(crate) fn exchange(
    socket: &mut Socket,
    request: &[u8],
    dump: bool,
    mut hear: impl FnMut(u16, &[u8]),
) -> io::Result<()> {
    const ERROR: u16 = 2;
    const DONE: u16 = 3;
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
        for (kind, payload) in messages(&answer) {
            match (kind, payload.first_chunk::<4>()) {
                (ERROR, Some(code)) if i32::from_ne_bytes(*code) != 0 => {
                    return Err(io::Error::from_raw_os_error(-i32::from_ne_bytes(*code)));
                }
                (DONE, _) => return Ok(()),
                _ => hear(kind, payload),
            }
        }
    }
}

/// The netlink messages in what one read returned: their kinds, and the messages without their headers.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<16>()?;
        let length = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]) as usize;
        let kind = u16::from_ne_bytes([header[4], header[5]]);
        let payload = rest.get(16..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, payload))
    })
}
