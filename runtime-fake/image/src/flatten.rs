//! Copies stacked unpacked layers into one directory, for machines without overlayfs.
//!
//! The layers are verified, and no other process writes to them or to the copy, so only names need care: every
//! step is relative to a directory's descriptor and follows no link.

use std::collections::HashMap;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, SeekFrom, Stat, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;

use crate::error::ContentError;
use crate::layer::blocks;
use crate::layer::name::lossy;
use crate::layer::whiteout::{self, Style};

/// Copies `layers` (topmost first) into `into`.
pub(crate) fn copy(layers: &[PathBuf], into: &Path, style: &Style) -> Result<(), ContentError> {
    fs::create_dir_all(into)
        .map_err(ContentError::io(format!("make directory {}", into.display())))?;
    let open = |path: &Path| {
        rustix::fs::open(path, directory(), Mode::empty())
            .map_err(ContentError::errno(format!("open {}", path.display())))
    };
    let root = open(into)?;
    for layer in layers.iter().rev() {
        let from = open(layer)?;
        let mut copier = Copier { root: &root, style, linked: HashMap::new() };
        let to = open(into)?;
        copier.layer(from, to)?;
    }
    Ok(())
}

/// A directory that is being copied.
struct Level {
    from: OwnedFd,
    to: OwnedFd,
    /// The entries that are not copied yet.
    names: Vec<Vec<u8>>,
    /// The length of its path.
    path: usize,
}

struct Copier<'a> {
    root: &'a OwnedFd,
    style: &'a Style,
    /// Files of this layer with several names: inode → the path of the first name in the copy.
    linked: HashMap<u64, Vec<u8>>,
}

impl Copier<'_> {
    /// Copies `from` over `to`. The depth is limited by [`Limits::depth`](super::Limits).
    fn layer(&mut self, from: OwnedFd, to: OwnedFd) -> Result<(), ContentError> {
        let mut path = Vec::new();
        let mut levels = vec![self.begin(from, to, &path)?];
        while let Some(level) = levels.last_mut() {
            path.truncate(level.path);
            let Some(name) = level.names.pop() else {
                self.finish(level, &path)?;
                levels.pop();
                continue;
            };
            path.push(b'/');
            path.extend(&name);
            if let Some((from, to)) = self.entry(&level.from, &level.to, &name, &path)? {
                levels.push(self.begin(from, to, &path)?);
            }
        }
        Ok(())
    }

    fn begin(&self, from: OwnedFd, to: OwnedFd, path: &[u8]) -> Result<Level, ContentError> {
        let failed = || ContentError::errno(format!("copy {:?}", lossy(path)));
        if self.style.is_opaque(&from) {
            for name in file_tree::names(&to).map_err(failed())? {
                remove(&to, &name, path)?;
            }
        }
        Ok(Level { names: file_tree::names(&from).map_err(failed())?, from, to, path: path.len() })
    }

    fn finish(&self, level: &Level, path: &[u8]) -> Result<(), ContentError> {
        let failed = || ContentError::errno(format!("copy {:?}", lossy(path)));
        let Level { from, to, .. } = level;
        let stat = rustix::fs::fstat(from).map_err(failed())?;
        attributes(from, to).map_err(failed())?;
        self.own(to, b".", &stat).map_err(failed())?;
        rustix::fs::fchmod(to, mode(&stat)).map_err(failed())?;
        set_time(to, b".", &stat).map_err(failed())
    }

    /// Copies a file, or creates a directory and returns it and its copy.
    fn entry(
        &mut self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &[u8],
        path: &[u8],
    ) -> Result<Option<(OwnedFd, OwnedFd)>, ContentError> {
        let failed = |path: &[u8]| ContentError::errno(format!("copy {:?}", lossy(path)));
        let stat =
            rustix::fs::statat(from, name, AtFlags::SYMLINK_NOFOLLOW).map_err(failed(path))?;
        let kind = FileType::from_raw_mode(stat.st_mode);
        let there = match rustix::fs::statat(to, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Some(FileType::from_raw_mode(stat.st_mode)),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(failed(path)(errno)),
        };
        let merges = kind == FileType::Directory && there == Some(FileType::Directory);
        if there.is_some() && !merges {
            remove(to, name, path)?;
        }
        if self.style.is_whiteout(from, name, &stat) {
            return Ok(None);
        }
        if kind == FileType::Directory {
            if merges {
                // Until this layer's mode is set, the lower layer's mode may deny access even to the owner.
                rustix::fs::chmodat(to, name, Mode::RWXU, AtFlags::empty())
                    .map_err(failed(path))?;
            } else {
                rustix::fs::mkdirat(to, name, Mode::RWXU).map_err(failed(path))?;
            }
            let open =
                |parent: &OwnedFd| rustix::fs::openat(parent, name, directory(), Mode::empty());
            let (from, to) = (open(from).map_err(failed(path))?, open(to).map_err(failed(path))?);
            return Ok(Some((from, to)));
        }
        if stat.st_nlink > 1 {
            if let Some(first) = self.linked.get(&stat.st_ino) {
                rustix::fs::linkat(self.root, &first[1..], to, name, AtFlags::empty())
                    .map_err(failed(path))?;
                return Ok(None);
            }
            self.linked.insert(stat.st_ino, path.to_owned());
        }
        match kind {
            FileType::RegularFile => self.file(from, to, name, &stat, path),
            FileType::Symlink => {
                let target =
                    rustix::fs::readlinkat(from, name, Vec::new()).map_err(failed(path))?;
                rustix::fs::symlinkat(target, to, name).map_err(failed(path))?;
                self.own(to, name, &stat).map_err(failed(path))?;
                set_time(to, name, &stat).map_err(failed(path))
            }
            FileType::Fifo | FileType::CharacterDevice | FileType::BlockDevice => {
                whiteout::make_node(to, name, kind, stat.st_rdev).map_err(failed(path))?;
                self.own(to, name, &stat).map_err(failed(path))?;
                rustix::fs::chmodat(to, name, mode(&stat), AtFlags::empty())
                    .map_err(failed(path))?;
                set_time(to, name, &stat).map_err(failed(path))
            }
            FileType::Directory | FileType::Socket | FileType::Unknown => {
                Err(ContentError::Unsupported {
                    what: format!("{:?}, which no layer of ours holds,", lossy(path)),
                })
            }
        }?;
        Ok(None)
    }

    fn file(
        &self,
        from: &OwnedFd,
        to: &OwnedFd,
        name: &[u8],
        stat: &Stat,
        path: &[u8],
    ) -> Result<(), ContentError> {
        let failed = || ContentError::errno(format!("copy {:?}", lossy(path)));
        let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let write =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let from = rustix::fs::openat(from, name, read, Mode::empty()).map_err(failed())?;
        let file = rustix::fs::openat(to, name, write, Mode::RUSR | Mode::WUSR).map_err(failed())?;
        let (mut source, mut copy) = (File::from(from), File::from(file));
        data(&mut source, &mut copy, stat)
            .map_err(ContentError::io(format!("copy {:?}", lossy(path))))?;
        let (from, file) = (OwnedFd::from(source), OwnedFd::from(copy));
        self.own(to, name, stat).map_err(failed())?;
        attributes(&from, &file).map_err(failed())?;
        rustix::fs::fchmod(&file, mode(stat)).map_err(failed())?;
        set_time(to, name, stat).map_err(failed())
    }

    fn own(&self, parent: &OwnedFd, name: &[u8], stat: &Stat) -> Result<(), Errno> {
        // If owners are not kept, everything belongs to this process already.
        if self.style.owner(0, 0).is_none() {
            return Ok(());
        }
        let owner = (
            Some(rustix::fs::Uid::from_raw(stat.st_uid)),
            Some(rustix::fs::Gid::from_raw(stat.st_gid)),
        );
        rustix::fs::chownat(parent, name, owner.0, owner.1, AtFlags::SYMLINK_NOFOLLOW)
    }
}

