//! Reads tar members in sequence: ustar, GNU long names and PAX records, each bounded.
//!
//! The tar crate decodes header blocks; the iteration is crib's own, because it must bound the size of extension headers in
//! memory and report errors with their position.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use tar::EntryType;

use crate::error::ContentError;
use crate::formats::pax::Extensions;
use crate::formats::sparse::{self, Map, MapReader, Sparse};

const BLOCK: usize = 512;

/// The kind of file that a member creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A sparse file: `data` has the offsets of the body's bytes.
    Sparse,
    /// A hard link to an earlier member.
    HardLink,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Char,
    /// A block device.
    Block,
    /// A directory.
    Directory,
    /// A named pipe.
    Fifo,
}

/// A member's header, with extensions applied.
#[derive(Debug, Clone)]
pub struct Member {
    /// The path as in the archive: not checked, not normalised.
    pub path: Vec<u8>,
    /// Target of a symbolic or hard link, as in the archive; empty otherwise.
    pub link: Vec<u8>,
    /// The kind of file that it creates.
    pub kind: Kind,
    /// The file's size: bytes of the body, plus holes if it is sparse. For other kinds the header's size is ignored,
    /// as in every common reader.
    pub size: u64,
    /// For a sparse file, offset and length of each part in the body; empty otherwise.
    pub data: Map,
    /// Permission bits with setuid, setgid and sticky: 0o7777.
    pub mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds since 1970, and nanoseconds.
    pub mtime: (i64, u32),
    /// Major and minor number of a device.
    pub(crate) device: (u32, u32),
    /// Extended attributes: name and value.
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    /// Where the body starts in the stream.
    pub offset: u64,
}

/// A reader that can skip bytes; for a file this is a seek.
pub trait Skip: Read {
    /// Skips `n` bytes; `UnexpectedEof` if there are fewer.
    fn skip(&mut self, n: u64) -> io::Result<()>;
}

/// A file of known length.
pub struct SeekFile {
    file: File,
    at: u64,
    len: u64,
}

impl SeekFile {
    /// Reads `file` from its start.
    pub fn new(mut file: File) -> io::Result<Self> {
        let len = file.metadata()?.len();
        file.seek(SeekFrom::Start(0))?;
        Ok(Self { file, at: 0, len })
    }
}

impl Read for SeekFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let n = self.file.read(buffer)?;
        self.at += n as u64;
        Ok(n)
    }
}

impl Skip for SeekFile {
    fn skip(&mut self, n: u64) -> io::Result<()> {
        let to = self.at.checked_add(n).filter(|to| *to <= self.len);
        self.at = self.file.seek(SeekFrom::Start(to.ok_or(io::ErrorKind::UnexpectedEof)?))?;
        Ok(())
    }
}

/// Any reader; skips bytes by reading them.
pub struct Sequential<R>(pub R);

impl<R: Read> Read for Sequential<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl<R: Read> Skip for Sequential<R> {
    fn skip(&mut self, n: u64) -> io::Result<()> {
        if io::copy(&mut (&mut self.0).take(n), &mut io::sink())? < n {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }
}

/// Iterates over the members of a tar stream. After [`TarReader::next_member`], reading returns the member's
/// body.
pub struct TarReader<R> {
    inner: R,
    what: String,
    at: u64,
    /// Unread bytes of the current body, and the padding after it.
    body: u64,
    padding: u64,
    extension_limit: u64,
}

impl<R: Skip> TarReader<R> {
    /// `what` names the stream in errors; `extension_limit` bounds the extension headers of a member.
    pub fn new(inner: R, what: &str, extension_limit: u64) -> Self {
        Self { inner, what: what.to_owned(), at: 0, body: 0, padding: 0, extension_limit }
    }

