//! Packs a file or directory into an archive, even while processes that own it change it.

use std::collections::HashMap;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::path::PathBuf;

use rustix::fs::{Dir, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};
use rustix::io::Errno;
use tar::{Builder, EntryType, Header};

use crate::error::{CopyError, Notes};
use crate::place::{Source, is_of_kernel, reopen};

/// Limit on directories that are open at the same time: deeper trees are refused.
const DEPTH: usize = 256;
/// Limit on remembered files with several names, whose further names become hard links. Beyond it, files are copied again.
const LINKS: usize = 1 << 16;

/// Writes the archive of `source`. Names that disappear meanwhile are skipped; a file's size in the archive is its size when it
/// was opened.
///
/// # Errors
/// A file cannot be read, or the receiver failed.
pub fn pack(source: Source, to: impl Write) -> Result<Notes, CopyError> {
    let Source { file, name, path } = source;
    let mut packer = Packer {
        tar: Builder::new(to),
        links: HashMap::new(),
        notes: Notes::default(),
        levels: Vec::new(),
    };
    let stat = fstat(&file).map_err(CopyError::errno("look at", &path))?;
    let of_kernel = is_of_kernel(file.as_fd()).map_err(CopyError::errno("look at", &path))?;
    let name = name.into_vec();
    match FileType::from_raw_mode(stat.st_mode) {
        _ if of_kernel => {
            let why = "is in a file system of the kernel: read it with `crib exec`";
            return Err(CopyError::refused(&path, why));
        }
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let opened = reopen(&file, flags).map_err(CopyError::errno("open", &path))?;
            packer.directory(opened, name)?;
            packer.tree()?;
        }
        FileType::RegularFile => packer.file(&file, &stat, &name)?,
        FileType::Symlink
        | FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => {
            return Err(CopyError::refused(&path, "is neither a file nor a directory"));
        }
    }
    let mut to = packer.tar.into_inner().map_err(CopyError::Receiver)?;
    to.flush().map_err(CopyError::Receiver)?;
    Ok(packer.notes)
}

/// The name of extended headers, as in Python and bsdtar; it is not the name of a file.
const EXTENDED: &str = "PaxHeader/mtime";

/// A directory that is being read.
struct Level {
    directory: Dir,
    /// Its path in the archive.
    name: Vec<u8>,
}

struct Packer<W: Write> {
    tar: Builder<W>,
    /// The first name of each file with several names, by device and inode.
    links: HashMap<(u64, u64), Vec<u8>>,
    notes: Notes,
    levels: Vec<Level>,
}

impl<W: Write> Packer<W> {
    /// Packs the contents of the open directories.
    fn tree(&mut self) -> Result<(), CopyError> {
        while let Some(level) = self.levels.last_mut() {
            let Some(entry) = level.directory.read() else {
                self.levels.pop();
                continue;
            };
            let entry = entry.map_err(CopyError::errno("read the directory", &level.name))?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            let path = [&level.name[..], b"/", name.to_bytes()].concat();
            let parent = level.directory.fd().map_err(CopyError::errno("read", &path))?;
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = match openat(parent, name, flags, Mode::empty()) {
                Err(Errno::NOENT) => continue,
                opened => opened.map_err(CopyError::errno("open", &path))?,
            };
            self.entry(&opened, path)?;
        }
        Ok(())
    }

