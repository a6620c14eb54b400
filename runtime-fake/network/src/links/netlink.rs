//! A blocking route-netlink socket: requests in batches with their acknowledgements, and dumps.
//!
//! The kernel handles a request during the send, so every response is queued when the first read begins, and a
//! read never waits for anything but the kernel's own work.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::message::{ACK, DUMP, DUMP_INTERRUPTED, REQUEST, message, messages};

/// `RTMGRP_LINK` of linux/rtnetlink.h: changes of links.
const LINK_CHANGES: u32 = 1;
/// The kernel sends dumps in parts of at most 32 KiB; an acknowledgement contains the request.
const READ_SIZE: usize = 64 * 1024;

/// A request for objects.
#[derive(Debug, Clone)]
pub(crate) struct Query {
    /// The kind of the message.
    pub(crate) kind: u16,
    /// The message without its netlink header.
    pub(crate) payload: Vec<u8>,
}

/// One request: the message, its flags in addition to `REQUEST | ACK`, and its description.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The description for errors: "creating the bridge crib0".
    pub(crate) doing: String,
    /// `CREATE` and the like.
    pub(crate) flags: u16,
    /// Errno values that mean success: there was nothing to do.
    pub(crate) fine: &'static [i32],
    /// The kind of the message.
    pub(crate) kind: u16,
    /// The message without its netlink header.
    pub(crate) payload: Vec<u8>,
}

/// The kernel refused a request, or a socket failed.
#[derive(Debug, thiserror::Error)]
#[error("{doing}{hint}")]
pub struct NetlinkError {
    doing: String,
    hint: Hint,
    /// The kernel's error.
    #[source]
    pub source: io::Error,
}

/// The remedy for an error, if known.
#[derive(Debug)]
enum Hint {
    None,
    NotPermitted,
}

impl fmt::Display for Hint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hint::None => Ok(()),
            Hint::NotPermitted => {
                f.write_str(" needs the capability CAP_NET_ADMIN in the network namespace")
            }
        }
    }
}

impl NetlinkError {
    pub(crate) fn new(doing: impl Into<String>, source: io::Error) -> NetlinkError {
        let hint = if source.kind() == io::ErrorKind::PermissionDenied {
            Hint::NotPermitted
        } else {
            Hint::None
        };
        NetlinkError { doing: doing.into(), hint, source }
    }

    pub(crate) fn refused(doing: impl Into<String>, code: i32) -> NetlinkError {
        NetlinkError::new(doing, io::Error::from_raw_os_error(code))
    }

    pub(crate) fn garbled(doing: impl Into<String>, what: impl fmt::Display) -> NetlinkError {
        NetlinkError::new(doing, io::Error::new(io::ErrorKind::InvalidData, what.to_string()))
    }
}

/// An open socket; it belongs to the network namespace of the thread that opened it.
#[derive(Debug)]
pub(crate) struct Netlink {
    socket: Socket,
    sequence: u32,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> Result<Netlink, NetlinkError> {
        Netlink::bound_to(0)
    }

    /// Opens a socket that also receives link changes, for [`Netlink::wait_for_change`].
    pub(crate) fn open_watch() -> Result<Netlink, NetlinkError> {
        Netlink::bound_to(LINK_CHANGES)
    }

    fn bound_to(groups: u32) -> Result<Netlink, NetlinkError> {
        let failed = |source| NetlinkError::new("opening a netlink socket", source);
        let mut socket = Socket::new(NETLINK_ROUTE).map_err(failed)?;
        socket.bind(&SocketAddr::new(0, groups)).map_err(failed)?;
        Ok(Netlink { socket, sequence: 0 })
    }

    /// Sends all requests with one call and reads their acknowledgements. The kernel handles them in order and continues after a
    /// refused one; the first refusal is the error.
    pub(crate) fn batch(&mut self, requests: &[Request]) -> Result<(), NetlinkError> {
        let Some(first) = requests.first() else {
            return Ok(());
        };
        let base = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(512);
        for request in requests {
            let flags = REQUEST | ACK | request.flags;
            self.append(&mut bytes, request.kind, &request.payload, flags);
        }
        self.send(&bytes, &first.doing)?;

        let mut acknowledged = 0;
        let mut refused: Option<(usize, i32)> = None;
        while acknowledged < requests.len() {
            let answer = self.receive(&first.doing)?;
            for message in messages(&answer) {
                let index = message.sequence.wrapping_sub(base) as usize;
                let (Some(code), Some(request)) = (message.outcome(), requests.get(index)) else {
                    continue;
                };
                acknowledged += 1;
                if code != 0
                    && !request.fine.contains(&code)
                    && refused.is_none_or(|(first, _)| index < first)
                {
                    refused = Some((index, code));
                }
            }
        }
        match refused {
            None => Ok(()),
            Some((index, code)) => Err(NetlinkError::refused(&requests[index].doing, code)),
        }
    }

