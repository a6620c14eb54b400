//! Reads tar members one after the other: ustar, GNU long names and PAX records, each bounded.
//!
//! The tar crate decodes the header blocks; the walk is ours, because it must not let an
//! extension header of any declared size into memory and has to tell what it met.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use tar::EntryType;

use super::pax::Extensions;
use super::problem::Problem;

const BLOCK: usize = 512;

/// What kind of file a member makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    File,
    HardLink,
    Symlink,
    Char,
    Block,
    Directory,
    Fifo,
}

/// One member's header, extensions applied.
#[derive(Debug, Clone)]
pub(crate) struct Member {
    /// As it stands in the archive: not checked, not normalised.
    pub(crate) path: Vec<u8>,
    /// Target of a symbolic or hard link, as it stands; empty otherwise.
    pub(crate) link: Vec<u8>,
    pub(crate) kind: Kind,
    /// Bytes of body. Only files have one, whatever the header says: every common reader agrees on that.
    pub(crate) size: u64,
    /// Permission bits with setuid, setgid and sticky: 0o7777.
    pub(crate) mode: u32,
    pub(crate) uid: u64,
    pub(crate) gid: u64,
    /// Seconds since 1970 and nanoseconds.
    pub(crate) mtime: (i64, u32),
    /// Major and minor number of a device.
    pub(crate) device: (u32, u32),
    /// Extended attributes: name and value.
    pub(crate) xattrs: Vec<(String, Vec<u8>)>,
    /// Where the body starts in the stream.
    pub(crate) offset: u64,
}

/// A reader that can pass over bytes, quickly if it is a file.
pub(crate) trait Skip: Read {
    /// Passes over `n` bytes; `UnexpectedEof` when there are fewer.
    fn skip(&mut self, n: u64) -> io::Result<()>;
}

/// A file of known length.
pub(crate) struct SeekFile {
    file: File,
    at: u64,
    len: u64,
}

impl SeekFile {
    /// Reads from the start of `file`.
    pub(crate) fn new(mut file: File) -> io::Result<Self> {
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
        self.at = self
            .file
            .seek(SeekFrom::Start(to.ok_or(io::ErrorKind::UnexpectedEof)?))?;
        Ok(())
    }
}

/// Any reader, passing over bytes by reading them.
pub(crate) struct Sequential<R>(pub(crate) R);

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

/// Walks the members of a tar stream. After [`TarReader::next`], reading reads the member's body.
pub(crate) struct TarReader<R> {
    inner: R,
    what: String,
    at: u64,
    /// Bytes of the current body that nobody has read, and the padding after it.
    body: u64,
    padding: u64,
    extension_limit: u64,
}

impl<R: Skip> TarReader<R> {
    /// `what` names the stream in errors; no extension header may be longer than `extension_limit`.
    pub(crate) fn new(inner: R, what: &str, extension_limit: u64) -> Self {
        Self {
            inner,
            what: what.to_owned(),
            at: 0,
            body: 0,
            padding: 0,
            extension_limit,
        }
    }

    /// The next member, or none after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Member>, Problem> {
        let rest = self.body + self.padding;
        if rest > 0 {
            self.inner.skip(rest).map_err(|e| self.failed(e))?;
            self.at += rest;
        }
        (self.body, self.padding) = (0, 0);
        let mut extensions = Extensions::default();
        // All that is said about one member is held until it comes.
        let mut room = self.extension_limit;
        loop {
            let at = self.at;
            let broken = |why| Problem::Header { at, why };
            let Some(block) = self.block()? else {
                return if extensions.any {
                    Err(self.truncated())
                } else {
                    Ok(None)
                };
            };
            let header = tar::Header::from_byte_slice(&block);
            let sum = block.iter().map(|b| u32::from(*b)).sum::<u32>()
                - block[148..156].iter().map(|b| u32::from(*b)).sum::<u32>()
                + 8 * 32;
            if header.cksum().map_err(|_| broken("no checksum"))? != sum {
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
                    // Comments of whoever made the archive: nothing in it is for one file.
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
                    return Err(Problem::Unsupported {
                        what: format!("{name:?}, a tar member of type {code:?},"),
                    });
                }
            };
            let size = extensions.size.unwrap_or(size);
            let mode = number(header.mode().map(u64::from), &block[100..108])
                .ok_or_else(|| broken("no mode"))?;
            let uid = number(header.uid(), &block[108..116]).ok_or_else(|| broken("no owner"))?;
            let gid = number(header.gid(), &block[116..124]).ok_or_else(|| broken("no group"))?;
            let mtime =
                number(header.mtime(), &block[136..148]).ok_or_else(|| broken("no time"))?;
            let device = |n: io::Result<Option<u32>>| n.ok().flatten().unwrap_or(u32::MAX);
            let member = Member {
                path: extensions
                    .path
                    .unwrap_or_else(|| header.path_bytes().into_owned()),
                link: extensions.link.unwrap_or_else(|| {
                    header
                        .link_name_bytes()
                        .map(|l| l.into_owned())
                        .unwrap_or_default()
                }),
                kind,
                size: if kind == Kind::File { size } else { 0 },
                mode: u32::try_from(mode & 0o7777).unwrap_or(0),
                uid: extensions.uid.unwrap_or(uid),
                gid: extensions.gid.unwrap_or(gid),
                mtime: extensions
                    .mtime
                    .unwrap_or((mtime.try_into().unwrap_or(0), 0)),
                device: (device(header.device_major()), device(header.device_minor())),
                xattrs: extensions.xattrs,
                offset: self.at,
            };
            (self.body, self.padding) = (member.size, padding(member.size));
            if self
                .body
                .checked_add(self.padding)
                .and_then(|n| n.checked_add(self.at))
                .is_none()
            {
                return Err(broken("a size beyond all bounds"));
            }
            return Ok(Some(member));
        }
    }

    /// Reads what follows the last member, to the end of the stream.
    pub(crate) fn drain(mut self) -> Result<(), Problem> {
        io::copy(&mut self.inner, &mut io::sink()).map_err(|e| self.failed(e))?;
        Ok(())
    }

    /// One header block; none at the end marker or at the end of the stream.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>, Problem> {
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

    /// The whole body of an extension header, which has to fit into what is left of `room`.
    fn extension(&mut self, size: u64, room: &mut u64) -> Result<Vec<u8>, Problem> {
        let Some(left) = room.checked_sub(size) else {
            return Err(Problem::TooMuch {
                what: format!("an extension header of {}", self.what),
                limit: self.extension_limit,
                unit: "bytes",
            });
        };
        *room = left;
        let padded = size + padding(size);
        let mut body = Vec::new();
        (&mut self.inner)
            .take(padded)
            .read_to_end(&mut body)
            .map_err(|e| self.failed(e))?;
        if (body.len() as u64) < padded {
            return Err(self.truncated());
        }
        self.at += padded;
        body.truncate(usize::try_from(size).unwrap_or(usize::MAX));
        Ok(body)
    }

    fn truncated(&self) -> Problem {
        Problem::Truncated {
            what: self.what.clone(),
        }
    }

    fn failed(&self, error: io::Error) -> Problem {
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return self.truncated();
        }
        Problem::io(format!("read {}", self.what))(error)
    }
}

