//! ◆ Splits the bytes of a gRPC body into messages as they arrive.

use bytes::{BufMut as _, Bytes, BytesMut};

/// The length of a message's prefix: a flag and the length of the message (gRPC over HTTP/2, Length-Prefixed-Message).
const PREFIX: usize = 5;

/// The maximum length of a message. Clients accept only shorter ones: a kubelet, messages of up to 16 MiB.
const LONGEST: usize = 64 << 20;

/// A message of a gRPC body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Frame {
    /// Whether the message is compressed. A part of a message that is too long counts as compressed: it cannot be decoded either.
    pub(super) compressed: bool,
    pub(super) message: Bytes,
    /// The frame's bytes as sent.
    pub(super) bytes: Bytes,
}

impl Frame {
    /// The frame of an uncompressed message.
    pub(super) fn of(message: &[u8]) -> Self {
        let mut bytes = BytesMut::with_capacity(PREFIX + message.len());
        bytes.put_u8(0);
        // A received message has a length of 32 bits, and changes hardly make it longer.
        bytes.put_u32(u32::try_from(message.len()).unwrap_or(u32::MAX));
        bytes.extend_from_slice(message);
        let bytes = bytes.freeze();
        Self { compressed: false, message: bytes.slice(PREFIX..), bytes }
    }
}

/// The bytes of a body that do not form a complete message yet.
#[derive(Debug, Default)]
pub(super) struct Frames {
    pending: BytesMut,
    /// Whether a message is too long: its bytes and all later ones are passed on as they arrive, to bound the memory.
    is_raw: bool,
}

impl Frames {
    /// Adds bytes of the body, and returns the messages that they complete.
    pub(super) fn push(&mut self, data: &[u8]) -> Vec<Frame> {
        self.pending.extend_from_slice(data);
        let mut complete = Vec::new();
        while !self.is_raw
            && let Some((&flag, rest)) = self.pending.split_first()
            && let Some(length) = rest.first_chunk::<4>()
        {
            let length = u32::from_be_bytes(*length) as usize;
            self.is_raw = length > LONGEST;
            if self.is_raw || rest.len() - 4 < length {
                break;
            }
            let bytes = self.pending.split_to(PREFIX + length).freeze();
            complete.push(Frame { compressed: flag != 0, message: bytes.slice(PREFIX..), bytes });
        }
        if self.is_raw && !self.pending.is_empty() {
            let bytes = self.rest();
            complete.push(Frame { compressed: true, message: bytes.clone(), bytes });
        }
        complete
    }

    /// Takes the bytes of an incomplete message.
    pub(super) fn rest(&mut self) -> Bytes {
        self.pending.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn messages_are_found_in_chunks_of_any_size(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 0..6),
            chunk in 1_usize..50,
        ) {
            let mut body = Vec::new();
            for message in &messages {
                body.push(0);
                body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
                body.extend(message);
            }
            let mut frames = Frames::default();
            let found: Vec<_> = body.chunks(chunk).flat_map(|data| frames.push(data)).collect();
            let sent: Vec<u8> = found.iter().flat_map(|frame| frame.bytes.clone()).collect();
            prop_assert_eq!(&sent, &body);
            let made: Vec<_> = messages.iter().map(|message| Frame::of(message)).collect();
            prop_assert_eq!(&made, &found);
            let found: Vec<_> = found.into_iter().map(|frame| frame.message.to_vec()).collect();
            prop_assert_eq!(found, messages);
        }
    }

    #[test]
    fn incomplete_message_is_held_back() {
        let mut frames = Frames::default();
        assert!(frames.push(&[1, 0, 0xff, 0xff, 0xff, 7]).is_empty());
        let mut frames = Frames::default();
        assert!(frames.push(&[1, 0, 0, 0]).is_empty());
        let found = frames.push(&[1, 9, 0]);
        assert_eq!(found.len(), 1);
        assert!(found[0].compressed);
        assert_eq!(found[0].bytes.as_ref(), [1, 0, 0, 0, 1, 9]);
        assert_eq!(found[0].message.as_ref(), [9]);
        assert_eq!(frames.rest().as_ref(), [0]);
        assert!(frames.rest().is_empty());
    }

    #[test]
    fn message_that_is_too_long_is_passed_on_in_parts() {
        let mut frames = Frames::default();
        let found = frames.push(&[0, 0, 0, 0, 1, 9, 0, 0xff, 0xff, 0xff, 0xff, 7]);
        let bytes: Vec<&[u8]> = found.iter().map(|frame| frame.bytes.as_ref()).collect();
        assert_eq!(bytes, [&[0_u8, 0, 0, 0, 1, 9][..], &[0, 0xff, 0xff, 0xff, 0xff, 7]]);
        let found = frames.push(&[8; 3]);
        assert_eq!((found.len(), found[0].compressed), (1, true));
        assert_eq!(found[0].bytes.as_ref(), [8; 3]);
        assert!(frames.rest().is_empty());
    }
}