    /// Queries one object, and reads it; `None` if it does not exist.
    pub(crate) fn find<T>(
        &mut self,
        query: &Query,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<T>, NetlinkError> {
        let doing = "asking for a network interface";
        let mut bytes = Vec::with_capacity(128);
        let sequence = self.append(&mut bytes, query.kind, &query.payload, REQUEST);
        self.send(&bytes, doing)?;
        loop {
            let answer = self.receive(doing)?;
            let mut messages = messages(&answer);
            if let Some(message) = messages.find(|message| message.sequence == sequence) {
                match message.outcome() {
                    Some(nix::libc::ENODEV) => return Ok(None),
                    Some(code) => return Err(NetlinkError::refused(doing, code)),
                    None => {}
                }
                let found = read(message.kind, message.payload);
                let other = || NetlinkError::garbled(doing, "response belongs to another request");
                return found.ok_or_else(other).map(Some);
            }
        }
    }

    /// Queries all objects of a kind, and reads them, in the kernel's order. A dump that the kernel marks as interrupted by a change is
    /// repeated.
    pub(crate) fn dump<T>(
        &mut self,
        doing: &'static str,
        query: &Query,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        // Interruptions are rare even on busy hosts; the limit keeps a kernel that always reports one from blocking the caller
        // forever.
        for _ in 0..64 {
            if let Some(dump) = self.try_dump(doing, query, &read)? {
                return Ok(dump);
            }
        }
        Err(NetlinkError::garbled(
            doing,
            "the network configuration kept changing during 64 attempts",
        ))
    }

    fn try_dump<T>(
        &mut self,
        doing: &'static str,
        query: &Query,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Option<Vec<T>>, NetlinkError> {
        let mut bytes = Vec::with_capacity(128);
        let sequence = self.append(&mut bytes, query.kind, &query.payload, REQUEST | DUMP);
        self.send(&bytes, doing)?;
        let (mut dump, mut interrupted) = (Vec::new(), false);
        loop {
            let answer = self.receive(doing)?;
            for message in messages(&answer).filter(|message| message.sequence == sequence) {
                interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                match message.outcome() {
                    Some(code) => return Err(NetlinkError::refused(doing, code)),
                    None if message.is_done() => return Ok((!interrupted).then_some(dump)),
                    None => dump.extend(read(message.kind, message.payload)),
                }
            }
        }
    }

    /// Waits until a link has changed, or until the deadline: then it returns false.
    pub(crate) fn wait_for_change(&mut self, deadline: Instant) -> Result<bool, NetlinkError> {
        let doing = "waiting for a network interface";
        let failed = |source: io::Error| NetlinkError::new(doing, source);
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(false);
            }
            let timeout = PollTimeout::try_from(left.max(Duration::from_millis(1)))
                .unwrap_or(PollTimeout::MAX);
            let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
            match poll(&mut fds, timeout) {
                Ok(0) | Err(nix::Error::EINTR) => continue,
                Ok(_) => {}
                Err(error) => return Err(failed(error.into())),
            }
            match self.receive(doing) {
                Ok(_) => return Ok(true),
                // The kernel dropped notifications because the queue was full: something has changed.
                Err(error) if error.source.raw_os_error() == Some(nix::libc::ENOBUFS) => {
                    return Ok(true);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Appends a message and returns its new sequence number.
    pub(crate) fn append(
        &mut self,
        bytes: &mut Vec<u8>,
        kind: u16,
        payload: &[u8],
        flags: u16,
    ) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        bytes.extend(message(kind, flags, self.sequence, payload));
        self.sequence
    }

    /// Sends encoded messages; returns when the kernel has handled them.
    pub(crate) fn send(&self, bytes: &[u8], doing: &str) -> Result<(), NetlinkError> {
        loop {
            match self.socket.send_to(bytes, &SocketAddr::new(0, 0), 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NetlinkError::new(doing, error)),
            }
        }
    }

    /// Reads one datagram of responses.
    pub(crate) fn receive(&self, doing: &str) -> Result<Vec<u8>, NetlinkError> {
        let mut buffer = Vec::with_capacity(READ_SIZE);
        loop {
            match self.socket.recv(&mut buffer, nix::libc::MSG_TRUNC) {
                Ok(length) if length > buffer.len() => {
                    return Err(NetlinkError::garbled(
                        doing,
                        format_args!("response of {length} bytes was truncated"),
                    ));
                }
                Ok(_) => return Ok(buffer),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(NetlinkError::new(doing, error)),
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
