//! ◆ D-Bus messages in wire format: encodes method calls with strings and numbers, and parses all messages. Pure.

use std::io;
use std::os::fd::OwnedFd;

use super::Method;
use super::value::{self, Property, Value};
use super::wire::{Reader, Writer};

/// The maximum length of a message: the specification allows 128 MiB, but the answers that are read here are below 64 KiB.
const MAX_LENGTH: usize = 1 << 20;
/// The length of a header's fixed part, including the length of its fields.
const FIXED: usize = 16;

/// The type of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A method call.
    Call,
    /// The return of a method.
    Return,
    /// An error response.
    Error,
    /// A signal.
    Signal,
}

/// An argument of a method call.
#[derive(Clone, Copy, Debug)]
pub enum Argument<'a> {
    /// A string.
    Text(&'a str),
    /// A number.
    Int32(i32),
    /// A boolean.
    Flag(bool),
    /// Properties of a unit of systemd.
    Properties(&'a [Property]),
    /// An empty list of auxiliary systemd units.
    NoUnits,
}

/// A received message.
#[derive(Debug)]
pub struct Message {
    /// The type.
    pub kind: Kind,
    /// The serial number.
    pub serial: u32,
    /// The serial number of the call that it answers.
    pub reply_serial: Option<u32>,
    /// The unique name of the sender.
    pub sender: Option<String>,
    /// The interface of a signal.
    pub interface: Option<String>,
    /// The name of a signal.
    pub member: Option<String>,
    /// The error's name.
    pub error_name: Option<String>,
    /// The type signature of the body.
    pub signature: String,
    /// The file descriptors received with it.
    pub received: Vec<OwnedFd>,
    /// The number of its file descriptors.
    pub(super) descriptors: usize,
    body: Vec<u8>,
    is_little: bool,
}

impl Message {
    /// The string at the start of the body.
    #[must_use]
    pub fn text(&self) -> Option<String> {
        self.signature.starts_with('s').then_some(())?;
        self.reader().text()
    }

    /// The boolean at the start of the body.
    #[must_use]
    pub fn boolean(&self) -> Option<bool> {
        self.signature.starts_with('b').then_some(())?;
        Some(self.reader().number(4)? != 0)
    }

    /// The 64-bit number in the variant that is the body.
    #[must_use]
    pub fn variant_of_u64(&self) -> Option<u64> {
        (self.signature == "v").then_some(())?;
        let mut reader = self.reader();
        (reader.signature()? == "t").then_some(())?;
        reader.number(8)
    }

    /// All values of the body; `None` if it is malformed.
    #[must_use]
    pub fn values(&self) -> Option<Vec<Value>> {
        value::read(&mut self.reader(), &self.signature)
    }

    fn reader(&self) -> Reader<'_> {
        Reader { bytes: &self.body, at: 0, is_little: self.is_little }
    }
}

/// Encodes a method call.
pub(super) fn call(serial: u32, method: Method<'_>, arguments: &[Argument<'_>]) -> Vec<u8> {
    let mut body = Writer::default();
    let mut signature = String::new();
    for argument in arguments {
        match argument {
            Argument::Text(text) => {
                signature.push('s');
                body.text(text);
            }
            Argument::Int32(number) => {
                signature.push('i');
                body.align(4);
                body.0.extend_from_slice(&number.to_le_bytes());
            }
            Argument::Flag(flag) => {
                signature.push('b');
                body.number(usize::from(*flag));
            }
            Argument::Properties(properties) => {
                signature.push_str("a(sv)");
                body.list(8, |body| properties.iter().for_each(|property| property.write(body)));
            }
            Argument::NoUnits => {
                signature.push_str("a(sa(sv))");
                body.list(8, |_| ());
            }
        }
    }
    let mut fields = Writer::default();
    fields.field(1, "o", method.path);
    fields.field(2, "s", method.interface);
    fields.field(3, "s", method.member);
    fields.field(6, "s", method.destination);
    if !signature.is_empty() {
        fields.align(8);
        fields.0.extend_from_slice(&[8, 1, b'g', 0]);
        fields.signature(&signature);
    }
    let mut message = Writer(vec![b'l', 1, 0, 1]);
    message.number(body.0.len());
    message.number(serial as usize);
    message.number(fields.0.len());
    message.0.extend_from_slice(&fields.0);
    message.align(8);
    message.0.extend_from_slice(&body.0);
    message.0
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "received a malformed D-Bus message")
}

