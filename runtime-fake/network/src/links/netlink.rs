//! A blocking route-netlink socket: requests in batches with their acknowledgements, and dumps.
//!
//! The kernel handles a request during the send, so every response is queued when the first read begins, and a
//! read never waits for anything but the kernel's own work.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader,
    NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::LinkMessage;
use netlink_sys::{Socket, SocketAddr, protocols::NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// `RTMGRP_LINK` of linux/rtnetlink.h: changes of links.
const LINK_CHANGES: u32 = 1;
/// Dumps come in pieces of at most 32 KiB; an acknowledgement carries the request.
const READ_SIZE: usize = 64 * 1024;

/// One request: the message, its flags besides `NLM_F_REQUEST | NLM_F_ACK`, and its description.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The description for errors: "creating the bridge crib0".
    pub(crate) doing: String,
    /// `NLM_F_CREATE` and the like.
    pub(crate) flags: u16,
    /// Errno values that mean success: there was nothing to do.
    pub(crate) fine: &'static [i32],
    /// The message.
    pub(crate) message: RouteNetlinkMessage,
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

/// The result of a dump.
#[derive(Debug, Default)]
pub(crate) struct Dump {
    /// The objects, in the kernel's order.
    pub(crate) messages: Vec<RouteNetlinkMessage>,
    /// The number of objects that could not be parsed, because their kind is unknown.
    pub(crate) unreadable: usize,
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

    /// Sends all requests at once and reads their acknowledgements. The kernel handles them in order and continues
    /// after a refused one; the first refusal is the error.
    pub(crate) fn batch(&mut self, requests: &[Request]) -> Result<(), NetlinkError> {
        let Some(first) = requests.first() else {
            return Ok(());
        };
        let base = self.sequence.wrapping_add(1);
        let mut bytes = Vec::with_capacity(512);
        for request in requests {
            let flags = NLM_F_REQUEST | NLM_F_ACK | request.flags;
            self.append(&mut bytes, request.message.clone(), flags);
        }
        self.send(&bytes, &first.doing)?;

        let mut acknowledged = 0;
        let mut refused: Option<(usize, i32)> = None;
        while acknowledged < requests.len() {
            let answer = self.receive(&first.doing)?;
            for message in Messages(&answer) {
                let message = message.map_err(|what| NetlinkError::garbled(&first.doing, what))?;
                let index = message.sequence.wrapping_sub(base) as usize;
                let (Answer::Outcome(code), Some(request)) = (message.answer, requests.get(index))
                else {
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

    /// Queries one link; `None` if it does not exist.
    pub(crate) fn link(&mut self, query: LinkMessage) -> Result<Option<LinkMessage>, NetlinkError> {
        let doing = "asking for a network interface";
        let mut bytes = Vec::with_capacity(128);
        let sequence = self.append(&mut bytes, RouteNetlinkMessage::GetLink(query), NLM_F_REQUEST);
        self.send(&bytes, doing)?;
        loop {
            let answer = self.receive(doing)?;
            for message in Messages(&answer) {
                let message = message.map_err(|what| NetlinkError::garbled(doing, what))?;
                if message.sequence != sequence {
                    continue;
                }
                match message.answer {
                    Answer::Object(RouteNetlinkMessage::NewLink(link)) => return Ok(Some(link)),
                    Answer::Outcome(nix::libc::ENODEV) => return Ok(None),
                    Answer::Outcome(code) => return Err(NetlinkError::refused(doing, code)),
                    Answer::Object(_) | Answer::Done | Answer::Other => {
                        return Err(NetlinkError::garbled(
                            doing,
                            "the answer is about something else",
                        ));
                    }
                }
            }
        }
    }

    /// Queries all objects of a kind. A dump that the kernel marks as interrupted by a change is repeated.
    pub(crate) fn dump(
        &mut self,
        doing: &'static str,
        query: &RouteNetlinkMessage,
    ) -> Result<Dump, NetlinkError> {
        // Interruptions are rare even on busy hosts; the limit keeps a kernel that always reports one from blocking the
        // caller for ever.
        for _ in 0..64 {
            if let Some(dump) = self.try_dump(doing, query)? {
                return Ok(dump);
            }
        }
        Err(NetlinkError::garbled(
            doing,
            "the network configuration changed during every one of 64 attempts",
        ))
    }

    fn try_dump(
        &mut self,
        doing: &'static str,
        query: &RouteNetlinkMessage,
    ) -> Result<Option<Dump>, NetlinkError> {
        let mut bytes = Vec::with_capacity(128);
        let sequence = self.append(&mut bytes, query.clone(), NLM_F_REQUEST | NLM_F_DUMP);
        self.send(&bytes, doing)?;
        let mut dump = Dump::default();
        let mut interrupted = false;
        loop {
            let answer = self.receive(doing)?;
            for message in Messages(&answer) {
                let Ok(message) = message else {
                    dump.unreadable += 1;
                    continue;
                };
                if message.sequence != sequence {
                    continue;
                }
                interrupted |= message.flags & NLM_F_DUMP_INTR != 0;
                match message.answer {
                    Answer::Object(object) => dump.messages.push(object),
                    Answer::Done => return Ok((!interrupted).then_some(dump)),
                    Answer::Outcome(code) => return Err(NetlinkError::refused(doing, code)),
                    Answer::Other => {}
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
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        let mut header = NetlinkHeader::default();
        header.flags = flags;
        header.sequence_number = self.sequence;
        let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(message));
        message.finalize();
        let start = bytes.len();
        bytes.resize(start + message.buffer_len().next_multiple_of(4), 0);
        message.serialize(&mut bytes[start..]);
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
                        format_args!("an answer of {length} bytes was cut short"),
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

/// The content of one message from the kernel.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The outcome of a request: 0, or an errno value.
    Outcome(i32),
    /// A requested object, or a notification about one.
    Object(RouteNetlinkMessage),
    /// A dump is complete.
    Done,
    /// Any other message.
    Other,
}

/// One message from the kernel.
#[derive(Debug)]
pub(crate) struct Message {
    /// The sequence number of the request that it responds to.
    pub(crate) sequence: u32,
    flags: u16,
    /// Its content.
    pub(crate) answer: Answer,
}

/// The messages of one read, each decoded separately.
pub(crate) struct Messages<'a>(pub(crate) &'a [u8]);

impl Iterator for Messages<'_> {
    type Item = Result<Message, String>;

    fn next(&mut self) -> Option<Self::Item> {
        let length = NetlinkBuffer::new_checked(self.0).ok()?.length() as usize;
        let bytes = self.0.get(..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        let decoded = NetlinkMessage::deserialize(bytes).map_err(|error| error.to_string());
        Some(decoded.map(|message| Message {
            sequence: message.header.sequence_number,
            flags: message.header.flags,
            answer: if let NetlinkPayload::Error(error) = message.payload {
                Answer::Outcome(error.raw_code().abs())
            } else if let NetlinkPayload::InnerMessage(object) = message.payload {
                Answer::Object(object)
            } else if let NetlinkPayload::Done(_) = message.payload {
                Answer::Done
            } else {
                Answer::Other
            },
        }))
    }
}
