//! Encodes and decodes frames of SPDY/3.1 (SPDY Protocol, Draft 3.1, section 2) ◆

/// The version in every control frame.
const VERSION: u16 = 3;
/// Limit on the payload of a control frame: real clients send a few hundred bytes.
pub(super) const MAX_CONTROL: usize = 64 << 10;
/// The length of a frame's header.
pub(super) const HEAD: usize = 8;
/// Stream IDs and window sizes have 31 bits.
const LOW_31: u32 = 0x7fff_ffff;
/// The highest bit of the first word distinguishes control frames from data frames.
const CONTROL: u32 = 0x8000_0000;

const FIN: u8 = 1;
const UNIDIRECTIONAL: u8 = 2;

/// The setting for a stream's initial window.
pub(super) const INITIAL_WINDOW_SIZE: u32 = 7;

/// Status codes of RST_STREAM.
pub(super) mod reset {
    pub(crate) const REFUSED_STREAM: u32 = 3;
    pub(crate) const CANCEL: u32 = 5;
    pub(crate) const FLOW_CONTROL_ERROR: u32 = 7;
}

/// A malformed frame. The connection cannot be used after it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum FrameError {
    #[error("a control frame is of version {0}, not {VERSION}")]
    Version(u16),
    #[error("a control frame is {0} bytes long; {MAX_CONTROL} are allowed")]
    TooLong(usize),
    #[error("a {0} frame has the wrong length")]
    Length(&'static str),
    #[error("a {0} frame names no stream")]
    NoStream(&'static str),
}

/// A frame's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Head {
    Data { id: u32, fin: bool, length: usize },
    Control { kind: u16, flags: u8, length: usize },
}

/// A control frame. A block is compressed headers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Frame {
    SynStream {
        id: u32,
        fin: bool,
        unidirectional: bool,
        block: Vec<u8>,
    },
    SynReply {
        id: u32,
        fin: bool,
        block: Vec<u8>,
    },
    Reset {
        id: u32,
        status: u32,
    },
    /// Pairs of setting and value.
    Settings(Vec<(u32, u32)>),
    Ping(u32),
    GoAway {
        last: u32,
        status: u32,
    },
    Headers {
        id: u32,
        fin: bool,
        block: Vec<u8>,
    },
    /// ID 0 means the whole connection.
    WindowUpdate {
        id: u32,
        delta: u32,
    },
    /// An unknown kind, which the protocol requires to ignore.
    Unknown,
}

/// Parses a frame's header.
pub(super) fn head(bytes: [u8; HEAD]) -> Result<Head, FrameError> {
    let [a, b, c, d, flags, l1, l2, l3] = bytes;
    let first = u32::from_be_bytes([a, b, c, d]);
    let length = u32::from_be_bytes([0, l1, l2, l3]) as usize;
    if first & CONTROL == 0 {
        let fin = flags & FIN != 0;
        return match first {
            0 => Err(FrameError::NoStream("data")),
            id => Ok(Head::Data { id, fin, length }),
        };
    }
    let version = u16::from_be_bytes([a & 0x7f, b]);
    if version != VERSION {
        return Err(FrameError::Version(version));
    }
    if length > MAX_CONTROL {
        return Err(FrameError::TooLong(length));
    }
    Ok(Head::Control { kind: u16::from_be_bytes([c, d]), flags, length })
}

/// The header of a data frame. Only 24 bits of the length are used.
pub(super) fn data_head(id: u32, fin: bool, length: usize) -> [u8; HEAD] {
    let [a, b, c, d] = id.to_be_bytes();
    let [.., l1, l2, l3] = length.to_be_bytes();
    [a, b, c, d, if fin { FIN } else { 0 }, l1, l2, l3]
}

/// Parses the payload of a control frame.
pub(super) fn control(kind: u16, flags: u8, payload: &[u8]) -> Result<Frame, FrameError> {
    let fin = flags & FIN != 0;
    let frame = match kind {
        1 => {
            let (id, rest) = stream("SYN_STREAM", payload)?;
            // Skip the associated stream, priority and credential slot, which are unused here.
            let block = rest.get(6..).ok_or(FrameError::Length("SYN_STREAM"))?;
            Frame::SynStream {
                id,
                fin,
                unidirectional: flags & UNIDIRECTIONAL != 0,
                block: block.to_vec(),
            }
        }
        2 | 8 => {
            let (id, block) = stream("SYN_REPLY or HEADERS", payload)?;
            let block = block.to_vec();
            if kind == 2 {
                Frame::SynReply { id, fin, block }
            } else {
                Frame::Headers { id, fin, block }
            }
        }
        3 => {
            let (id, rest) = stream("RST_STREAM", payload)?;
            let status = only_word("RST_STREAM", rest)?;
            Frame::Reset { id, status }
        }
        4 => Frame::Settings(settings(payload)?),
        6 => Frame::Ping(only_word("PING", payload)?),
        7 => {
            let (last, rest) = word("GOAWAY", payload)?;
            Frame::GoAway { last: last & LOW_31, status: only_word("GOAWAY", rest)? }
        }
        9 => {
            let (id, rest) = word("WINDOW_UPDATE", payload)?;
            Frame::WindowUpdate {
                id: id & LOW_31,
                delta: only_word("WINDOW_UPDATE", rest)? & LOW_31,
            }
        }
        _ => Frame::Unknown,
    };
    Ok(frame)
}

