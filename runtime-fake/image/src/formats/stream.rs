//! Readers that hash, count and decompress, so that one pass over a layer verifies it.

use std::io::{self, BufReader, Read};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use sha2::Digest as _;

use crate::error::ContentError;
use crate::formats::digest::Digest;
use crate::formats::limits::Budget;

/// The digest of everything read through a [`Hashing`] reader so far.
#[derive(Clone, Default)]
pub(crate) struct Digester(Arc<Mutex<sha2::Sha256>>);

impl Digester {
    pub(crate) fn digest(&self) -> Digest {
        self.with(|hash| Digest::finish(hash.clone()))
    }

    fn with<T>(&self, work: impl FnOnce(&mut sha2::Sha256) -> T) -> T {
        // Hashing does not panic, so the lock is never poisoned.
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The number of bytes read through a [`Counting`] reader so far.
#[derive(Debug, Clone, Default)]
pub(crate) struct Counter(Arc<AtomicU64>);

impl Counter {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counts the bytes read through it.
pub(crate) struct Counting<R> {
    inner: R,
    counter: Counter,
}

impl<R: Read> Counting<R> {
    pub(crate) fn new(inner: R) -> (Self, Counter) {
        let counter = Counter::default();
        let own = counter.clone();
        (Self { inner, counter: own }, counter)
    }
}

impl<R: Read> Read for Counting<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.counter.0.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }
}

/// Hashes the bytes read through it.
pub(crate) struct Hashing<R> {
    inner: R,
    digester: Digester,
}

impl<R: Read> Hashing<R> {
    pub(crate) fn new(inner: R) -> (Self, Digester) {
        let digester = Digester::default();
        (Self { inner, digester: digester.clone() }, digester)
    }
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.digester.with(|hash| hash.update(&buffer[..n]));
        Ok(n)
    }
}

/// Decompresses by the magic number: gzip (any number of members), zstd, or no compression.
pub(crate) struct Decoder<'a> {
    inner: Inner<'a>,
    what: String,
}

type Packed<'a> = BufReader<Box<dyn Read + Send + 'a>>;

enum Inner<'a> {
    Plain(Packed<'a>),
    Gzip(Box<flate2::bufread::MultiGzDecoder<Packed<'a>>>),
    Zstd(Box<zstd::Decoder<'static, Packed<'a>>>),
}

/// zstd's own limit on the window of a frame (128 MiB) applies.
impl<'a> Decoder<'a> {
    /// `what` names the stream in errors.
    pub(crate) fn new(mut from: impl Read + Send + 'a, what: &str) -> Result<Self, ContentError> {
        let mut magic = [0u8; 4];
        let mut have = 0;
        while have < magic.len() {
            match from.read(&mut magic[have..]).map_err(ContentError::io(format!("read {what}")))? {
                0 => break,
                n => have += n,
            }
        }
        let start = io::Cursor::new(magic[..have].to_vec());
        let whole: Packed<'a> = BufReader::with_capacity(128 << 10, Box::new(start.chain(from)));
        let inner = match magic {
            [0x1f, 0x8b, ..] => Inner::Gzip(Box::new(flate2::bufread::MultiGzDecoder::new(whole))),
            [0x28, 0xb5, 0x2f, 0xfd] | [0x50..=0x5f, 0x2a, 0x4d, 0x18] => Inner::Zstd(Box::new(
                zstd::Decoder::with_buffer(whole)
                    .map_err(ContentError::io("set up a zstd decompressor"))?,
            )),
            _ => Inner::Plain(whole),
        };
        Ok(Self { inner, what: what.to_owned() })
    }

    pub(crate) fn is_plain(&self) -> bool {
        matches!(self.inner, Inner::Plain(_))
    }
}

impl Read for Decoder<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = match &mut self.inner {
            Inner::Plain(inner) => return inner.read(buffer),
            Inner::Gzip(inner) => inner.read(buffer),
            Inner::Zstd(inner) => inner.read(buffer),
        };
        read.map_err(|source| {
            // An operating system error comes from the disk; a `ContentError` from the reader below; any other error from
            // the data.
            let told = source.get_ref().is_some_and(|inner| inner.is::<ContentError>());
            if told || source.raw_os_error().is_some() {
                return source;
            }
            let what = self.what.clone();
            io::Error::other(if source.kind() == io::ErrorKind::UnexpectedEof {
                ContentError::Truncated { what }
            } else {
                ContentError::Compressed { what, source }
            })
        })
    }
}

