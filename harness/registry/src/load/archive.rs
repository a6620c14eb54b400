//! Reads an archive, compressed or not: its members are parts of the archive's file or, if they must be unpacked, of one unnamed
//! file.

use std::cell::Cell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Seek as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path};
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use tar::EntryType;
use tokio_util::sync::CancellationToken;

use super::super::store::LONGEST_MANIFEST;

/// The documents with fixed names; longer ones than a manifest may be are refused before they are unpacked.
const DOCUMENTS: [&str; 2] = ["index.json", "manifest.json"];
/// The maximum number of members in an archive. An archive with all images of a cluster has thousands.
const MEMBERS: usize = 100_000;
/// The maximum total length of all members' names and link targets.
const NAMES: usize = 16 << 20;
/// The maximum size of one member's headers, with a long name and extended attributes.
const HEADERS: u64 = 1 << 20;
/// The maximum number of unpacked bytes; this and the next two limits are those of crib's runtime.
const UNPACKED: u64 = 64 << 30;
/// The maximum number of unpacked bytes for each byte of the archive, above [`RATIO_FROM`].
const RATIO: u64 = 200;
/// This many bytes may be unpacked from an archive of any size: small files of zeros compress well.
const RATIO_FROM: u64 = 1 << 30;

/// The bytes of a file or of a part of it. Reading fails once the load is cancelled.
#[derive(Clone, Debug)]
pub(super) struct Content {
    file: Arc<File>,
    at: u64,
    left: u64,
    cancelled: CancellationToken,
}

impl Content {
    /// Opens a whole file.
    pub(super) fn of_file(path: &Path, cancelled: &CancellationToken) -> io::Result<Self> {
        let file = File::open(path)?;
        let left = file.metadata()?.len();
        Ok(Self { file: Arc::new(file), at: 0, left, cancelled: cancelled.clone() })
    }

    /// The number of unread bytes.
    pub(super) fn size(&self) -> u64 {
        self.left
    }
}

impl Read for Content {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        unless_cancelled(&self.cancelled)?;
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..most).unwrap_or_default();
        if buffer.is_empty() {
            return Ok(0);
        }
        let length = self.file.read_at(buffer, self.at)?;
        if length == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.at += length as u64;
        self.left -= length as u64;
        Ok(length)
    }
}

/// Fails once the load is cancelled.
pub(super) fn unless_cancelled(cancelled: &CancellationToken) -> io::Result<()> {
    // Not ErrorKind::Interrupted, on which readers retry.
    match cancelled.is_cancelled() {
        true => Err(io::Error::other("the load was cancelled")),
        false => Ok(()),
    }
}

/// The decompressed bytes of an archive, with limits.
struct Limited<'a> {
    inner: Box<dyn Read>,
    cancelled: &'a CancellationToken,
    /// How many more bytes may be read in total.
    left: u64,
    /// How many more bytes may be read for a member's headers, while these are read: the tar reader keeps them in memory.
    headers: &'a Cell<Option<u64>>,
}

impl Read for Limited<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        unless_cancelled(self.cancelled)?;
        let length = self.inner.read(buffer)?;
        let read = length as u64;
        self.left =
            self.left.checked_sub(read).ok_or_else(|| too_large("it unpacks to too many bytes"))?;
        if let Some(left) = self.headers.get() {
            let left = left.checked_sub(read).ok_or_else(|| too_large("a header is too long"))?;
            self.headers.set(Some(left));
        }
        Ok(length)
    }
}

fn too_large(problem: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::FileTooLarge, problem.into())
}

