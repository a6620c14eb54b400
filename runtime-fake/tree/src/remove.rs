//! Removal of a tree in bounded stack, memory and descriptors.
//!
//! The removal goes down at most [`OPEN`] directories. A directory that lies deeper is first moved up to the top of the tree,
//! so that depth needs neither recursion nor memory. A removal that is interrupted is finished by another one.

use std::{
    ffi::{CStr, CString},
    io,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use rustix::{
    fd::{AsFd, BorrowedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags},
    io::Errno,
};

use crate::{Mounts, OPEN, enter, open_up};

/// How many directories may be open where a file system does not let them be moved: overlayfs, with what comes from its
/// lower layers.
const OPEN_AT_MOST: usize = 400;

/// What could not be removed. The rest of the tree is gone.
#[derive(Debug, thiserror::Error)]
#[error("failed to remove {name:?}{hint}")]
pub struct RemoveError {
    name: String,
    hint: &'static str,
    source: io::Error,
}

impl RemoveError {
    fn new(name: &CStr, errno: Errno) -> Self {
        let (hint, errno) = match errno {
            // openat2(2) says that a mount point is on another device.
            Errno::XDEV | Errno::BUSY => (", which is a mount point: unmount it", Errno::BUSY),
            Errno::PERM => (
                ": is it immutable? (chattr -i makes it removable)",
                Errno::PERM,
            ),
            errno => ("", errno),
        };
        Self {
            name: name.to_string_lossy().into_owned(),
            hint,
            source: errno.into(),
        }
    }
}

impl From<RemoveError> for io::Error {
    fn from(error: RemoveError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// Removes the file or directory at `path` with all that is in it; nothing there is no error.
///
/// # Errors
/// The first thing that could not be removed; all else is gone.
pub fn remove(path: &Path) -> Result<(), RemoveError> {
    let fail = |errno| RemoveError::new(&lossy(path.as_os_str().as_bytes()), errno);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(Errno::INVAL));
    };
    let parent = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(fail)?,
    };
    remove_at(parent.as_fd(), &lossy(name.as_bytes()))
}

/// [`remove`] of the file or directory `name` in `parent`.
///
/// # Errors
/// The first thing that could not be removed; all else is gone.
pub fn remove_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), RemoveError> {
    remove_until(parent, name, &AtomicBool::new(false))
}

/// [`remove_at`] until `stop` is set.
pub(crate) fn remove_until(
    parent: BorrowedFd<'_>,
    name: &CStr,
    stop: &AtomicBool,
) -> Result<(), RemoveError> {
    let mut removal = Removal {
        levels: Vec::new(),
        moved: 0,
        failure: None,
    };
    match unlink(parent, name, FileType::Unknown) {
        Ok(Unlinked::Gone) => return Ok(()),
        Ok(Unlinked::NotEmpty) => {}
        Err(errno) => return Err(RemoveError::new(name, errno)),
    }
    let top = Level::open(parent, name).map_err(|errno| RemoveError::new(name, errno))?;
    removal.levels.push(top);
    while !stop.load(Ordering::Relaxed) && removal.step(parent) {}
    removal.failure.map_or(Ok(()), Err)
}

