//! A D-Bus client with the features that systemd and logind need: calls with strings, numbers and properties, and signals.
//!
//! `message` ◆, `value` ◆ and `wire` ◆ have the wire format. Source: D-Bus Specification 0.43.

mod message;
#[cfg(test)]
pub(crate) mod testing;
mod value;
mod wire;

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, BufRead as _, BufReader, IoSliceMut, Read as _, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};

use message::Kind;
pub use message::{Argument, Message};
pub(crate) use message::{length, parse};
pub use value::{Property, PropertyValue, Value};

/// The socket of the system bus: the path in `DBUS_SYSTEM_BUS_ADDRESS`, or the default.
#[must_use]
pub fn system_bus() -> PathBuf {
    let address = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").ok();
    PathBuf::from(address.as_deref().and_then(path_of).unwrap_or(SYSTEM_BUS))
}

const SYSTEM_BUS: &str = "/run/dbus/system_bus_socket";

/// The path in the first address with one, such as `unix:path=/run/x,guid=0`.
fn path_of(address: &str) -> Option<&str> {
    let mut unix = address.split(';').filter_map(|one| one.strip_prefix("unix:"));
    unix.find_map(|pairs| pairs.split(',').find_map(|pair| pair.strip_prefix("path=")))
}

/// The timeout of an answer.
const DEADLINE: Duration = Duration::from_secs(10);
/// The maximum number of signals that are queued during a call.
const MAX_QUEUED_SIGNALS: usize = 100;

/// A connection to a bus.
#[derive(Debug)]
pub struct Bus {
    stream: UnixStream,
    serial: u32,
    read: Vec<u8>,
    descriptors: VecDeque<OwnedFd>,
    signals: VecDeque<Message>,
}

/// A service's error response.
#[derive(Debug)]
struct ErrorReply {
    member: String,
    name: String,
    text: String,
}

impl fmt::Display for ErrorReply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.member, self.name, self.text)
    }
}

impl std::error::Error for ErrorReply {}

/// The error name of a service's response, such as `org.freedesktop.systemd1.UnitExists`; `None` for other errors.
#[must_use]
pub fn error_name_of(error: &io::Error) -> Option<&str> {
    let reply = error.get_ref()?.downcast_ref::<ErrorReply>()?;
    Some(&reply.name)
}

/// The method of an object.
#[derive(Clone, Copy, Debug)]
pub struct Method<'a> {
    /// The name of the service.
    pub destination: &'a str,
    /// The path of the object.
    pub path: &'a str,
    /// The interface of the method.
    pub interface: &'a str,
    /// The method's name.
    pub member: &'a str,
}

