//! Walks over a tree in bounded stack, memory and descriptors, even while the processes that own it change it.
//!
//! Only the deepest directories are open. The walk returns through `..`, and only to the directory that it came
//! from: if a process moves a directory meanwhile, the walk ends and does not continue elsewhere.

use std::{
    ffi::{CStr, CString},
    path::Path,
};

use rustix::{
    fd::{AsFd as _, BorrowedFd, OwnedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::{OPEN, enter};

/// Limit on the depth of a tree. Deeper directories are skipped.
const DEPTH: usize = 100_000;

/// Whether a walk enters mount points.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mounts {
    /// Skips mount points.
    Stay,
    /// Enters mount points.
    Cross,
}

/// A name in a directory.
#[derive(Debug)]
pub struct Entry<'a> {
    /// The directory.
    pub parent: BorrowedFd<'a>,
    /// The name in it.
    pub name: &'a CStr,
    kind: FileType,
}

impl Entry<'_> {
    /// The status of the entry; a symbolic link is not followed.
    ///
    /// # Errors
    /// The kernel's error: the entry may have been removed.
    pub fn stat(&self) -> Result<Stat, Errno> {
        rustix::fs::statat(self.parent, self.name, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        match self.kind {
            FileType::Directory => true,
            FileType::Unknown => self
                .stat()
                .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory),
            FileType::RegularFile
            | FileType::Symlink
            | FileType::Fifo
            | FileType::Socket
            | FileType::CharacterDevice
            | FileType::BlockDevice => false,
        }
    }
}

/// Callbacks of a walk.
pub trait Visitor {
    /// Visits a file or directory, before its contents.
    ///
    /// # Errors
    /// Ends the walk.
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno>;

    /// Leaves a directory, after its contents.
    ///
    /// # Errors
    /// Ends the walk.
    fn leave(&mut self, _parent: BorrowedFd<'_>, _name: &CStr) -> Result<(), Errno> {
        Ok(())
    }
}

struct Level {
    identity: (u64, u64),
    name: CString,
    /// Closed (`None`) while the walk is far below it.
    directory: Option<Dir>,
    /// The offset at which reading resumes.
    position: i64,
}

impl Level {
    fn new(directory: OwnedFd, name: &CStr) -> Result<Self, Errno> {
        Ok(Self {
            identity: identity(&directory)?,
            name: name.to_owned(),
            directory: Some(Dir::new(directory)?),
            position: 0,
        })
    }
}

fn identity(directory: &OwnedFd) -> Result<(u64, u64), Errno> {
    let stat = rustix::fs::fstat(directory)?;
    Ok((stat.st_dev, stat.st_ino))
}

/// Opens the directory at `path` for a [`walk`]. The last component must not be a symbolic link.
///
/// # Errors
/// The kernel's error.
pub fn open(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(CWD, path, flags, Mode::empty())
}

/// Visits everything in `top`, but not `top` itself. Entries that disappear during the walk are skipped.
///
/// # Errors
/// The visitor's error; the kernel's error when a directory cannot be read; ESTALE when a directory was moved away during the
/// walk.
pub fn walk(top: OwnedFd, mounts: Mounts, visitor: &mut impl Visitor) -> Result<(), Errno> {
    let mut levels = vec![Level::new(top, c"")?];
    while let Some(level) = levels.last_mut() {
        let Some(directory) = &mut level.directory else {
            return Err(Errno::STALE);
        };
        match directory.read() {
            Some(entry) => {
                let entry = entry?;
                level.position = entry.offset();
                let name = entry.file_name();
                if matches!(name.to_bytes(), b"." | b"..") {
                    continue;
                }
                let entry = Entry { parent: directory.fd()?, name, kind: entry.file_type() };
                visitor.visit(&entry)?;
                if !entry.is_directory() {
                    continue;
                }
                let below = enter(entry.parent, name, mounts);
                match below.and_then(|directory| Level::new(directory, name)) {
                    Ok(below) => go_down(&mut levels, below),
                    // The entry was removed, is no longer a directory, is a mount point, or is not accessible to this user.
                    Err(
                        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::ACCESS,
                    ) => {
                        visitor.leave(entry.parent, name)?;
                    }
                    Err(errno) => return Err(errno),
                }
            }
            None => go_up(&mut levels, mounts, visitor)?,
        }
    }
    Ok(())
}

fn go_down(levels: &mut Vec<Level>, below: Level) {
    if levels.len() >= DEPTH {
        tracing::warn!(DEPTH, "skipped directories nested deeper than limit");
        return;
    }
    levels.push(below);
    if let Some(far) = levels.len().checked_sub(OPEN + 1)
        && let Some(level) = levels.get_mut(far)
    {
        level.directory = None;
    }
}

fn go_up(levels: &mut Vec<Level>, mounts: Mounts, visitor: &mut impl Visitor) -> Result<(), Errno> {
    let Some(done) = levels.pop() else {
        return Ok(());
    };
    let Some(above) = levels.last_mut() else {
        return Ok(());
    };
    if above.directory.is_none() {
        let Some(directory) = &done.directory else {
            return Err(Errno::STALE);
        };
        let up = enter(directory.fd()?, c"..", mounts)?;
        if identity(&up)? != above.identity {
            return Err(Errno::STALE);
        }
        let mut up = Dir::new(up)?;
        up.seek(above.position)?;
        above.directory = Some(up);
    }
    // Close the directory first: removing it may require that.
    let Level { name, directory, .. } = done;
    drop(directory);
    match &above.directory {
        Some(above) => visitor.leave(above.fd()?, &name),
        None => Ok(()),
    }
}

/// The names in a directory, without `.` and `..`.
///
/// # Errors
/// The kernel's error.
pub fn names(directory: &OwnedFd) -> Result<Vec<Vec<u8>>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory.as_fd())? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if !matches!(name, b"." | b"..") {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests;