/// The current member's body.
impl<R: Skip> Read for TarReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.body)
            .unwrap_or(usize::MAX)
            .min(buffer.len());
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

/// A number of a header; a blank field is 0, as every common reader has it.
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
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    fn read_all(bytes: &[u8]) -> Result<Vec<(Member, Vec<u8>)>, Problem> {
        let mut reader = TarReader::new(Sequential(bytes), "it", 1 << 16);
        let mut out = Vec::new();
        while let Some(member) = reader.next()? {
            let mut body = Vec::new();
            reader.read_to_end(&mut body).map_err(Problem::io("read"))?;
            out.push((member, body));
        }
        Ok(out)
    }

    #[test]
    fn long_names_and_attributes() {
        let mut builder = tar::Builder::new(Vec::new());
        builder
            .append_pax_extensions([
                ("SCHILY.xattr.user.a", b"x\ny=\0".as_slice()),
                ("mtime", b"7.5"),
                ("uid", b"4000000000"),
            ])
            .unwrap();
        let long = format!("{}/file", "d".repeat(200));
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o4755);
        header.set_cksum();
        builder
            .append_data(&mut header, &long, &b"abc"[..])
            .unwrap();
        let bytes = builder.into_inner().unwrap();
        let all = read_all(&bytes).unwrap();
        let [(member, body)] = &all[..] else {
            panic!("{all:?}")
        };
        assert_eq!(
            (member.path.as_slice(), body.as_slice()),
            (long.as_bytes(), b"abc".as_slice())
        );
        assert_eq!(
            (member.uid, member.mtime, member.mode),
            (4_000_000_000, (7, 500_000_000), 0o4755)
        );
        assert_eq!(member.xattrs, [("user.a".to_owned(), b"x\ny=\0".to_vec())]);
        for cut in 0..bytes.len() - 1024 {
            match read_all(&bytes[..cut]) {
                Err(Problem::Truncated { .. }) => {}
                Ok(members) if members.is_empty() && cut == 0 => {}
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
    }

    /// Without that, a few compressed kilobytes of headers would make a gigabyte of attributes of one file.
    #[test]
    fn extension_headers_of_one_member_share_their_limit() {
        let attributes = [7; 1000];
        let members = |headers: usize| {
            let mut builder = tar::Builder::new(Vec::new());
            for _ in 0..headers {
                let record = ("SCHILY.xattr.user.a", attributes.as_slice());
                builder.append_pax_extensions([record]).unwrap();
            }
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            header.set_mode(0o644);
            builder.append_data(&mut header, "a", &b""[..]).unwrap();
            let bytes = builder.into_inner().unwrap();
            // Each member has room of its own.
            read_all(&[&bytes[..bytes.len() - 1024], &bytes[..]].concat())
        };
        assert_eq!(members(60).unwrap().len(), 2);
        assert!(matches!(members(70), Err(Problem::TooMuch { .. })));
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..2048)) {
            let _ = read_all(&bytes);
        }

        #[test]
        fn no_changed_byte_makes_it_panic(at in 0usize..1536, to in any::<u8>()) {
            let mut builder = tar::Builder::new(Vec::new());
            let mut header = tar::Header::new_ustar();
            header.set_size(5);
            header.set_mode(0o644);
            builder.append_data(&mut header, "a", &b"12345"[..]).unwrap();
            let mut bytes = builder.into_inner().unwrap();
            bytes[at] = to;
            let _ = read_all(&bytes);
        }
    }
}
