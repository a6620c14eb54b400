//! The keeper's end of the daemon's connection.

use std::{
    collections::VecDeque,
    io,
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
};

use super::{
    frame::{Receiver, encode, send},
    protocol::{Message, Request},
};

/// A connection that never blocks.
pub(super) struct Connection {
    pub(super) stream: UnixStream,
    receiver: Receiver,
    /// Frames, the first of them perhaps sent in part, with the descriptors that ride on their first bytes.
    outgoing: VecDeque<(Vec<u8>, Vec<OwnedFd>)>,
}

impl Connection {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self {
            stream,
            receiver: Receiver::default(),
            outgoing: VecDeque::new(),
        })
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues `message` and the descriptors that it speaks of; [`Self::flush`] sends.
    pub(super) fn say(&mut self, message: &Message, descriptors: Vec<OwnedFd>) {
        // All our messages are plain structures with string keys: they have a JSON form.
        if let Ok(document) = serde_json::to_vec(message) {
            self.outgoing.push_back((encode(&document), descriptors));
        }
    }

    /// Sends what the socket takes now.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        while let Some((frame, descriptors)) = self.outgoing.front_mut() {
            let riding: Vec<_> = descriptors.iter().map(|d| d.as_fd()).collect();
            match send(&self.stream, frame, &riding) {
                Ok(sent) if sent == frame.len() => drop(self.outgoing.pop_front()),
                Ok(sent) => {
                    descriptors.clear();
                    frame.drain(..sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends everything, waiting for the daemon to read.
    pub(super) fn flush_all(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.flush()
    }

    /// The requests that have come, each with its descriptors; the end of the stream is an error.
    pub(super) fn requests(&mut self) -> io::Result<Vec<(Request, Vec<OwnedFd>)>> {
        match self.receiver.fill(&self.stream) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let mut requests = Vec::new();
        while let Some(document) = self.receiver.next()? {
            let request: Request = serde_json::from_slice(&document)?;
            let descriptors = self.receiver.take_descriptors(request.descriptors)?;
            requests.push((request, descriptors));
        }
        Ok(requests)
    }
}
