//! Headers of SPDY streams: names and values, compressed by one zlib stream in each direction (SPDY Draft 3.1, section
//! 2.6.10) ◆

mod dictionary;

use flate2::{Compress, Compression, Decompress, FlushCompress, FlushDecompress, Status};

/// Limit on an inflated header block: real clients send a few hundred bytes.
const MAX_BLOCK: usize = 64 << 10;
/// Limit on the headers in a block.
const MAX_HEADERS: usize = 256;

/// Why a header block could not be read. Later blocks cannot be read either, because they share its compression
/// state.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum HeadersError {
    #[error("headers are not valid zlib data")]
    Compression,
    #[error("headers are longer than {MAX_BLOCK} bytes once inflated")]
    TooLong,
    #[error("there are more than {MAX_HEADERS} headers")]
    TooMany,
    #[error("headers end early")]
    Short,
}

/// The headers of a stream: lower-case names, and values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers(Vec<(String, String)>);

impl Headers {
    /// Creates headers from names and values.
    #[must_use]
    pub fn of(pairs: &[(&str, &str)]) -> Self {
        let pair = |(name, value): &(&str, &str)| (name.to_ascii_lowercase(), (*value).to_owned());
        Self(pairs.iter().map(pair).collect())
    }

    /// The first value of a header, whose name is compared without regard to case.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        let (_, value) = self.0.iter().find(|(have, _)| have.eq_ignore_ascii_case(name))?;
        // NUL separates several values of one name.
        value.split('\0').next()
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let number = |out: &mut Vec<u8>, n: usize| {
            out.extend_from_slice(&u32::try_from(n).unwrap_or(u32::MAX).to_be_bytes());
        };
        number(&mut out, self.0.len());
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            number(&mut out, text.len());
            out.extend_from_slice(text.as_bytes());
        }
        out
    }

    fn decode(mut block: &[u8]) -> Result<Self, HeadersError> {
        let count = number(&mut block)?;
        if count > MAX_HEADERS {
            return Err(HeadersError::TooMany);
        }
        let mut pairs = Vec::with_capacity(count);
        for _ in 0..count {
            pairs.push((text(&mut block)?.to_ascii_lowercase(), text(&mut block)?));
        }
        Ok(Self(pairs))
    }
}

fn number(block: &mut &[u8]) -> Result<usize, HeadersError> {
    let (bytes, rest) = block.split_first_chunk().ok_or(HeadersError::Short)?;
    *block = rest;
    usize::try_from(u32::from_be_bytes(*bytes)).map_err(|_| HeadersError::Short)
}

fn text(block: &mut &[u8]) -> Result<String, HeadersError> {
    let length = number(block)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(HeadersError::Short)?;
    *block = rest;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// Compresses headers into blocks, in the order in which they are sent.
#[derive(Debug)]
pub(super) struct Deflater(Compress);

impl Deflater {
    pub(super) fn new() -> Self {
        // A small window: a connection has few headers, and holds the compressor's memory for its lifetime.
        let mut compress = Compress::new_with_window_bits(Compression::fast(), true, 11);
        compress.set_dictionary(&dictionary::bytes()).expect("a new compressor takes a dictionary");
        Self(compress)
    }

    pub(super) fn block(&mut self, headers: &Headers) -> Vec<u8> {
        let plain = headers.encode();
        let mut out = Vec::with_capacity(plain.len() + 64);
        let before = self.0.total_in();
        loop {
            let done = usize::try_from(self.0.total_in() - before).unwrap_or(usize::MAX);
            // Compression only fails after the stream's end, which is never requested.
            let flushed =
                self.0.compress_vec(&plain[done.min(plain.len())..], &mut out, FlushCompress::Sync);
            if !matches!(flushed, Ok(Status::Ok)) || out.len() < out.capacity() {
                return out;
            }
            out.reserve(256);
        }
    }
}

/// Decompresses blocks into headers, in the order in which they were received.
#[derive(Debug)]
pub(super) struct Inflater(Decompress);

impl Inflater {
    pub(super) fn new() -> Self {
        Self(Decompress::new(true))
    }

    pub(super) fn headers(&mut self, mut block: &[u8]) -> Result<Headers, HeadersError> {
        // A block of any length is accepted, but inflates to no more than the limit.
        let mut plain = Vec::with_capacity(block.len().clamp(512, MAX_BLOCK));
        loop {
            let (before_in, before_out) = (self.0.total_in(), plain.len());
            let result = self.0.decompress_vec(block, &mut plain, FlushDecompress::Sync);
            let taken = usize::try_from(self.0.total_in() - before_in).unwrap_or(usize::MAX);
            block = block.get(taken..).ok_or(HeadersError::Compression)?;
            match result {
                Ok(Status::Ok | Status::BufError) => {}
                // The zlib stream must not end before the connection does.
                Ok(Status::StreamEnd) => return Err(HeadersError::Compression),
                Err(error) if error.needs_dictionary().is_some() => {
                    self.0
                        .set_dictionary(&dictionary::bytes())
                        .map_err(|_| HeadersError::Compression)?;
                    continue;
                }
                Err(_) => return Err(HeadersError::Compression),
            }
            if plain.len() == plain.capacity() {
                if plain.len() >= MAX_BLOCK {
                    return Err(HeadersError::TooLong);
                }
                plain.reserve_exact(plain.len().min(MAX_BLOCK - plain.len()));
            } else if block.is_empty() {
                return Headers::decode(&plain);
            } else if taken == 0 && plain.len() == before_out {
                return Err(HeadersError::Compression);
            }
        }
    }
}

#[cfg(test)]
mod tests;
