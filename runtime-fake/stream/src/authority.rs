//! Rewrites `:authority` in a client's HTTP/2 requests to a value that h2 accepts: bytes in, bytes out. ◆
//!
//! Clients that dial a unix socket send its path as the authority, unchanged, percent-encoded or empty (crictl 1.29, grpcio,
//! grpc-go with a path). h2 accepts only the authority of a URI and resets the stream, while grpc-go's server, which containerd
//! uses, accepts any header value. The runtime does not use the value, so it is replaced.
//!
//! Compressed headers refer to earlier ones, so all header blocks of a connection are decoded here and forwarded
//! without compression. An invalid block is forwarded in a form that h2 rejects with the same error.

#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;

use bytes::Bytes;

use super::hpack::{self, Decoder, Field};

const AUTHORITY: &[u8] = b":authority";
const ACCEPTED: Bytes = Bytes::from_static(b"localhost");

/// The client's connection preface (RFC 9113, 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// The default limit on a frame's payload, which our server does not change (RFC 9113, 4.2).
const MAX_PAYLOAD: usize = 16 << 10;
/// Limit on the buffered frames of an incomplete header block; hyper rejects a longer list, and h2 more frames.
const MAX_HELD: usize = 64 << 10;
/// A block that h2 cannot decompress either: no table has an entry 0 (RFC 7541, 6.1).
const INVALID_BLOCK: [u8; 1] = [0x80];

/// The length of a frame's header.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The length of a stream's priority fields.
const PRIORITY_FIELDS: usize = 5;

/// Rewrites the requests of one connection.
#[derive(Debug)]
pub(crate) struct AuthorityRewriter {
    decoder: Decoder,
    state: State,
    /// The header of a frame, or all frames so far of a header block.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// Forwards this many bytes unchanged: the preface, or the payload of a frame without headers.
    Passing(usize),
    /// Buffers bytes until the frame that starts at this offset is complete.
    Holding { frame: usize },
    /// The connection is invalid, and h2 will report it: forwards everything.
    Broken,
}

impl Default for AuthorityRewriter {
    fn default() -> Self {
        Self { decoder: Decoder::default(), state: State::Passing(PREFACE), held: Vec::new() }
    }
}

impl AuthorityRewriter {
    /// Reads the client's bytes and appends the server's input to `output`.
    pub(crate) fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
        while !input.is_empty() {
            let wanted = match self.state {
                State::Broken => input.len(),
                State::Passing(left) => left,
                State::Holding { frame } => {
                    frame + Head::wanted(&self.held[frame..]) - self.held.len()
                }
            };
            let (taken, rest) = input.split_at(input.len().min(wanted));
            input = rest;
            match self.state {
                State::Broken => output.extend_from_slice(taken),
                State::Passing(left) => {
                    output.extend_from_slice(taken);
                    self.state = passing(left - taken.len());
                }
                State::Holding { frame } => {
                    self.held.extend_from_slice(taken);
                    self.state = self.advance(frame, output);
                }
            }
        }
    }

    /// Decides the next state once a frame's header or a frame is complete.
    fn advance(&mut self, frame: usize, output: &mut Vec<u8>) -> State {
        let Some(head) = Head::read(&self.held[frame..]) else {
            return State::Holding { frame };
        };
        let first = frame == 0;
        if first && head.kind != HEADERS {
            output.append(&mut self.held);
            return passing(head.length);
        }
        let continues = head.kind == CONTINUATION
            && Head::read(&self.held).is_some_and(|begin| begin.stream == head.stream);
        if !(first || continues) || head.length > MAX_PAYLOAD || self.held.len() > MAX_HELD {
            output.append(&mut self.held);
            return State::Broken;
        }
        if self.held.len() < frame + HEAD + head.length {
            return State::Holding { frame };
        }
        if head.flags & END_HEADERS == 0 {
            let frame = self.held.len();
            return State::Holding { frame };
        }
        let rewritten = self.rewrite(output);
        if !rewritten {
            return State::Broken;
        }
        self.held.clear();
        State::Holding { frame: 0 }
    }

    /// Rewrites and forwards a complete header block; returns whether the connection is still valid.
    fn rewrite(&mut self, output: &mut Vec<u8>) -> bool {
        let Some(block) = Block::of(&self.held) else {
            output.append(&mut self.held);
            return false;
        };
        let Ok(fields) = self.decoder.decode(&block.fragments) else {
            block.write(&INVALID_BLOCK, output);
            return false;
        };
        let fields: Vec<Field> = fields.into_iter().map(accepted).collect();
        block.write(&hpack::encode(&fields), output);
        true
    }
}

