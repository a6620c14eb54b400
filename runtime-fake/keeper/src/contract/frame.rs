//! Frames on a stream socket: a four-byte little-endian length, then that many bytes. File descriptors are attached to
//! a frame's first bytes, at most as many on each as one message carries. A receiver queues them in order, and each
//! document says how many belong to it. Lost descriptors are an error on both sides.

use std::{
    collections::VecDeque,
    io::{self, IoSlice, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
};

use rustix::{
    io::retry_on_intr,
    net::{
        RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
        SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
    },
};

/// The longest document; a peer that sends a longer one is not a keeper.
pub const MAX_FRAME: usize = 32 << 20;
/// The most descriptors that one message carries (unix(7): SCM_MAX_FD). Both sides have buffers for that many.
const PER_MESSAGE: usize = 253;

/// A frame with its descriptors, partly sent.
#[derive(Debug)]
pub struct Outgoing<F> {
    bytes: Vec<u8>,
    sent: usize,
    descriptors: VecDeque<F>,
}

impl<F: AsFd> Outgoing<F> {
    /// `document`, a JSON text, as a frame.
    pub fn new(mut document: Vec<u8>, descriptors: Vec<F>) -> io::Result<Self> {
        // Each message needs a byte to carry its descriptors. JSON may end with spaces (RFC 8259, section 2).
        let messages = descriptors.len().div_ceil(PER_MESSAGE);
        if document.len() < messages {
            document.resize(messages, b' ');
        }
        let length = u32::try_from(document.len()).ok();
        let Some(length) = length.filter(|length| *length as usize <= MAX_FRAME) else {
            return Err(too_long(document.len()));
        };
        let mut bytes = Vec::with_capacity(document.len() + 4);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(&document);
        Ok(Self { bytes, sent: 0, descriptors: descriptors.into() })
    }

    /// Sends one message. Returns whether the whole frame is sent.
    pub fn send(&mut self, socket: impl AsFd) -> io::Result<bool> {
        let riding = self.descriptors.len().min(PER_MESSAGE);
        let rest = &self.bytes[self.sent..];
        // While descriptors remain, each message carries one byte only.
        let part = if riding < self.descriptors.len() { &rest[..1] } else { rest };
        let descriptors: Vec<BorrowedFd<'_>> =
            self.descriptors.iter().take(riding).map(AsFd::as_fd).collect();
        let sent = send(socket, part, &descriptors)?;
        drop(descriptors);
        self.descriptors.drain(..riding);
        self.sent += sent;
        Ok(self.sent == self.bytes.len())
    }
}

/// Sends as much of `bytes` as fits, with all of `descriptors`. Returns the number of bytes sent.
pub fn send(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!(
                "{} descriptors for one message, which carries {PER_MESSAGE}",
                descriptors.len()
            ),
        ));
    }
    Ok(retry_on_intr(|| {
        sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)
    })?)
}

fn too_long(length: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::InvalidData,
        format!("a frame of {length} bytes, more than {MAX_FRAME}"),
    )
}

/// Collects bytes and descriptors into whole frames.
#[derive(Debug, Default)]
pub struct Receiver {
    bytes: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
}