/// Charges the bytes read to the budget, and refuses a decompression bomb.
pub(crate) struct Metered<'a, R> {
    inner: R,
    budget: &'a Budget,
    /// Counts the compressed bytes; `None` without compression.
    compressed: Option<Counter>,
    unpacked: u64,
    what: String,
}

impl<'a, R: Read> Metered<'a, R> {
    pub(crate) fn new(
        inner: R,
        budget: &'a Budget,
        compressed: Option<Counter>,
        what: &str,
    ) -> Self {
        Self { inner, budget, compressed, unpacked: 0, what: what.to_owned() }
    }
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buffer)?;
        self.budget.take_bytes(n as u64, &self.what).map_err(io::Error::other)?;
        self.unpacked += n as u64;
        let limits = &self.budget.limits;
        if let Some(compressed) = &self.compressed
            && self.unpacked > limits.ratio_from
            && self.unpacked / limits.ratio > compressed.bytes()
        {
            let what = self.what.clone();
            return Err(io::Error::other(ContentError::Ratio { what, limit: limits.ratio }));
        }
        Ok(n)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::io::Write;

    use rstest::rstest;

    use super::*;
    use crate::formats::limits::Limits;

    fn gzip(data: &[u8]) -> Vec<u8> {
        let mut to = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
        to.write_all(data).unwrap();
        to.finish().unwrap()
    }

    fn zstd(data: &[u8]) -> Vec<u8> {
        zstd::encode_all(data, 3).unwrap()
    }

    fn plain(data: &[u8]) -> Vec<u8> {
        data.to_vec()
    }

    #[rstest]
    fn decoder_detects_compression(
        #[values(gzip, zstd, plain)] encode: fn(&[u8]) -> Vec<u8>,
        #[values(0, 1, 3, 4, 100_000)] size: usize,
    ) {
        let data: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        let encoded = encode(&data);
        let mut out = Vec::new();
        Decoder::new(&encoded[..], "it").unwrap().read_to_end(&mut out).unwrap();
        assert_eq!(out, data);
    }

    #[rstest]
    fn truncated_stream_is_an_error(#[values(gzip, zstd)] encode: fn(&[u8]) -> Vec<u8>) {
        let encoded = encode(&[7; 100_000]);
        for cut in 5..encoded.len() {
            let mut out = Vec::new();
            let error =
                Decoder::new(&encoded[..cut], "it").unwrap().read_to_end(&mut out).unwrap_err();
            let problem = ContentError::io("read")(error);
            assert!(matches!(problem, ContentError::Truncated { .. }), "cut at {cut}: {problem:?}");
        }
    }

    #[test]
    fn two_gzip_members_are_one_stream() {
        let mut encoded = gzip(b"one");
        encoded.extend(gzip(b"two"));
        let mut out = String::new();
        Decoder::new(&encoded[..], "it").unwrap().read_to_string(&mut out).unwrap();
        assert_eq!(out, "onetwo");
    }

    fn meter(data: &[u8], limits: &Limits) -> Result<(), ContentError> {
        let (counting, counter) = Counting::new(data);
        let decoder = Decoder::new(counting, "it")?;
        let budget = Budget::new(limits);
        let mut metered = Metered::new(decoder, &budget, Some(counter), "it");
        io::copy(&mut metered, &mut io::sink()).map_err(ContentError::io("read"))?;
        Ok(())
    }

    #[test]
    fn decompression_bombs_and_oversized_streams_are_refused() {
        let bomb = gzip(&vec![0; 1 << 20]);
        let limits = Limits { ratio: 100, ratio_from: 1 << 16, ..Limits::default() };
        assert!(matches!(meter(&bomb, &limits), Err(ContentError::Ratio { limit: 100, .. })));
        let limits = Limits { unpacked_bytes: (1 << 20) - 1, ..Limits::default() };
        assert!(matches!(meter(&bomb, &limits), Err(ContentError::TooMuch { .. })));
        let limits = Limits { unpacked_bytes: 1 << 20, ..Limits::default() };
        meter(&bomb, &limits).unwrap();
    }
}
