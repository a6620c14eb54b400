//! Makes `:authority` of a client's requests one that h2 accepts: bytes of a connection in, bytes out. ◆
//!
//! Clients that dial a unix socket send its path as the authority, as it is, percent-encoded or empty (crictl 1.29, grpcio,
//! grpc-go with a path); h2 takes only what a URI may have there and resets the stream, while grpc-go's server, containerd's,
//! takes any value of a header. Here nothing depends on the value, so it is replaced.
//!
//! Compressed headers refer to earlier ones, so all blocks of a connection are decoded here and handed on without
//! compression. What cannot be read is handed on in a form that h2 refuses with the same error.

use bytes::Bytes;

use super::hpack::{self, Decoder, Field};

const AUTHORITY: &[u8] = b":authority";
const ACCEPTED: Bytes = Bytes::from_static(b"localhost");

/// What a client sends before its first frame (RFC 9113, 3.4).
const PREFACE: usize = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".len();
/// The largest payload of a frame unless a server says otherwise, which ours does not (RFC 9113, 4.2).
const MAX_PAYLOAD: usize = 16 << 10;
/// What is kept of a header block that has not ended; hyper refuses such a list, and h2 so many frames.
const MAX_HELD: usize = 64 << 10;
/// The block that h2 cannot decompress either: no table has an entry 0 (RFC 7541, 6.1).
const INVALID_BLOCK: [u8; 1] = [0x80];

/// The bytes of a frame before its payload.
const HEAD: usize = 9;
const HEADERS: u8 = 1;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;
/// The bytes of a stream's priority.
const PRIORITY_FIELDS: usize = 5;

/// One connection's requests.
#[derive(Debug)]
pub(super) struct AuthorityRewriter {
    decoder: Decoder,
    state: State,
    /// The head of a frame, or all frames of a header block so far.
    held: Vec<u8>,
}

#[derive(Debug, Clone, Copy)]
enum State {
    /// As many bytes are handed on as they are: the preface, or the payload of a frame without headers.
    Passing(usize),
    /// Bytes are held back until a frame that begins at this place among them is complete.
    Holding { frame: usize },
    /// The connection is broken, and h2 will say so: everything is handed on.
    Broken,
}

impl Default for AuthorityRewriter {
    fn default() -> Self {
        Self {
            decoder: Decoder::default(),
            state: State::Passing(PREFACE),
            held: Vec::new(),
        }
    }
}

impl AuthorityRewriter {
    /// Takes what the client has sent, and appends to `output` what the server is to read.
    pub(super) fn push(&mut self, mut input: &[u8], output: &mut Vec<u8>) {
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

    /// Decides what comes next once a frame's head or a frame is complete.
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

    /// Hands on a header block that is complete; whether the connection can go on.
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

/// The state before as many bytes that are handed on.
fn passing(left: usize) -> State {
    match left {
        0 => State::Holding { frame: 0 },
        left => State::Passing(left),
    }
}

/// A field with the authority replaced, if it is one that a header may have (RFC 9110, 5.5).
fn accepted(mut field: Field) -> Field {
    let valid = |b: &u8| *b == b'\t' || (*b >= b' ' && *b != 0x7f);
    if field.name == AUTHORITY && field.value.iter().all(valid) {
        field.value = ACCEPTED;
    }
    field
}

/// The head of a frame (RFC 9113, 4.1).
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

    /// How many bytes the frame that begins with `bytes` has to have for the next decision.
    fn wanted(bytes: &[u8]) -> usize {
        Self::read(bytes).map_or(HEAD, |head| HEAD + head.length)
    }
}

/// A header block, out of its frames.
#[derive(Debug)]
struct Block<'a> {
    head: Head,
    priority: &'a [u8],
    fragments: Vec<u8>,
}

impl<'a> Block<'a> {
    /// The block of a HEADERS frame and its CONTINUATIONs, unless the first one's padding is longer than the frame.
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
        Some(Self {
            head,
            priority,
            fragments,
        })
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