impl Receiver {
    /// Reads once. `Ok(0)` is the end of the stream.
    pub fn fill(&mut self, socket: impl AsFd) -> io::Result<usize> {
        let mut room = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(PER_MESSAGE))];
        self.fill_with(socket, &mut room)
    }

    /// [`Self::fill`] with `room` for descriptors.
    fn fill_with(&mut self, socket: impl AsFd, room: &mut [MaybeUninit<u8>]) -> io::Result<usize> {
        let mut chunk = [0u8; 16 << 10];
        let mut ancillary = RecvAncillaryBuffer::new(room);
        let got = retry_on_intr(|| {
            recvmsg(
                &socket,
                &mut [IoSliceMut::new(&mut chunk)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })?;
        // The kernel drops descriptors that this process cannot hold, and only sets a flag (recvmsg(2)).
        if got.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::other(
                "descriptors were lost on their way: this process may open no more files (RLIMIT_NOFILE)",
            ));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.bytes.extend_from_slice(&chunk[..got.bytes]);
        Ok(got.bytes)
    }

    /// The next document, if it is complete.
    pub fn next_document(&mut self) -> io::Result<Option<Vec<u8>>> {
        let Some(header) = self.bytes.first_chunk::<4>() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes(*header) as usize;
        if length > MAX_FRAME {
            return Err(too_long(length));
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
    pub fn take_descriptors(&mut self, count: usize) -> io::Result<Vec<OwnedFd>> {
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
    use rstest::rstest;

    use super::*;

    fn encode(document: &[u8]) -> Vec<u8> {
        Outgoing::<OwnedFd>::new(document.to_vec(), Vec::new()).unwrap().bytes
    }

    proptest! {
        #[test]
        fn frames_round_trip(documents in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..200), 0..20), cut in 1usize..50) {
            let stream: Vec<u8> = documents.iter().flat_map(|d| encode(d)).collect();
            let (a, b) = UnixStream::pair().unwrap();
            let mut receiver = Receiver::default();
            let mut seen = Vec::new();
            for piece in stream.chunks(cut) {
                prop_assert_eq!(send(&a, piece, &[]).unwrap(), piece.len());
                receiver.fill(&b).unwrap();
                while let Some(document) = receiver.next_document().unwrap() {
                    seen.push(document);
                }
            }
            prop_assert_eq!(seen, documents);
        }
    }

    #[test]
    fn frame_carries_descriptors() {
        let (a, b) = UnixStream::pair().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        send(&a, &encode(b"one"), &[writer.as_fd()]).unwrap();
        drop(writer);
        let mut receiver = Receiver::default();
        receiver.fill(&b).unwrap();
        assert_eq!(receiver.next_document().unwrap().unwrap(), b"one");
        let mut got = receiver.take_descriptors(1).unwrap();
        assert!(receiver.take_descriptors(1).is_err());
        std::io::Write::write_all(&mut File::from(got.remove(0)), b"hi").unwrap();
        let mut text = String::new();
        { reader }.read_to_string(&mut text).unwrap();
        assert_eq!(text, "hi");
    }

    #[rstest]
    #[case::none(0)]
    #[case::one_message(PER_MESSAGE)]
    #[case::two_messages(PER_MESSAGE + 1)]
    #[case::more_messages_than_the_document_has_bytes(3 * PER_MESSAGE + 1)]
    fn frame_carries_any_number_of_descriptors_in_order(#[case] count: usize) {
        use std::os::{fd::AsRawFd as _, unix::fs::MetadataExt as _};

        let (a, b) = UnixStream::pair().unwrap();
        // Each descriptor is a file of its own, so that the test can check their order.
        let files: Vec<File> = (0..count).map(|_| tempfile::tempfile().unwrap()).collect();
        let inode = |file: &File| file.metadata().unwrap().ino();
        let expected: Vec<u64> = files.iter().map(inode).collect();
        let mut frame = Outgoing::new(b"1".to_vec(), files).unwrap();
        let mut receiver = Receiver::default();
        while !frame.send(&a).unwrap() {
            receiver.fill(&b).unwrap();
        }
        let document = loop {
            receiver.fill(&b).unwrap();
            if let Some(document) = receiver.next_document().unwrap() {
                break document;
            }
        };
        assert_eq!(serde_json::from_slice::<u8>(&document).unwrap(), 1);
        let came = receiver.take_descriptors(count).unwrap();
        assert!(came.iter().all(|fd| fd.as_raw_fd() > 2));
        let came: Vec<u64> = came.into_iter().map(|fd| inode(&fd.into())).collect();
        assert_eq!(came, expected);
    }

    #[test]
    fn receive_fails_when_descriptors_are_lost() {
        let (a, b) = UnixStream::pair().unwrap();
        let file = File::open("/dev/null").unwrap();
        send(&a, b"x", &[file.as_fd()]).unwrap();
        // A receiver without a buffer loses descriptors like one at its RLIMIT_NOFILE.
        assert!(Receiver::default().fill_with(&b, &mut []).is_err());
        let too_many = vec![file.as_fd(); PER_MESSAGE + 1];
        assert!(send(&a, b"x", &too_many).is_err());
    }

    #[test]
    fn receive_rejects_frame_over_limit() {
        let (a, b) = UnixStream::pair().unwrap();
        send(&a, &u32::MAX.to_le_bytes(), &[]).unwrap();
        let mut receiver = Receiver::default();
        receiver.fill(&b).unwrap();
        assert!(receiver.next_document().is_err());
    }
}