fn settings(payload: &[u8]) -> Result<Vec<(u32, u32)>, FrameError> {
    let (count, entries) = word("SETTINGS", payload)?;
    // Compare as u64: the peer's count could overflow a u32.
    if u64::from(count) * 8 != entries.len() as u64 {
        return Err(FrameError::Length("SETTINGS"));
    }
    entries
        .chunks_exact(8)
        .map(|entry| {
            let (id, value) = word("SETTINGS", entry)?;
            // The highest byte holds flags for persisting the setting.
            Ok((id & 0x00ff_ffff, only_word("SETTINGS", value)?))
        })
        .collect()
}

fn word<'a>(frame: &'static str, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), FrameError> {
    match bytes.split_first_chunk() {
        Some((word, rest)) => Ok((u32::from_be_bytes(*word), rest)),
        None => Err(FrameError::Length(frame)),
    }
}

fn only_word(frame: &'static str, bytes: &[u8]) -> Result<u32, FrameError> {
    match word(frame, bytes)? {
        (word, []) => Ok(word),
        _ => Err(FrameError::Length(frame)),
    }
}

fn stream<'a>(frame: &'static str, bytes: &'a [u8]) -> Result<(u32, &'a [u8]), FrameError> {
    match word(frame, bytes)? {
        (id, _) if id & LOW_31 == 0 => Err(FrameError::NoStream(frame)),
        (id, rest) => Ok((id & LOW_31, rest)),
    }
}

impl Frame {
    /// Appends the frame's bytes.
    pub(super) fn encode(&self, out: &mut Vec<u8>) {
        let fin_flag = |fin: bool| if fin { FIN } else { 0 };
        match self {
            Self::SynStream { id, fin, unidirectional, block } => {
                let one_way = if *unidirectional { UNIDIRECTIONAL } else { 0 };
                begin(out, 1, fin_flag(*fin) | one_way, 10 + block.len());
                words(out, &[*id, 0]);
                out.extend_from_slice(&[0, 0]);
                out.extend_from_slice(block);
            }
            Self::SynReply { id, fin, block } => {
                begin(out, 2, fin_flag(*fin), 4 + block.len());
                words(out, &[*id]);
                out.extend_from_slice(block);
            }
            Self::Reset { id, status } => {
                begin(out, 3, 0, 8);
                words(out, &[*id, *status]);
            }
            Self::Settings(entries) => {
                begin(out, 4, 0, 4 + 8 * entries.len());
                let count = u32::try_from(entries.len()).unwrap_or(u32::MAX);
                words(out, &[count]);
                for (id, value) in entries {
                    words(out, &[*id, *value]);
                }
            }
            Self::Ping(id) => {
                begin(out, 6, 0, 4);
                words(out, &[*id]);
            }
            Self::GoAway { last, status } => {
                begin(out, 7, 0, 8);
                words(out, &[*last, *status]);
            }
            Self::Headers { id, fin, block } => {
                begin(out, 8, fin_flag(*fin), 4 + block.len());
                words(out, &[*id]);
                out.extend_from_slice(block);
            }
            Self::WindowUpdate { id, delta } => {
                begin(out, 9, 0, 8);
                words(out, &[*id, *delta]);
            }
            Self::Unknown => {}
        }
    }
}

fn begin(out: &mut Vec<u8>, kind: u16, flags: u8, length: usize) {
    out.extend_from_slice(&(VERSION | 0x8000).to_be_bytes());
    out.extend_from_slice(&kind.to_be_bytes());
    let [.., l1, l2, l3] = length.to_be_bytes();
    out.extend_from_slice(&[flags, l1, l2, l3]);
}

fn words(out: &mut Vec<u8>, words: &[u32]) {
    for word in words {
        out.extend_from_slice(&word.to_be_bytes());
    }
}

#[cfg(test)]
mod tests;