    /// The next member, or `None` after the last.
    pub fn next_member(&mut self) -> Result<Option<Member>, ContentError> {
        let rest = self.body + self.padding;
        if rest > 0 {
            self.inner.skip(rest).map_err(|e| self.failed(e))?;
            self.at += rest;
        }
        (self.body, self.padding) = (0, 0);
        let mut extensions = Extensions::default();
        // All extension headers of one member are buffered until the member's own header.
        let mut room = self.extension_limit;
        loop {
            let at = self.at;
            let broken = |why| ContentError::Header { at, why };
            let Some(block) = self.block()? else {
                return if extensions.any { Err(self.truncated()) } else { Ok(None) };
            };
            let header = tar::Header::from_byte_slice(&block);
            if !checksums(&block).contains(&header.cksum().map_err(|_| broken("no checksum"))?) {
                return Err(broken("wrong checksum"));
            }
            let size = header.entry_size().map_err(|_| broken("no size"))?;
            let kind = match header.entry_type() {
                EntryType::GNULongName => {
                    extensions.any = true;
                    extensions.path = Some(strip_nul(self.extension(size, &mut room)?));
                    continue;
                }
                EntryType::GNULongLink => {
                    extensions.any = true;
                    extensions.link = Some(strip_nul(self.extension(size, &mut room)?));
                    continue;
                }
                EntryType::XHeader => {
                    extensions.any = true;
                    let records = self.extension(size, &mut room)?;
                    extensions.read(&records, at)?;
                    continue;
                }
                EntryType::XGlobalHeader => {
                    // Global headers contain comments of the archive's creator and apply to no file.
                    let mut own = self.extension_limit;
                    self.extension(size, &mut own)?;
                    continue;
                }
                // Before ustar a directory was a file whose name ends with a slash.
                EntryType::Regular if block[156] == 0 && header.path_bytes().ends_with(b"/") => {
                    Kind::Directory
                }
                EntryType::Regular | EntryType::Continuous => Kind::File,
                EntryType::Link => Kind::HardLink,
                EntryType::Symlink => Kind::Symlink,
                EntryType::Char => Kind::Char,
                EntryType::Block => Kind::Block,
                EntryType::Directory => Kind::Directory,
                EntryType::Fifo => Kind::Fifo,
                EntryType::GNUSparse | EntryType::__Nonexhaustive(_) => {
                    let name = String::from_utf8_lossy(&header.path_bytes()).into_owned();
                    let code = char::from(block[156]);
                    return Err(ContentError::Unsupported {
                        what: format!("{name:?}, a tar member of type {code:?},"),
                    });
                }
            };
            let mut size = extensions.size.unwrap_or(size);
            let sparse = std::mem::take(&mut extensions.sparse).finish(at)?;
            let mode = number(header.mode().map(u64::from), &block[100..108])
                .ok_or_else(|| broken("no mode"))?;
            let uid = number(header.uid(), &block[108..116]).ok_or_else(|| broken("no owner"))?;
            let gid = number(header.gid(), &block[116..124]).ok_or_else(|| broken("no group"))?;
            let mtime =
                number(header.mtime(), &block[136..148]).ok_or_else(|| broken("no time"))?;
            let device = |n: io::Result<Option<u32>>, field: &[u8]| {
                let n = n.map(|n| u64::from(n.unwrap_or(0)));
                number(n, field).and_then(|n| n.try_into().ok()).unwrap_or(u32::MAX)
            };
            if kind != Kind::File {
                size = 0;
            }
            (self.body, self.padding) = (size, padding(size));
            let end = size.checked_add(self.padding).and_then(|n| n.checked_add(self.at));
            if end.is_none() {
                return Err(broken("a size beyond all bounds"));
            }
            let mut member = Member {
                path: extensions.path.unwrap_or_else(|| header.path_bytes().into_owned()),
                link: extensions.link.unwrap_or_else(|| {
                    header.link_name_bytes().map(|l| l.into_owned()).unwrap_or_default()
                }),
                kind,
                size,
                data: Map::new(),
                mode: u32::try_from(mode & 0o7777).unwrap_or(0),
                uid: extensions.uid.unwrap_or(uid),
                gid: extensions.gid.unwrap_or(gid),
                mtime: extensions.mtime.unwrap_or((mtime.try_into().unwrap_or(0), 0)),
                device: (
                    device(header.device_major(), &block[329..337]),
                    device(header.device_minor(), &block[337..345]),
                ),
                xattrs: extensions.xattrs,
                offset: self.at,
            };
            if let Some(sparse) = sparse {
                self.sparse(&mut member, sparse, at)?;
            }
            return Ok(Some(member));
        }
    }

