//! ◆ Netlink messages and their attributes (linux/netlink.h), of links, addresses and packet rules alike.
//!
//! Headers are in host byte order. Messages and attributes begin at multiples of four bytes.

pub(crate) const REQUEST: u16 = 0x1;
pub(crate) const ACK: u16 = 0x4;
pub(crate) const ECHO: u16 = 0x8;
pub(crate) const DUMP: u16 = 0x300;
/// The flag of a response: the dump is not a consistent snapshot.
pub(crate) const DUMP_INTERRUPTED: u16 = 0x10;
pub(crate) const EXCLUSIVE: u16 = 0x200;
pub(crate) const CREATE: u16 = 0x400;
const NESTED: u16 = 0x8000;
/// The bits of an attribute's kind that are flags.
const KIND_FLAGS: u16 = 0xc000;

/// The kinds of messages of netlink itself.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// The length of a message's header.
const HEADER: usize = 16;

/// A message from the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Message<'a> {
    /// Its kind, in the numbering of its protocol.
    pub(crate) kind: u16,
    pub(crate) flags: u16,
    /// The number of the request that it responds to.
    pub(crate) sequence: u32,
    /// The bytes after the header.
    pub(crate) payload: &'a [u8],
}

impl Message<'_> {
    /// The outcome of a request, 0 or an errno value, if the message has one: an acknowledgement, or the last message of a failed
    /// dump.
    pub(crate) fn outcome(&self) -> Option<i32> {
        let code = self.payload.first_chunk::<4>().map(|code| i32::from_ne_bytes(*code));
        match (self.kind, code) {
            (ERROR, code) => Some(code?.wrapping_neg()),
            (DONE, Some(code)) if code != 0 => Some(code.wrapping_neg()),
            (_, _) => None,
        }
    }

    /// Whether a dump is complete.
    pub(crate) fn is_done(&self) -> bool {
        self.kind == DONE
    }
}

/// The messages in the data of one read.
pub(crate) fn messages(mut rest: &[u8]) -> impl Iterator<Item = Message<'_>> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<HEADER>()?;
        let [l0, l1, l2, l3, k0, k1, f0, f1, s0, s1, s2, s3, ..] = *header;
        let length = u32::from_ne_bytes([l0, l1, l2, l3]) as usize;
        let payload = rest.get(HEADER..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some(Message {
            kind: u16::from_ne_bytes([k0, k1]),
            flags: u16::from_ne_bytes([f0, f1]),
            sequence: u32::from_ne_bytes([s0, s1, s2, s3]),
            payload,
        })
    })
}

/// A message with its header.
pub(crate) fn message(kind: u16, flags: u16, sequence: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(HEADER + payload.len()).unwrap_or(u32::MAX);
    let mut bytes = Vec::with_capacity(HEADER + payload.len() + 3);
    bytes.extend(length.to_ne_bytes());
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    // The port of the kernel.
    bytes.extend([0; 4]);
    bytes.extend(payload);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let length = u16::try_from(value.len() + 4).unwrap_or(u16::MAX);
    let mut bytes = [&length.to_ne_bytes()[..], &kind.to_ne_bytes(), value].concat();
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

pub(crate) fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | NESTED, value)
}

/// Text with a terminating NUL.
pub(crate) fn text(kind: u16, value: &str) -> Vec<u8> {
    attribute(kind, &[value.as_bytes(), &[0]].concat())
}

/// The value of the first attribute of a kind.
pub(crate) fn find(attributes: &[u8], kind: u16) -> Option<&[u8]> {
    self::attributes(attributes).find_map(|(found, value)| (found == kind).then_some(value))
}

/// Splits bytes into attributes: their kinds and values.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = rest.split_first_chunk::<4>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & !KIND_FLAGS;
        let value = rest.get(4..length)?;
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// A number in host byte order.
pub(crate) fn as_u32(value: &[u8]) -> Option<u32> {
    value.first_chunk::<4>().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Text that ends at its first NUL.
pub(crate) fn as_text(value: &[u8]) -> String {
    let text = value.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_and_attributes_survive_a_round_trip(
            parts in prop::collection::vec((0u16..0x3fff, prop::collection::vec(any::<u8>(), 0..9)), 0..5),
            sequence: u32,
        ) {
            let payload: Vec<u8> =
                parts.iter().flat_map(|(kind, value)| attribute(*kind, value)).collect();
            let bytes = [message(16, REQUEST, sequence, &payload), message(17, ACK, 1, b"abc")].concat();
            let found: Vec<_> = messages(&bytes).collect();
            prop_assert_eq!(found[0], Message { kind: 16, flags: REQUEST, sequence, payload: &payload });
            prop_assert_eq!(found[1].payload, b"abc");
            let read: Vec<(u16, &[u8])> = attributes(&payload).collect();
            let written: Vec<(u16, &[u8])> = parts.iter().map(|(kind, value)| (*kind, &value[..])).collect();
            prop_assert_eq!(read, written);
        }

        #[test]
        fn message_parser_accepts_any_bytes(bytes: Vec<u8>, cut in 0usize..64) {
            for message in messages(&bytes) {
                let _ = (message.outcome(), find(message.payload, 1).map(as_text));
            }
            let whole = message(2, 0, 1, &nested(1, &text(2, "eth0")));
            let cut = whole.get(..cut).unwrap_or(&whole);
            prop_assert_eq!(messages(cut).count(), usize::from(cut.len() == whole.len()));
        }
    }

    #[test]
    fn error_and_failed_dump_are_outcomes() {
        let outcome = |kind, code: i32| {
            let bytes = message(kind, 0, 7, &code.to_ne_bytes());
            messages(&bytes).next().unwrap().outcome()
        };
        assert_eq!([outcome(ERROR, 0), outcome(ERROR, -19)], [Some(0), Some(19)]);
        assert_eq!([outcome(DONE, 0), outcome(DONE, -4), outcome(16, 0)], [None, Some(4), None]);
    }
}