    fn entry(&mut self, opened: &OwnedFd, path: Vec<u8>) -> Result<(), CopyError> {
        let stat = fstat(opened).map_err(CopyError::errno("look at", &path))?;
        if is_of_kernel(opened.as_fd()).map_err(CopyError::errno("look at", &path))? {
            self.notes.add(&path, "it is in a file system of the kernel");
            return Ok(());
        }
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let flags = OFlags::RDONLY | OFlags::DIRECTORY;
                let opened = reopen(opened, flags).map_err(CopyError::errno("open", &path))?;
                self.directory(opened, path)
            }
            FileType::RegularFile => self.file(opened, &stat, &path),
            FileType::Symlink => self.link(opened, &stat, &path),
            FileType::Socket => self.skip(&path, "it is a socket"),
            FileType::Fifo => self.skip(&path, "it is a FIFO"),
            FileType::CharacterDevice | FileType::BlockDevice | FileType::Unknown => {
                self.skip(&path, "it is a device")
            }
        }
    }

    fn skip(&mut self, path: &[u8], why: &str) -> Result<(), CopyError> {
        self.notes.add(path, why);
        Ok(())
    }

    /// Packs a directory, and makes it the next one to read.
    fn directory(&mut self, opened: OwnedFd, path: Vec<u8>) -> Result<(), CopyError> {
        if self.levels.len() == DEPTH {
            return Err(CopyError::refused(&path, "is nested too deep"));
        }
        let stat = fstat(&opened).map_err(CopyError::errno("look at", &path))?;
        self.put(&stat, EntryType::Directory, &path, io::empty())?;
        let directory = Dir::new(opened).map_err(CopyError::errno("read", &path))?;
        self.levels.push(Level { directory, name: path });
        Ok(())
    }

    fn file(&mut self, opened: &OwnedFd, stat: &Stat, path: &[u8]) -> Result<(), CopyError> {
        if stat.st_nlink > 1 {
            let inode = (stat.st_dev, stat.st_ino);
            if let Some(first) = self.links.get(&inode) {
                let mut header = header(stat, EntryType::Link);
                let target = PathBuf::from(std::ffi::OsString::from_vec(first.clone()));
                let added = self.tar.append_link(&mut header, as_path(path), target);
                return added.map_err(CopyError::Receiver);
            }
            if self.links.len() < LINKS {
                self.links.insert(inode, path.to_owned());
            }
        }
        let failed = CopyError::errno("open", path);
        let file = reopen(opened, OFlags::RDONLY | OFlags::NONBLOCK).map_err(failed)?;
        let size = u64::try_from(stat.st_size).unwrap_or_default();
        let mut body = Body { file: File::from(file), left: size, failed: None };
        let added = self.put(stat, EntryType::Regular, path, &mut body);
        match body.failed {
            Some(source) => {
                let path = crate::error::lossy(path);
                Err(CopyError::Io { doing: "read", path, source })
            }
            None => added,
        }
    }

    fn link(&mut self, opened: &OwnedFd, stat: &Stat, path: &[u8]) -> Result<(), CopyError> {
        let target = readlinkat(opened, c"", Vec::new());
        let target = target.map_err(CopyError::errno("read the link", path))?.into_bytes();
        self.time(stat)?;
        let mut header = header(stat, EntryType::Symlink);
        let added = self.tar.append_link(&mut header, as_path(path), as_path(&target));
        added.map_err(CopyError::Receiver)
    }

    fn put(
        &mut self,
        stat: &Stat,
        kind: EntryType,
        path: &[u8],
        body: impl Read,
    ) -> Result<(), CopyError> {
        self.time(stat)?;
        let mut header = header(stat, kind);
        if kind == EntryType::Regular {
            header.set_size(u64::try_from(stat.st_size).unwrap_or_default());
        }
        self.tar.append_data(&mut header, as_path(path), body).map_err(CopyError::Receiver)
    }

    /// Adds the time with its fraction, for which a header has no room, or a time before 1970.
    fn time(&mut self, stat: &Stat) -> Result<(), CopyError> {
        let (seconds, nanos) = (stat.st_mtime, stat.st_mtime_nsec);
        if nanos == 0 && seconds >= 0 {
            return Ok(());
        }
        let time = match seconds {
            // The fraction of a negative number is subtracted.
            ..0 if nanos > 0 => {
                let whole = -(seconds + 1);
                format!("-{whole}.{:09}", 1_000_000_000 - nanos)
            }
            _ => format!("{seconds}.{nanos:09}"),
        };
        let record = extended("mtime", &time);
        let mut header = Header::new_ustar();
        header.set_entry_type(EntryType::XHeader);
        header.set_size(record.len() as u64);
        // Busybox treats a header without a name as the end of the archive.
        let added = self.tar.append_data(&mut header, EXTENDED, record.as_bytes());
        added.map_err(CopyError::Receiver)
    }
}

/// A record of an extended header, which begins with its own length: `30 mtime=1700000000.000000001`.
fn extended(key: &str, value: &str) -> String {
    let rest = format!(" {key}={value}\n");
    let mut length = rest.len();
    while length != rest.len() + length.to_string().len() {
        length = rest.len() + length.to_string().len();
    }
    format!("{length}{rest}")
}

/// The bytes of a file: as many as its header promises, even if the file changes meanwhile.
struct Body {
    file: File,
    left: u64,
    failed: Option<io::Error>,
}

impl Read for Body {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(into.len());
        let into = into.get_mut(..wanted).unwrap_or_default();
        let read = match self.file.read(into) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Err(error),
            Err(error) => {
                self.failed = Some(error);
                return Err(io::ErrorKind::Other.into());
            }
            // It became shorter.
            Ok(0) => {
                into.fill(0);
                wanted
            }
            Ok(read) => read,
        };
        self.left -= read as u64;
        Ok(read)
    }
}

fn as_path(bytes: &[u8]) -> &std::path::Path {
    std::path::Path::new(std::ffi::OsStr::from_bytes(bytes))
}

fn header(stat: &Stat, kind: EntryType) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(stat.st_mode & 0o7777);
    header.set_uid(stat.st_uid.into());
    header.set_gid(stat.st_gid.into());
    header.set_mtime(u64::try_from(stat.st_mtime).unwrap_or_default());
    header.set_size(0);
    header
}