/// The members of an archive by name, with links resolved within it. Members that must be unpacked are in an unnamed file in the
/// directory `spool_in`, which the kernel removes even if this process is killed.
pub(super) fn members(
    path: &Path,
    spool_in: &Path,
    cancelled: &CancellationToken,
) -> io::Result<HashMap<String, Content>> {
    let mut file = File::open(path)?;
    let unpacked = file.metadata()?.len().saturating_mul(RATIO).clamp(RATIO_FROM, UNPACKED);
    let mut magic = [0; 2];
    let length = file.read(&mut magic)?;
    file.rewind()?;
    let compressed = magic.get(..length) == Some(&[0x1f, 0x8b]);
    let (whole, spool) = (Arc::new(file.try_clone()?), Arc::new(tempfile::tempfile_in(spool_in)?));
    let inner: Box<dyn Read> = match compressed {
        true => Box::new(MultiGzDecoder::new(BufReader::new(file))),
        false => Box::new(BufReader::new(file)),
    };
    let headers = Cell::new(None);
    let left = if compressed { unpacked } else { u64::MAX };
    let mut archive = tar::Archive::new(Limited { inner, cancelled, left, headers: &headers });
    let (mut members, mut links) = (HashMap::new(), Vec::new());
    let (mut count, mut names, mut spooled) = (0, 0, 0);
    let mut entries = archive.entries()?;
    loop {
        headers.set(Some(HEADERS));
        let Some(entry) = entries.next() else { break };
        let mut entry = entry?;
        headers.set(None);
        let name = normal(&entry.path()?);
        let target = entry.link_name()?.unwrap_or_default().into_owned();
        count += 1;
        names += name.len() + target.as_os_str().len();
        if count > MEMBERS {
            return Err(too_large(format!("it has more than {MEMBERS} members")));
        }
        if names > NAMES {
            return Err(too_large("the names of its members are too long"));
        }
        let kind = entry.header().entry_type();
        match kind {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                if members.contains_key(&name) {
                    let twice = format!("{name:?} appears twice");
                    return Err(io::Error::new(io::ErrorKind::AlreadyExists, twice));
                }
                let size = entry.size();
                if DOCUMENTS.contains(&name.as_str()) && size > LONGEST_MANIFEST as u64 {
                    return Err(too_long(&name));
                }
                let (file, at, left) = if compressed || kind == EntryType::GNUSparse {
                    if size > unpacked.saturating_sub(spooled) {
                        return Err(too_large(format!(
                            "it unpacks to more than {} MiB",
                            unpacked >> 20
                        )));
                    }
                    let at = spooled;
                    let copied = io::copy(&mut entry, &mut &*spool)?;
                    spooled += copied;
                    (spool.clone(), at, copied)
                } else {
                    (whole.clone(), entry.raw_file_position(), size)
                };
                members.insert(name, Content { file, at, left, cancelled: cancelled.clone() });
            }
            EntryType::Symlink => {
                let beside = Path::new(&name).parent().unwrap_or(Path::new(""));
                links.push((name.clone(), normal(&beside.join(target))));
            }
            EntryType::Link => links.push((name, normal(&target))),
            EntryType::Char
            | EntryType::Block
            | EntryType::Directory
            | EntryType::Fifo
            | EntryType::GNULongName
            | EntryType::GNULongLink
            | EntryType::XGlobalHeader
            | EntryType::XHeader
            | EntryType::__Nonexhaustive(_) => {}
        }
        // Read to the end of the member, so that only headers remain before the next one.
        io::copy(&mut entry, &mut io::sink())?;
    }
    for (name, target) in links {
        if let Some(content) = members.get(&target).cloned() {
            members.insert(name, content);
        }
    }
    Ok(members)
}

/// The error for a document that is longer than a manifest may be.
pub(super) fn too_long(name: &str) -> io::Error {
    too_large(format!("{name} has more than {} MiB", LONGEST_MANIFEST >> 20))
}

/// A path within an archive without `.` and `..`.
pub(super) fn normal(path: &Path) -> String {
    let mut words: Vec<String> = Vec::new();
    for component in path.components() {
        match component {
            Component::Normal(word) => words.push(word.to_string_lossy().into_owned()),
            Component::ParentDir => drop(words.pop()),
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    words.join("/")
}