/// The state for forwarding `left` bytes.
fn passing(left: usize) -> State {
    match left {
        0 => State::Holding { frame: 0 },
        left => State::Passing(left),
    }
}

/// Replaces the authority, if its value is valid in a header (RFC 9110, 5.5).
fn accepted(mut field: Field) -> Field {
    let valid = |b: &u8| *b == b'\t' || (*b >= b' ' && *b != 0x7f);
    if field.name == AUTHORITY && field.value.iter().all(valid) {
        field.value = ACCEPTED;
    }
    field
}

/// A frame's header (RFC 9113, 4.1).
#[derive(Debug, Clone, Copy)]
struct Head {
    length: usize,
    kind: u8,
    flags: u8,
    stream: [u8; 4],
}

impl Head {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [a, b, c, kind, flags, stream @ ..] = bytes.first_chunk::<HEAD>()?;
        Some(Self {
            length: u32::from_be_bytes([0, *a, *b, *c]) as usize,
            kind: *kind,
            flags: *flags,
            stream: *stream,
        })
    }

    /// The number of bytes needed of the frame that starts with `bytes` before the next decision.
    fn wanted(bytes: &[u8]) -> usize {
        Self::read(bytes).map_or(HEAD, |head| HEAD + head.length)
    }
}

/// A header block, assembled from its frames.
#[derive(Debug)]
struct Block<'a> {
    head: Head,
    priority: &'a [u8],
    fragments: Vec<u8>,
}

impl<'a> Block<'a> {
    /// The block of a HEADERS frame and its CONTINUATIONs; `None` if the first one's padding exceeds the frame.
    fn of(frames: &'a [u8]) -> Option<Self> {
        let head = Head::read(frames)?;
        let (mut payload, mut rest) = frames.get(HEAD..)?.split_at_checked(head.length)?;
        if head.flags & PADDED != 0 {
            let (&padding, after) = payload.split_first()?;
            payload = after.get(..after.len().checked_sub(usize::from(padding))?)?;
        }
        let mut priority: &[u8] = &[];
        if head.flags & PRIORITY != 0 {
            (priority, payload) = payload.split_at_checked(PRIORITY_FIELDS)?;
        }
        let mut fragments = payload.to_vec();
        while let Some(head) = Head::read(rest) {
            let (fragment, after) = rest.get(HEAD..)?.split_at_checked(head.length)?;
            fragments.extend_from_slice(fragment);
            rest = after;
        }
        Some(Self { head, priority, fragments })
    }

    fn write(&self, block: &[u8], output: &mut Vec<u8>) {
        let (first, mut rest) = block.split_at(block.len().min(MAX_PAYLOAD - self.priority.len()));
        let last = |rest: &[u8]| if rest.is_empty() { END_HEADERS } else { 0 };
        let flags = self.head.flags & (END_STREAM | PRIORITY) | last(rest);
        self.write_head(HEADERS, flags, self.priority.len() + first.len(), output);
        output.extend_from_slice(self.priority);
        output.extend_from_slice(first);
        while !rest.is_empty() {
            let (fragment, after) = rest.split_at(rest.len().min(MAX_PAYLOAD));
            rest = after;
            self.write_head(CONTINUATION, last(rest), fragment.len(), output);
            output.extend_from_slice(fragment);
        }
    }

    fn write_head(&self, kind: u8, flags: u8, length: usize, output: &mut Vec<u8>) {
        let [.., a, b, c] = length.to_be_bytes();
        output.extend_from_slice(&[a, b, c, kind, flags]);
        output.extend_from_slice(&self.head.stream);
    }
}

#[cfg(test)]
#[path = "authority/tests.rs"]
mod tests;
