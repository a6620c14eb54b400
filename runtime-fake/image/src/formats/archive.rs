//! Opens an image archive on disk, a tar file (compressed or not) or a layout directory, and reads its members by
//! name.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::error::ContentError;
use crate::formats::limits::{Budget, Limits};
use crate::formats::stream::{Counting, Decoder, Metered};
use crate::formats::tar_stream::{Kind, SeekFile, Sequential, TarReader};

/// An open archive. Members can be read in any order and any number of times.
pub(crate) enum Archive {
    /// A layout directory.
    Directory(PathBuf),
    /// A tar file, uncompressed (a compressed one is first decompressed into an unnamed file).
    Tar {
        /// The tar bytes.
        file: File,
        /// The location of each member.
        members: BTreeMap<String, Place>,
    },
}

/// Reads the beginning of the tar file at `path`, compressed or not: an empty file, or one of another format, is an error.
pub(crate) fn probe(path: &Path, limits: &Limits) -> Result<(), ContentError> {
    let what = "the archive";
    let file = open_file(path).map_err(ContentError::io(format!("open {}", path.display())))?;
    let decoder = Sequential(Decoder::new(file, what)?);
    let first = TarReader::new(decoder, what, limits.extension_bytes).next_member()?;
    first.map(drop).ok_or(ContentError::NoImages)
}

/// Where a member of a tar file is.
pub(crate) enum Place {
    /// Its bytes.
    Bytes {
        /// Offset in the file.
        offset: u64,
        /// Length.
        size: u64,
    },
    /// A link to another member: `docker save` once wrote a layer shared by two images like this.
    Link(String),
}

/// A blob, open for reading from its start.
pub(crate) struct Blob {
    file: File,
    at: u64,
    left: u64,
    name: String,
}

impl Blob {
    /// Its length in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.left
    }
}

impl Read for Blob {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        if most == 0 {
            return Ok(0);
        }
        let n = self.file.read_at(&mut buffer[..most], self.at)?;
        if n == 0 {
            return Err(io::Error::other(ContentError::Truncated { what: self.name.clone() }));
        }
        self.at += n as u64;
        self.left -= n as u64;
        Ok(n)
    }
}

impl Archive {
    /// Opens the archive at `path`. A compressed tar file is decompressed into an unnamed file in `spool`, within the
    /// limits.
    pub(crate) fn open(path: &Path, spool: &Path, limits: &Limits) -> Result<Self, ContentError> {
        let what = "the archive";
        let opening = || format!("open {}", path.display());
        let file = open_file(path).map_err(ContentError::io(opening()))?;
        let kind = file.metadata().map_err(ContentError::io(opening()))?;
        if kind.is_dir() {
            return Ok(Self::Directory(path.to_owned()));
        }
        if !kind.is_file() {
            return Err(ContentError::Unsupported {
                what: "an archive that is neither a file nor a directory".to_owned(),
            });
        }
        let budget = Budget::new(limits);
        let (counting, counter) =
            Counting::new(file.try_clone().map_err(ContentError::io(opening()))?);
        let decoder = Decoder::new(counting, what)?;
        let file = if decoder.is_plain() {
            file
        } else {
            let mut to = tempfile::tempfile_in(spool)
                .map_err(ContentError::io("make a file to decompress into"))?;
            let mut from = Metered::new(decoder, &budget, Some(counter), what);
            io::copy(&mut from, &mut to)
                .map_err(ContentError::io(format!("decompress {}", path.display())))?;
            to
        };
        let members = table(&file, &budget)?;
        Ok(Self::Tar { file, members })
    }

