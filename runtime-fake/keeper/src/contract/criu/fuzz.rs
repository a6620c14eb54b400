//! Fuzz target: criu's responses.
#![allow(clippy::unwrap_used, reason = "a test's tool")]

use std::os::fd::AsFd as _;

use fuzz_target::Target;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, Shutdown, SocketFlags, SocketType, recv, send, shutdown,
    socketpair,
};

use super::{Dump, dump};

/// criu's responses.
pub const TARGETS: &[Target] = &[Target::new("criu_response", responses, seeds)];

/// Packets, each after a byte with its length: the exchange ends, and sends no more than it received.
fn responses(mut data: &[u8]) {
    let (ours, criu) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    let mut sent = 0;
    while let Some((length, rest)) = data.split_first() {
        let (packet, rest) = rest.split_at(usize::from(*length).min(rest.len()));
        data = rest;
        // Stop when the socket's buffer is full.
        if packet.is_empty() || send(&criu, packet, SendFlags::DONTWAIT).is_err() {
            break;
        }
        sent += 1;
    }
    shutdown(&criu, Shutdown::Write).unwrap();
    let nowhere = std::fs::File::open("/").unwrap();
    let what =
        Dump { pid: 1, images: nowhere.as_fd(), work: nowhere.as_fd(), external: Vec::new() };
    let mut frozen = 0;
    let _ = dump::<()>(ours, what, || {
        frozen += 1;
        Ok(())
    });
    let mut packet = [0; 4096];
    let mut heard = 0;
    while let Ok((1.., _)) = recv(&criu, &mut packet[..], RecvFlags::DONTWAIT) {
        heard += 1;
    }
    assert!(heard <= sent + 1 && frozen <= 1, "{heard} answers to {sent} packets");
}

fn seeds() -> Vec<Vec<u8>> {
    // Type, success, and a notification's script (images/rpc.proto).
    let notify = [&[0x08, 6, 0x10, 1, 0x2a, 11, 0x0a, 9][..], b"post-dump"].concat();
    let done = vec![0x08, 1, 0x10, 1];
    let failed = vec![0x08, 1, 0x10, 0, 0x4a, 2, b'n', b'o'];
    let packet = |bytes: &[u8]| [&[u8::try_from(bytes.len()).unwrap()][..], bytes].concat();
    vec![[packet(&notify), packet(&done)].concat(), packet(&failed), packet(&done)]
}
