//! Joins two TCP connections. Data for a slow receiver stays in the sender's socket: it is peeked at, and removed only after it
//! has been passed on, so that a connection uses no memory of this process.

use std::{
    cell::RefCell,
    io::{self, ErrorKind},
};

use rustix::net::{RecvFlags, recv, shutdown};
use tokio::{io::Interest, net::TcpStream, task};

use crate::Slot;

/// The maximum number of bytes passed on in one step. All connections of a thread share one buffer of this size.
const CHUNK: usize = 128 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = RefCell::new(vec![0; CHUNK]);
}

/// Copies in both directions until both have ended, or `slot` is closed. Both connections are reset if either was, or if the slot
/// is closed.
pub async fn join(client: &TcpStream, server: &TcpStream, slot: &Slot) {
    slot.establish();
    for stream in [client, server] {
        let _ = stream.set_nodelay(true);
        // A killed pod sends no FIN or reset; keepalive detects its end.
        let _ = rustix::net::sockopt::set_socket_keepalive(stream, true);
    }
    let both = async { tokio::try_join!(copy(client, server, slot), copy(server, client, slot)) };
    let copied = tokio::select! {
        copied = both => copied.is_ok(),
        () = slot.closed() => false,
    };
    if !copied {
        let _ = client.set_zero_linger();
        let _ = server.set_zero_linger();
    }
}

async fn copy(from: &TcpStream, to: &TcpStream, slot: &Slot) -> io::Result<()> {
    loop {
        let peeked =
            BUFFER.with_borrow_mut(|buffer| match receive(from, buffer, RecvFlags::PEEK) {
                Ok(0) => Ok(Some(0)),
                Ok(length) => match to.try_write(&buffer[..length]) {
                    Ok(sent) => discard(from, &mut buffer[..sent]).map(|()| Some(sent)),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            });
        match peeked {
            Ok(Some(0)) => {
                return match shutdown(to, rustix::net::Shutdown::Write) {
                    Err(rustix::io::Errno::NOTCONN) | Ok(()) => Ok(()),
                    Err(error) => Err(error.into()),
                };
            }
            Ok(Some(_)) => {
                slot.record_request();
                task::consume_budget().await;
            }
            Ok(None) => to.writable().await?,
            Err(error) if error.kind() == ErrorKind::WouldBlock => from.readable().await?,
            Err(error) => return Err(error),
        }
    }
}

fn receive(from: &TcpStream, buffer: &mut [u8], flags: RecvFlags) -> io::Result<usize> {
    from.try_io(Interest::READABLE, || {
        let (length, _) = recv(from, &mut *buffer, flags | RecvFlags::DONTWAIT)?;
        Ok(length)
    })
}

/// Removes the peeked bytes. The kernel copies nothing for `MSG_TRUNC` (tcp(7)).
fn discard(from: &TcpStream, mut peeked: &mut [u8]) -> io::Result<()> {
    while !peeked.is_empty() {
        match receive(from, peeked, RecvFlags::TRUNC)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            length => peeked = &mut peeked[length..],
        }
    }
    Ok(())
}