impl Bus {
    /// Connects to the bus at a path, as the user of this process.
    ///
    /// # Errors
    /// If there is no bus, or it rejects the user.
    pub fn connect(path: &Path) -> io::Result<Self> {
        let stream = UnixStream::connect(path)?;
        stream.set_read_timeout(Some(DEADLINE))?;
        stream.set_write_timeout(Some(DEADLINE))?;
        let user = rustix::process::geteuid().as_raw().to_string();
        let user: String = user.bytes().map(|byte| format!("{byte:02x}")).collect();
        let mut reader = BufReader::new(stream.try_clone()?);
        let mut ask = |line: &str, expected: &str| {
            (&stream).write_all(format!("{line}\r\n").as_bytes())?;
            let mut answer = String::new();
            (&mut reader).take(512).read_line(&mut answer)?;
            match answer.starts_with(expected) {
                true => Ok(()),
                false => Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!(
                        "D-Bus authentication failed: got {:?} in reply to {line:?}",
                        answer.trim_end()
                    ),
                )),
            }
        };
        ask(&format!("\0AUTH EXTERNAL {user}"), "OK")?;
        ask("NEGOTIATE_UNIX_FD", "AGREE_UNIX_FD")?;
        // The bus sends nothing before it gets a request, so the reader's buffer is empty.
        (&stream).write_all(b"BEGIN\r\n")?;
        let mut bus = Self {
            stream,
            serial: 0,
            read: Vec::new(),
            descriptors: VecDeque::new(),
            signals: VecDeque::new(),
        };
        bus.call(of_bus("Hello"), &[])?;
        Ok(bus)
    }

    /// Calls a method and waits for the answer.
    ///
    /// # Errors
    /// The service's error, a connection error, or a timeout.
    pub fn call(&mut self, method: Method<'_>, arguments: &[Argument<'_>]) -> io::Result<Message> {
        self.serial += 1;
        let serial = self.serial;
        let bytes = message::call(serial, method, arguments);
        self.stream.write_all(&bytes)?;
        loop {
            let message = self.receive()?;
            match message.kind {
                Kind::Return if message.reply_serial == Some(serial) => return Ok(message),
                Kind::Error if message.reply_serial == Some(serial) => {
                    return Err(io::Error::other(ErrorReply {
                        member: method.member.to_owned(),
                        name: message.error_name.clone().unwrap_or_default(),
                        text: message.text().unwrap_or_default(),
                    }));
                }
                Kind::Signal if self.signals.len() < MAX_QUEUED_SIGNALS => {
                    self.signals.push_back(message);
                }
                Kind::Signal | Kind::Return | Kind::Error | Kind::Call => {}
            }
        }
    }

    /// Subscribes to signals that match a rule, such as `interface='a.b',member='C'`.
    ///
    /// # Errors
    /// As for [`Self::call`].
    pub fn add_match(&mut self, rule: &str) -> io::Result<()> {
        self.call(of_bus("AddMatch"), &[Argument::Text(rule)]).map(drop)
    }

    /// Waits for the next signal without a timeout.
    ///
    /// # Errors
    /// If the connection ends.
    pub fn next_signal(&mut self) -> io::Result<Message> {
        if let Some(signal) = self.signals.pop_front() {
            return Ok(signal);
        }
        self.stream.set_read_timeout(None)?;
        loop {
            let message = self.receive()?;
            if message.kind == Kind::Signal {
                return Ok(message);
            }
        }
    }

    /// Waits for the next signal until `end`.
    ///
    /// # Errors
    /// `TimedOut`, or a connection error.
    pub fn next_signal_until(&mut self, end: Instant) -> io::Result<Message> {
        if let Some(signal) = self.signals.pop_front() {
            return Ok(signal);
        }
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            match self.receive() {
                Ok(message) if message.kind == Kind::Signal => return Ok(message),
                Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
                Ok(_) | Err(_) => {}
            }
        }
    }

    fn receive(&mut self) -> io::Result<Message> {
        loop {
            if let Some(length) = length(&self.read)?
                && self.read.len() >= length
            {
                let bytes: Vec<u8> = self.read.drain(..length).collect();
                let mut message = parse(&bytes)?;
                let count = message.descriptors.min(self.descriptors.len());
                message.received = self.descriptors.drain(..count).collect();
                return Ok(message);
            }
            self.fill()?;
        }
    }

    /// Reads the available bytes, and the file descriptors sent with them.
    fn fill(&mut self) -> io::Result<()> {
        let mut bytes = [0; 4096];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let count = recvmsg(&self.stream, &mut parts, &mut ancillary, flags)?.bytes;
        if count == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "D-Bus connection closed by the bus",
            ));
        }
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                self.descriptors.extend(descriptors);
            }
        }
        self.read.extend_from_slice(bytes.get(..count).unwrap_or_default());
        Ok(())
    }
}

fn of_bus(member: &str) -> Method<'_> {
    const BUS: &str = "org.freedesktop.DBus";
    Method { destination: BUS, path: "/org/freedesktop/DBus", interface: BUS, member }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("unix:path=/run/bus", Some("/run/bus"))]
    #[case("unix:guid=0,path=/a;unix:path=/b", Some("/a"))]
    #[case("tcp:host=x;unix:path=/b", Some("/b"))]
    #[case("unix:abstract=x", None)]
    #[case("", None)]
    fn address_names_a_path(#[case] address: &str, #[case] path: Option<&str>) {
        assert_eq!(path_of(address), path);
    }
}