/// Copies a file's content; of a sparse file only the data between the holes.
fn data(from: &mut File, to: &mut File, stat: &Stat) -> io::Result<()> {
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    if blocks(stat) >= size {
        return io::copy(from, to).map(drop);
    }
    let mut end = 0;
    while end < size {
        let start = match rustix::fs::seek(&*from, SeekFrom::Data(end)) {
            Ok(start) => start,
            // Only a hole remains.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno.into()),
        };
        end = rustix::fs::seek(&*from, SeekFrom::Hole(start))?;
        rustix::fs::seek(&*from, SeekFrom::Start(start))?;
        rustix::fs::seek(&*to, SeekFrom::Start(start))?;
        io::copy(&mut from.take(end - start), to)?;
    }
    to.set_len(size)
}

/// Removes an entry that an upper layer replaces.
fn remove(parent: &OwnedFd, name: &[u8], path: &[u8]) -> Result<(), ContentError> {
    let what = || format!("copy {:?}", lossy(path));
    let name = CString::new(name).map_err(|error| ContentError::io(what())(error.into()))?;
    file_tree::remove_at(parent.as_fd(), &name)
        .map_err(|error| ContentError::io(what())(error.into()))
}

/// Copies the extended attributes that unpacking sets, except overlayfs's marks.
fn attributes(from: &OwnedFd, to: &OwnedFd) -> Result<(), Errno> {
    let mut list = vec![0u8; 64 << 10];
    let length = match rustix::fs::flistxattr(from, &mut list) {
        Ok(length) => length,
        Err(Errno::OPNOTSUPP) => 0,
        Err(errno) => return Err(errno),
    };
    for name in list[..length].split(|b| *b == 0).filter(|name| !name.is_empty()) {
        let wanted = name.starts_with(b"user.") || name == b"security.capability";
        if !wanted || name.starts_with(b"user.overlay.") {
            continue;
        }
        let mut value = vec![0u8; 64 << 10];
        let length = rustix::fs::fgetxattr(from, name, &mut value)?;
        if let Err(errno) = rustix::fs::fsetxattr(to, name, &value[..length], XattrFlags::empty()) {
            tracing::debug!(attribute = %lossy(name), %errno, "skipped an extended attribute of a copy");
        }
    }
    Ok(())
}

fn set_time(parent: &OwnedFd, name: &[u8], stat: &Stat) -> Result<(), Errno> {
    let time =
        Timespec { tv_sec: stat.st_mtime, tv_nsec: i64::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(parent, name, &times, AtFlags::SYMLINK_NOFOLLOW)
}

fn mode(stat: &Stat) -> Mode {
    Mode::from_raw_mode(stat.st_mode & 0o7777)
}

fn directory() -> OFlags {
    OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC
}