    /// Turns `member` into a sparse file and reads the map if it precedes the data.
    fn sparse(&mut self, member: &mut Member, sparse: Sparse, at: u64) -> Result<(), ContentError> {
        let broken = |why| ContentError::Header { at, why };
        if member.kind != Kind::File {
            return Err(broken("a sparse member that is no file"));
        }
        member.kind = Kind::Sparse;
        member.path = sparse.name.unwrap_or(std::mem::take(&mut member.path));
        member.size = sparse.size.unwrap_or(member.size);
        member.data = match sparse.map {
            Some(map) => map,
            None => self.sparse_map(at)?,
        };
        member.offset = self.at;
        if !sparse::fits(&member.data, member.size, self.body) {
            return Err(broken("a map that does not fit its sparse file"));
        }
        Ok(())
    }

    fn sparse_map(&mut self, at: u64) -> Result<Map, ContentError> {
        let (mut reader, mut block) = (MapReader::default(), [0; BLOCK]);
        let end = self.at.saturating_add(self.extension_limit);
        while self.at < end && self.body >= BLOCK as u64 {
            self.read_exact(&mut block).map_err(|e| self.failed(e))?;
            let map = reader
                .block(&block)
                .map_err(|()| ContentError::Header { at, why: "a broken map of a sparse file" })?;
            if let Some(map) = map {
                return Ok(map);
            }
        }
        Err(ContentError::Header { at, why: "a map of a sparse file that does not end" })
    }

    /// Reads the rest of the stream after the last member.
    pub(crate) fn drain(mut self) -> Result<(), ContentError> {
        io::copy(&mut self.inner, &mut io::sink()).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// One header block; `None` at the end marker or at the end of the stream.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, ContentError> {
        let mut block = [0; BLOCK];
        let mut have = 0;
        while have < BLOCK {
            match self.inner.read(&mut block[have..]) {
                Ok(0) if have == 0 => return Ok(None),
                Ok(0) => return Err(self.truncated()),
                Ok(n) => have += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.failed(e)),
            }
        }
        self.at += BLOCK as u64;
        Ok((block != [0; BLOCK]).then_some(block))
    }

    /// The body of an extension header, which must fit into `room`.
    fn extension(&mut self, size: u64, room: &mut u64) -> Result<Vec<u8>, ContentError> {
        let Some(left) = room.checked_sub(size) else {
            return Err(ContentError::TooMuch {
                what: format!("an extension header of {}", self.what),
                limit: self.extension_limit,
                unit: "bytes",
            });
        };
        *room = left;
        let padded = size + padding(size);
        let mut body = Vec::new();
        (&mut self.inner).take(padded).read_to_end(&mut body).map_err(|e| self.failed(e))?;
        if (body.len() as u64) < padded {
            return Err(self.truncated());
        }
        self.at += padded;
        body.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(body)
    }

    fn truncated(&self) -> ContentError {
        ContentError::Truncated { what: self.what.clone() }
    }

    fn failed(&self, error: io::Error) -> ContentError {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return self.truncated();
        }
        ContentError::io(format!("read {}", self.what))(error)
    }
}

/// The current member's body.
impl<R: Skip> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.body).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.inner.read(&mut buffer[..most])?;
        if n == 0 {
            return Err(io::Error::other(self.truncated()));
        }
        self.body -= n as u64;
        self.at += n as u64;
        Ok(n)
    }
}

/// The checksum of a header, and the variant that some writers compute from signed bytes (POSIX.1-2017, pax, ustar).
fn checksums(block: &[u8; BLOCK]) -> [u32; 2] {
    let bytes = || {
        block.iter().enumerate().map(|(i, b)| match i {
            148..156 => b' ',
            _ => *b,
        })
    };
    let signed: i32 = bytes().map(|b| i32::from(b.cast_signed())).sum();
    [bytes().map(u32::from).sum(), signed.cast_unsigned()]
}

/// A number in a header; a blank field is 0, as in every common reader.
fn number(read: io::Result<u64>, field: &[u8]) -> Option<u64> {
    let blank = field.iter().all(|b| matches!(b, 0 | b' '));
    if blank { Some(0) } else { read.ok() }
}

fn strip_nul(mut name: Vec<u8>) -> Vec<u8> {
    while name.last() == Some(&0) {
        name.pop();
    }
    name
}

fn padding(size: u64) -> u64 {
    size.wrapping_neg() % BLOCK as u64
}

#[cfg(test)]
mod tests;
