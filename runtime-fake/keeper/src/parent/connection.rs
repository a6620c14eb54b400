//! The keeper's end of the daemon's connection.

use std::{
    collections::VecDeque,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
};

use crate::contract::frame::{Outgoing, Receiver};
use crate::contract::protocol::{Message, Request};

/// A request with its descriptors.
type Received = (Request, Vec<OwnedFd>);

/// A non-blocking connection.
pub(crate) struct Connection {
    pub(crate) stream: UnixStream,
    receiver: Receiver,
    /// The first frame may be partly sent.
    outgoing: VecDeque<Outgoing<OwnedFd>>,
    /// Why a message could not be sent. The connection is closed, because the daemon would wait for that message forever.
    failed: Option<io::Error>,
}

impl Connection {
    pub(crate) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, receiver: Receiver::default(), outgoing: VecDeque::new(), failed: None })
    }

    pub(crate) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// Queues `message` and its descriptors; [`Self::flush`] sends them.
    pub(crate) fn queue(&mut self, message: &Message, descriptors: Vec<OwnedFd>) {
        let frame = serde_json::to_vec(message)
            .map_err(io::Error::from)
            .and_then(|document| Outgoing::new(document, descriptors));
        match frame {
            Ok(frame) => self.outgoing.push_back(frame),
            Err(error) => self.failed = Some(error),
        }
    }

    /// Sends as much as the socket takes without blocking.
    ///
    /// Messages to a daemon that has exited are dropped without an error: the keeper still reads and handles its earlier
    /// requests; the end of the stream follows them.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        while let Some(frame) = self.outgoing.front_mut() {
            match frame.send(&self.stream) {
                Ok(true) => drop(self.outgoing.pop_front()),
                Ok(false) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.outgoing.clear(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Sends everything, waiting for the daemon to read.
    pub(crate) fn flush_all(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(false)?;
        self.flush()
    }

    /// Reads once, and returns the complete requests, each with its descriptors; `None` if there was nothing to read.
    /// The end of the stream is an error.
    pub(crate) fn requests(&mut self) -> io::Result<Option<Vec<Received>>> {
        match self.receiver.fill(&self.stream) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        }
        let mut requests = Vec::new();
        while let Some(document) = self.receiver.next_document()? {
            let request: Request = serde_json::from_slice(&document)?;
            let descriptors = self.receiver.take_descriptors(request.descriptors)?;
            requests.push((request, descriptors));
        }
        Ok(Some(requests))
    }
}
