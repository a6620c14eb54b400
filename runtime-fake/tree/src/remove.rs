//! Removes a tree in bounded stack, memory and descriptors.
//!
//! The removal descends at most [`OPEN`] directories. A directory that lies deeper is first moved up to the top
//! of the tree, so that depth costs neither recursion nor memory. A later removal finishes an interrupted one.

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

/// Limit on open directories where the file system refuses to rename a directory: overlayfs does for directories
/// from its lower layers.
const OPEN_AT_MOST: usize = 400;

/// The first entry that could not be removed. The rest of the tree is removed.
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
            // openat2(2) with RESOLVE_NO_XDEV fails with EXDEV on a mount point.
            Errno::XDEV | Errno::BUSY => (", which is a mount point: unmount it", Errno::BUSY),
            Errno::PERM => (": is it immutable? (chattr -i makes it removable)", Errno::PERM),
            errno => ("", errno),
        };
        Self { name: name.to_string_lossy().into_owned(), hint, source: errno.into() }
    }
}

impl From<RemoveError> for io::Error {
    fn from(error: RemoveError) -> Self {
        Self::new(error.source.kind(), error)
    }
}

/// Removes the file or directory at `path` with everything below it. A missing path is not an error.
///
/// # Errors
/// The first entry that could not be removed; everything else is removed.
pub fn remove(path: &Path) -> Result<(), RemoveError> {
    let fail = |errno| RemoveError::new(&lossy(path.as_os_str().as_bytes()), errno);
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(Errno::INVAL));
    };
    let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let parent = match rustix::fs::openat(CWD, parent, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        opened => opened.map_err(fail)?,
    };
    remove_at(parent.as_fd(), &lossy(name.as_bytes()))
}

/// Like [`remove`], for the file or directory `name` in `parent`.
///
/// # Errors
/// The first entry that could not be removed; everything else is removed.
pub fn remove_at(parent: BorrowedFd<'_>, name: &CStr) -> Result<(), RemoveError> {
    remove_until(parent, name, &AtomicBool::new(false))
}

/// Like [`remove_at`], but stops when `stop` is set.
pub(crate) fn remove_until(
    parent: BorrowedFd<'_>,
    name: &CStr,
    stop: &AtomicBool,
) -> Result<(), RemoveError> {
    let mut removal = Removal { levels: Vec::new(), moved: 0, failure: None };
    match unlink(parent, name, FileType::Unknown) {
        Ok(UnlinkOutcome::Gone) => return Ok(()),
        Ok(UnlinkOutcome::NotEmpty) => {}
        Err(errno) => return Err(RemoveError::new(name, errno)),
    }
    let top = Level::open(parent, name).map_err(|errno| RemoveError::new(name, errno))?;
    removal.levels.push(top);
    while !stop.load(Ordering::Relaxed) && removal.step(parent) {}
    removal.failure.map_or(Ok(()), Err)
}

/// Converts a name to a C string. A path from the file system holds no NUL byte.
fn lossy(bytes: &[u8]) -> CString {
    CString::new(bytes).unwrap_or_default()
}

/// A directory that is being emptied.
struct Level {
    directory: Dir,
    name: CString,
    /// An entry was removed since the directory was last read from its start.
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
            // If the mode matters, removing the entries fails and reports it.
            let _ = rustix::fs::fchmod(&opened, Mode::RWXU);
        }
        Ok(Self { directory: Dir::new(opened)?, name: name.to_owned(), progress: false })
    }
}

enum UnlinkOutcome {
    Gone,
    NotEmpty,
}

struct Removal {
    /// From the top of the tree downwards.
    levels: Vec<Level>,
    /// The number of directories moved to the top.
    moved: u64,
    failure: Option<RemoveError>,
}

impl Removal {
    /// Removes the next entry, or a directory that has become empty. Returns false when the removal is complete.
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
        let done = level.directory.fd().and_then(|fd| match unlink(fd, name, kind)? {
            UnlinkOutcome::Gone => Ok(None),
            UnlinkOutcome::NotEmpty if depth < OPEN => match Level::open(fd, name) {
                // Out of descriptors: treat the directory as too deep.
                Err(Errno::MFILE | Errno::NFILE) if depth > 1 => Ok(Some(None)),
                opened => Ok(Some(Some(opened?))),
            },
            UnlinkOutcome::NotEmpty => Ok(Some(None)),
        });
        match done {
            Ok(None) => level.progress = true,
            Ok(Some(Some(below))) => self.levels.push(below),
            Ok(Some(None)) => self.move_up(name),
            Err(Errno::NOENT) => {}
            Err(errno) => self.fail(name, errno),
        }
    }

    /// Moves a directory to the top of the tree, where the removal finds it later. If the rename fails, enters the
    /// directory after all.
    fn move_up(&mut self, name: &CStr) {
        let moved = loop {
            let up = format!(".removed-{}", self.moved);
            self.moved += 1;
            match self.rename(name, &up) {
                // The name is taken.
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
            // The rename changes the directory's `..`, so its owner needs write permission on it.
            Err(Errno::ACCESS) => {
                open_up(from, name)?;
                rename()
            }
            renamed => renamed,
        }
    }

    /// Handles the end of the deepest directory.
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
            // A file system may skip entries of a directory that changes while it is read, and moving directories to the top
            // changes it.
            Err(Errno::NOTEMPTY | Errno::EXIST) if level.progress => {
                level.progress = false;
                level.directory.rewind();
                self.levels.push(level);
            }
            Err(errno) => self.fail(&level.name, errno),
        }
    }

    fn fail(&mut self, name: &CStr, errno: Errno) {
        // The first failure causes the later ones (ENOTEMPTY above it).
        if self.failure.is_none() {
            self.failure = Some(RemoveError::new(name, errno));
        }
    }
}

/// Removes a file or an empty directory.
fn unlink(parent: BorrowedFd<'_>, name: &CStr, kind: FileType) -> Result<UnlinkOutcome, Errno> {
    if kind != FileType::Directory {
        match rustix::fs::unlinkat(parent, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => return Ok(UnlinkOutcome::Gone),
            Err(Errno::ISDIR) => {}
            // Some file systems return EPERM or EACCES for a directory, and all do when the parent is not writable.
            Err(Errno::PERM | Errno::ACCESS) if is_directory(parent, name) => {}
            Err(errno) => return Err(errno),
        }
    }
    match rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => Ok(UnlinkOutcome::Gone),
        // A directory that cannot be unlinked from its parent can still be emptied. The error is reported when its end
        // is reached.
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::PERM | Errno::ACCESS) => {
            Ok(UnlinkOutcome::NotEmpty)
        }
        Err(errno) => Err(errno),
    }
}

fn is_directory(parent: BorrowedFd<'_>, name: &CStr) -> bool {
    rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory)
}

#[cfg(test)]
pub(crate) mod tests;