/// The length of the message that these bytes begin; `None` if more bytes are needed.
pub(crate) fn length(bytes: &[u8]) -> io::Result<Option<usize>> {
    if bytes.len() < FIXED {
        return Ok(None);
    }
    let is_little = is_little(bytes)?;
    let mut reader = Reader { bytes, at: 4, is_little };
    let body = reader.length().ok_or_else(malformed)?;
    let mut reader = Reader { bytes, at: 12, is_little };
    let fields = reader.length().ok_or_else(malformed)?;
    if body > MAX_LENGTH || fields > MAX_LENGTH {
        return Err(malformed());
    }
    Ok(Some((FIXED + fields).next_multiple_of(8) + body))
}

fn is_little(bytes: &[u8]) -> io::Result<bool> {
    match bytes.first() {
        Some(b'l') => Ok(true),
        Some(b'B') => Ok(false),
        Some(_) | None => Err(malformed()),
    }
}

/// Parses a message from exactly [`length`] bytes.
pub(crate) fn parse(bytes: &[u8]) -> io::Result<Message> {
    parsed(bytes, is_little(bytes)?).ok_or_else(malformed)
}

fn parsed(bytes: &[u8], is_little: bool) -> Option<Message> {
    let kind = match bytes.get(1)? {
        1 => Kind::Call,
        2 => Kind::Return,
        3 => Kind::Error,
        4 => Kind::Signal,
        _ => return None,
    };
    let mut reader = Reader { bytes, at: 8, is_little };
    let serial = u32::try_from(reader.number(4)?).ok()?;
    let end = FIXED + reader.length()?;
    let mut message = Message {
        kind,
        serial,
        reply_serial: None,
        sender: None,
        interface: None,
        member: None,
        error_name: None,
        signature: String::new(),
        received: Vec::new(),
        descriptors: 0,
        body: bytes.get(end.next_multiple_of(8)..)?.to_vec(),
        is_little,
    };
    while reader.at < end {
        reader.align(8);
        let code = reader.byte()?;
        let signature = reader.signature()?;
        let (mut text, mut number) = (None, None);
        match signature.as_str() {
            "s" | "o" => text = Some(reader.text()?),
            "g" => text = Some(reader.signature()?),
            "u" => number = Some(u32::try_from(reader.number(4)?).ok()?),
            _ => return None,
        }
        match code {
            2 => message.interface = text,
            3 => message.member = text,
            4 => message.error_name = text,
            5 => message.reply_serial = number,
            7 => message.sender = text,
            8 => message.signature = text?,
            9 => message.descriptors = usize::try_from(number?).ok()?,
            _ => {}
        }
    }
    Some(message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use proptest::prelude::*;

    use super::*;

    const METHOD: Method<'_> =
        Method { destination: "a.b", path: "/a", interface: "a.b.C", member: "Do" };

    #[test]
    fn call_is_a_message_of_its_length() {
        let bytes = call(7, METHOD, &[Argument::Text("one"), Argument::Int32(-2)]);
        assert_eq!(length(&bytes).unwrap(), Some(bytes.len()));
        assert_eq!(length(&bytes[..15]).unwrap(), None);
        let message = parse(&bytes).unwrap();
        assert_eq!((message.kind, message.member.as_deref()), (Kind::Call, Some("Do")));
        assert_eq!((message.signature.as_str(), message.text()), ("si", Some("one".to_owned())));
        assert_eq!(message.body.len(), 12, "the text, its length and zero, and the number");
    }

    #[test]
    fn values_are_read_by_their_type() {
        let of = |signature: &str, body: &[u8]| Message {
            signature: signature.to_owned(),
            body: body.to_vec(),
            ..parse(&call(1, METHOD, &[])).unwrap()
        };
        assert_eq!(of("b", &[1, 0, 0, 0]).boolean(), Some(true));
        assert_eq!(of("b", &[0, 0, 0, 0]).boolean(), Some(false));
        assert_eq!(of("u", &[1, 0, 0, 0]).boolean(), None);
        let variant = [1, b't', 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0];
        assert_eq!(of("v", &variant).variant_of_u64(), Some(5));
        assert_eq!(of("v", &[1, b's', 0]).variant_of_u64(), None);
        let big = Message { is_little: false, ..of("b", &[0, 0, 0, 1]) };
        assert_eq!(big.boolean(), Some(true));
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), little in any::<bool>()) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if little { b'l' } else { b'B' };
            }
            let _ = length(&bytes);
            if let Ok(message) = parse(&bytes) {
                let _ = (message.text(), message.boolean(), message.variant_of_u64(), message.values());
            }
        }
    }
}