/// A name as the kernel takes it. A path with a zero byte does not come from the file system.
fn lossy(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

/// A directory that is being emptied.
struct Level {
    directory: Dir,
    name: CString,
    /// Something in it has gone since it was read from its beginning.
    progress: bool,
}

impl Level {
    fn open(parent: BorrowedFd<'_>, name: &CStr) -> Result<Self, Errno> {
        let opened = match enter(parent, name, Mounts::Stay) {
            Err(Errno::ACCESS) => {
                open_up(parent, name)?;
                enter(parent, name, Mounts::Stay)
            }
            opened => opened,
        }?;
        if rustix::fs::fstat(&opened)?.st_mode & 0o700 != 0o700 {
            // Where it matters, what is in it shows that.
            let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
        }
        Ok(Self {
            directory: Dir::new(opened)?,
            name: name.to_owned(),
            progress: false,
        })
    }
}

enum Unlinked {
    Gone,
    NotEmpty,
}

struct Removal {
    /// From the top of the tree down.
    levels: Vec<Level>,
    /// How many directories were moved to the top.
    moved: u64,
    failure: Option<RemoveError>,
}

impl Removal {
    /// Removes the next entry, or a directory that has become empty. False when there is no more to do.
    fn step(&mut self, parent: BorrowedFd<'_>) -> bool {
        let Some(level) = self.levels.last_mut() else {
            return false;
        };
        match level.directory.read() {
            Some(Ok(entry)) if matches!(entry.file_name().to_bytes(), b"." | b"..") => {}
            Some(Ok(entry)) => self.entry(entry.file_name(), entry.file_type()),
            Some(Err(errno)) => {
                let name = level.name.clone();
                self.levels.pop();
                self.fail(&name, errno);
            }
            None => self.end(parent),
        }
        true
    }

    fn entry(&mut self, name: &CStr, kind: FileType) {
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        let done = level
            .directory
            .fd()
            .and_then(|fd| match unlink(fd, name, kind)? {
                Unlinked::Gone => Ok(None),
                Unlinked::NotEmpty if depth < OPEN => match Level::open(fd, name) {
                    // Too many open files: as if it were as deep as may be.
                    Err(Errno::MFILE | Errno::NFILE) if depth > 1 => Ok(Some(None)),
                    opened => Ok(Some(Some(opened?))),
                },
                Unlinked::NotEmpty => Ok(Some(None)),
            });
        match done {
            Ok(None) => level.progress = true,
            Ok(Some(Some(below))) => self.levels.push(below),
            Ok(Some(None)) => self.move_up(name),
            Err(Errno::NOENT) => {}
            Err(errno) => self.fail(name, errno),
        }
    }

    /// Moves a directory to the top of the tree, where it is found later. Where that cannot be, it is entered after all.
    fn move_up(&mut self, name: &CStr) {
        let moved = loop {
            let up = format!(".removed-{}", self.moved);
            self.moved += 1;
            match self.rename(name, &up) {
                // The name now belongs to another file.
                Err(Errno::EXIST) => {}
                moved => break moved,
            }
        };
        let depth = self.levels.len();
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        match moved {
            Ok(()) => {
                level.progress = true;
                if let Some(top) = self.levels.first_mut() {
                    top.progress = true;
                }
            }
            Err(Errno::BUSY) => self.fail(name, Errno::BUSY),
            Err(_) if depth < OPEN_AT_MOST => {
                match level.directory.fd().and_then(|fd| Level::open(fd, name)) {
                    Ok(below) => self.levels.push(below),
                    Err(errno) => self.fail(name, errno),
                }
            }
            Err(errno) => self.fail(name, errno),
        }
    }

    fn rename(&self, name: &CStr, up: &str) -> Result<(), Errno> {
        let (Some(top), Some(level)) = (self.levels.first(), self.levels.last()) else {
            return Ok(());
        };
        let (top, from) = (top.directory.fd()?, level.directory.fd()?);
        let rename = || rustix::fs::renameat_with(from, name, top, up, RenameFlags::NOREPLACE);
        match rename() {
            // What `..` in it means changes, for which its owner has to be allowed to write to it.
            Err(Errno::ACCESS) => {
                open_up(from, name)?;
                rename()
            }
            renamed => renamed,
        }
    }

    /// The end of the deepest directory was read.
    fn end(&mut self, parent: BorrowedFd<'_>) {
        let Some(mut level) = self.levels.pop() else {
            return;
        };
        let above = match self.levels.last() {
            Some(above) => above.directory.fd().unwrap_or(parent),
            None => parent,
        };
        match rustix::fs::unlinkat(above, &level.name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => {
                if let Some(above) = self.levels.last_mut() {
                    above.progress = true;
                }
            }
            // File systems may skip entries of a directory that changes, and directories were moved to the top.
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.progress => {
                level.progress = false;
                level.directory.rewind();
                self.levels.push(level);
            }
            Err(errno) => self.fail(&level.name, errno),
        }
    }

    fn fail(&mut self, name: &CStr, errno: Errno) {
        // The first one is the reason for others.
        if self.failure.is_none() {
            self.failure = Some(RemoveError::new(name, errno));
        }
    }
}

/// Removes a file, or a directory that is empty.
fn unlink(parent: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<Unlinked, Errno> {
    if kind != FileType::Directory {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(Unlinked::Gone),
            Err(Errno::ISDIR) => {}
            // Some file systems say so of directories, and all do where the parent cannot be written to.
            Err(Errno::PERM | Errno::ACCESS) if is_directory(parent, name) => {}
            Err(errno) => return Err(errno),
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(Unlinked::Gone),
        // One that cannot be taken out of its parent can be emptied. Its end says so.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::PERM | Errno::ACCESS) => Ok(Unlinked::NotEmpty),
        Err(errno) => Err(errno),
    }
}

fn is_directory(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
pub(crate) mod tests;
