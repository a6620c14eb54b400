//! Frames on a stream socket: a four-byte little-endian length, then that many bytes. File descriptors ride on a frame's
//! first bytes; a receiver queues them in order, and each document says how many are its own.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

/// No document is longer; a peer that says so is not a keeper.
pub(super) const MAX_FRAME: usize = 32 << 20;
/// The most descriptors that ride on one frame.
const MAX_DESCRIPTORS: usize = 8;

/// `document` as a frame.
#[must_use]
pub(crate) fn encode(document: &[u8]) -> Vec<u8> {
    let length = u32::try_from(document.len()).unwrap_or(u32::MAX);
    let mut frame = Vec::with_capacity(document.len() + 4);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(document);
    frame
}

/// Sends what fits of `bytes`, and all of `descriptors` with it. Returns how many bytes went.
pub(crate) fn send(
    socket: impl AsFd,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "too many descriptors for one frame",
        ));
    }
    Ok(sendmsg(
        socket,
        &[IoSlice::new(bytes)],
        &mut ancillary,
        SendFlags::NOSIGNAL,
    )?)
}

/// Collects bytes and descriptors until frames are whole.
#[derive(Debug, Default)]
pub(crate) struct Receiver {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Receiver {
    /// Reads once. `Ok(0)` is the end of the stream.
    pub(crate) fn fill(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let mut chunk = [0u8; 16 << 10];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_DESCRIPTORS))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let got = recvmsg(
            socket,
            &mut [IoSliceMut::new(&mut chunk)],
            &mut ancillary,
            RecvFlags::CMSG_CLOEXEC,
        )?;
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&chunk[..got.bytes]);
        Ok(got.bytes)
    }

    /// The next whole document, if it is here.
    pub(crate) fn next(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(header) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("a frame of {length} bytes, more than {MAX_FRAME}"),
            ));
        }
        if self.bytes.len() < 4 + length {
            return Ok(None);
        }
        let rest = self.bytes.split_off(4 + length);
        let mut document = std::mem::replace(&mut self.bytes, rest);
        document.drain(..4);
        Ok(Some(document))
    }

    /// The next `count` descriptors, in the order sent.
    pub(crate) fn take_descriptors(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
        if self.descriptors.len() < count {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "a frame came without its descriptors",
            ));
        }
        Ok(self.descriptors.drain(..count).collect())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::{fs::File, io::Read as _, os::unix::net::UnixStream};

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_come_out_as_they_went_in(documents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20), cut in 1usize..50) {
            let stream: Vec<u8> = documents.iter().flat_map(|d| encode(d)).collect();
            let (a, b) = UnixStream::pair().unwrap();
            let mut receiver = Receiver::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                prop_assert_eq!(send(&a, piece, &[]).unwrap(), piece.len());
                receiver.fill(&b).unwrap();
                while let Some(document) = receiver.next().unwrap() {
                    seen.push(document);
                }
            }
            prop_assert_eq!(seen, documents);
        }
    }

    #[test]
    fn descriptors_ride_along() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&a, &encode(b"one"), &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut receiver = Receiver::default();
        receiver.fill(&b).unwrap();
        assert_eq!(receiver.next().unwrap().unwrap(), b"one");
        let mut got = receiver.take_descriptors(1).unwrap();
        assert!(receiver.take_descriptors(1).is_err());
        std::io::Write::write_all(&mut File::from(got.remove(0)), b"hi").unwrap();
        let mut text = String::new();
        { reader }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi");
    }

    #[test]
    fn an_absurd_length_is_refused() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, &u32::MAX.to_le_bytes(), &[]).unwrap();
        let mut receiver = Receiver::default();
        receiver.fill(&b).unwrap();
        assert!(receiver.next().is_err());
    }
}