    /// Whether there is a member of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match self {
            Self::Directory(root) => root.join(name).is_file(),
            Self::Tar { members, .. } => members.contains_key(name),
        }
    }

    /// Opens the member `name`, which must not lead out of the archive.
    pub(crate) fn blob(&self, name: &str) -> Result<Blob, ContentError> {
        let missing = || ContentError::Missing { name: name.to_owned() };
        if lexical(name).as_deref() != Some(name) {
            return Err(missing());
        }
        match self {
            Self::Directory(root) => {
                let file = open_file(&root.join(name)).map_err(|source| {
                    let absent = [io::ErrorKind::NotFound, io::ErrorKind::NotADirectory];
                    if absent.contains(&source.kind()) {
                        return missing();
                    }
                    ContentError::Io { doing: format!("open {name}"), source }
                })?;
                let metadata =
                    file.metadata().map_err(ContentError::io(format!("look at {name}")))?;
                if !metadata.is_file() {
                    return Err(missing());
                }
                Ok(Blob { file, at: 0, left: metadata.len(), name: name.to_owned() })
            }
            Self::Tar { file, members } => {
                let mut place = members.get(name).ok_or_else(missing)?;
                for _ in 0..8 {
                    match place {
                        Place::Link(target) => place = members.get(target).ok_or_else(missing)?,
                        Place::Bytes { offset, size } => {
                            let file = file
                                .try_clone()
                                .map_err(ContentError::io("open the archive again"))?;
                            return Ok(Blob {
                                file,
                                at: *offset,
                                left: *size,
                                name: name.to_owned(),
                            });
                        }
                    }
                }
                Err(missing())
            }
        }
    }

    /// Reads a document, within the limit for documents.
    pub(crate) fn document(&self, name: &str, limits: &Limits) -> Result<Vec<u8>, ContentError> {
        let mut blob = self.blob(name)?;
        ContentError::within(name, blob.size(), limits.document_bytes, "bytes")?;
        let mut bytes = Vec::new();
        blob.read_to_end(&mut bytes).map_err(ContentError::io(format!("read {name}")))?;
        Ok(bytes)
    }
}

/// Opens without blocking: a FIFO must not hang the daemon.
fn open_file(path: &Path) -> io::Result<File> {
    fs::OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC).open(path)
}

fn table(file: &File, budget: &Budget) -> Result<BTreeMap<String, Place>, ContentError> {
    let again = file.try_clone().map_err(ContentError::io("open the archive again"))?;
    let source = SeekFile::new(again).map_err(ContentError::io("read the archive"))?;
    let mut reader = TarReader::new(source, "the archive", budget.limits.extension_bytes);
    let mut members = BTreeMap::new();
    while let Some(member) = reader.next_member()? {
        budget.take_entry("the archive")?;
        let name = String::from_utf8_lossy(&member.path).into_owned();
        let refuse = |why| ContentError::Name { path: name.clone(), why };
        let place = match member.kind {
            Kind::File => Place::Bytes { offset: member.offset, size: member.size },
            Kind::HardLink | Kind::Symlink => {
                let target = String::from_utf8_lossy(&member.link).into_owned();
                let base = match name.rsplit_once('/') {
                    Some((directory, _)) if member.kind == Kind::Symlink => format!("{directory}/"),
                    Some(_) | None => String::new(),
                };
                let inside = (!target.starts_with('/'))
                    .then(|| lexical(&format!("{base}{target}")))
                    .flatten();
                Place::Link(
                    inside
                        .ok_or_else(|| ContentError::LinkLeadsOut { path: name.clone(), target })?,
                )
            }
            Kind::Directory => continue,
            Kind::Char | Kind::Block => return Err(ContentError::Device { path: name }),
            Kind::Sparse => {
                return Err(ContentError::Unsupported {
                    what: format!("{name:?}, a sparse file in an image archive,"),
                });
            }
            Kind::Fifo => {
                return Err(ContentError::Unsupported {
                    what: format!("{name:?}, a fifo in an image archive,"),
                });
            }
        };
        if name.starts_with('/') {
            return Err(refuse("an absolute path"));
        }
        let key = lexical(&name).filter(|_| !name.split('/').any(|part| part == ".."));
        let key = key.ok_or_else(|| refuse("which leads out of the archive"))?;
        if members.insert(key, place).is_some() {
            return Err(ContentError::Twice { name });
        }
    }
    Ok(members)
}

/// Resolves `.` and `..` lexically; `None` if the path leads out of the archive or is empty.
fn lexical(path: &str) -> Option<String> {
    let mut parts = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            _ => parts.push(part),
        }
    }
    (!parts.is_empty() && !path.starts_with('/')).then(|| parts.join("/"))
}
