//! Paths in a container's root, looked up with `openat2(RESOLVE_IN_ROOT)`: a link in an image never leads outside it.

use std::{
    ffi::OsStr,
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::ffi::OsStrExt as _,
    },
    path::{Component, Path, PathBuf},
};

use rustix::{
    fs::{FileType, Mode, OFlags, ResolveFlags},
    io::Errno,
};

use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};

/// A longer chain of links counts as a loop.
const MAX_LINKS: usize = 40;

/// Why a file could not be opened for reading.
#[derive(Debug)]
pub(crate) enum RegularFileError {
    /// A system call failed.
    Errno(Errno),
    /// It is not a regular file.
    Kind(FileType),
}

impl From<Errno> for RegularFileError {
    fn from(error: Errno) -> Self {
        Self::Errno(error)
    }
}

/// A container's root.
pub(crate) struct Root {
    fd: OwnedFd,
}

impl Root {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// This process's root.
    pub(crate) fn own() -> Result<Self, Errno> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/", flags, Mode::empty()).map(Self::new)
    }

    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_with(path, flags, ResolveFlags::empty())
    }

    /// Never follows the magic links of `/proc`: they may lead out of the root.
    fn open_with(&self, path: &Path, flags: OFlags, more: ResolveFlags) -> Result<OwnedFd, Errno> {
        file_tree::open_scoped(
            &self.fd,
            path,
            flags | OFlags::CLOEXEC,
            Mode::empty(),
            ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS | more,
        )
    }

    /// Opens a regular file for reading, without blocking and without opening a device. `mounts`: whether the path may cross a
    /// mount below the root.
    pub(crate) fn regular(&self, path: &Path, mounts: bool) -> Result<OwnedFd, RegularFileError> {
        let more = if mounts { ResolveFlags::empty() } else { ResolveFlags::NO_XDEV };
        let check = |fd: &OwnedFd| {
            let kind = FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
            (kind == FileType::RegularFile).then_some(()).ok_or(RegularFileError::Kind(kind))
        };
        check(&self.open_with(path, OFlags::PATH, more)?)?;
        // The path may name another file by now: opening that must not block, and must not set a controlling terminal.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY;
        let file = self.open_with(path, flags, more)?;
        check(&file)?;
        Ok(file)
    }

    /// Opens `path`; none if it is missing.
    pub(crate) fn existing(&self, path: &Path) -> Result<Option<OwnedFd>, Errno> {
        match self.open(path, OFlags::PATH) {
            Ok(fd) => Ok(Some(fd)),
            Err(Errno::NOENT | Errno::NOTDIR) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The path, in this root, of an opened file, with all links resolved.
    pub(crate) fn path_of(&self, fd: &OwnedFd) -> Result<PathBuf, std::io::Error> {
        let path =
            |fd: BorrowedFd<'_>| std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let (root, path) = (path(self.fd())?, path(fd.as_fd())?);
        Ok(Path::new("/").join(path.strip_prefix(&root).unwrap_or(&path)))
    }

    /// Opens the directory `path`, creating it and its parents if they are missing.
    pub(crate) fn directory(&self, path: &Path) -> Step<OwnedFd> {
        self.make(path, "mount point")
    }

    /// Enters the directory `path`, creating it and its parents if they are missing.
    pub(crate) fn enter_directory(&self, path: &Path) -> Step {
        let what = || format!("enter the working directory {}", path.display());
        let refused = |why: &str| {
            let path = path.display();
            let message = format!("the working directory {path} {why}");
            Err(Failure::new(FailureKind::Invalid, message))
        };
        let directory = match self.open(path, OFlags::PATH | OFlags::DIRECTORY) {
            Ok(directory) => directory,
            Err(Errno::NOENT) => {
                let made = self.make(path, "working directory");
                made.map_err(|failure| Failure::new(FailureKind::Invalid, failure.message))?
            }
            Err(Errno::NOTDIR) => return refused("is not a directory"),
            Err(Errno::LOOP) => return refused("leads through too many links, or one of /proc"),
            Err(error) => return Err(error).context(what()),
        };
        rustix::process::fchdir(directory).context(what())
    }

    fn make(&self, path: &Path, kind: &str) -> Step<OwnedFd> {
        let what = || format!("make the {kind} {}", path.display());
        if let Ok(fd) = self.open(path, OFlags::PATH | OFlags::DIRECTORY) {
            return Ok(fd);
        }
        let mut done = PathBuf::from("/");
        let mut at = self.open(&done, OFlags::PATH | OFlags::DIRECTORY).context(what())?;
        for name in parts(path) {
            done.push(name);
            at = match self.open(&done, OFlags::PATH | OFlags::DIRECTORY) {
                Ok(fd) => fd,
                Err(Errno::NOENT) => {
                    match rustix::fs::mkdirat(&at, name, Mode::from_raw_mode(0o755)) {
                        Ok(()) | Err(Errno::EXIST) => {}
                        Err(error) => return not_made(kind, path, error),
                    }
                    self.open(&done, OFlags::PATH | OFlags::DIRECTORY).context(what())?
                }
                Err(error) => return Err(error).context(what()),
            };
        }
        Ok(at)
    }

    /// Opens the file `path`, creating an empty one and its parents if they are missing, even behind a dangling link.
    pub(crate) fn file(&self, path: &Path) -> Step<OwnedFd> {
        let what = || format!("make the mount point {}", path.display());
        let mut path = normal(path);
        for _ in 0..MAX_LINKS {
            if let Ok(fd) = self.open(&path, OFlags::PATH) {
                return Ok(fd);
            }
            let parent = self.directory(path.parent().unwrap_or(Path::new("/")))?;
            let name = path.file_name().unwrap_or(OsStr::new(".")).to_owned();
            match rustix::fs::openat(
                &parent,
                &name,
                OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::WRONLY,
                Mode::from_raw_mode(0o644),
            ) {
                Ok(_) => {}
                Err(Errno::EXIST) => {
                    let link = rustix::fs::readlinkat(&parent, &name, Vec::new()).context(what())?;
                    path =
                        normal(&path.with_file_name("").join(OsStr::from_bytes(link.as_bytes())));
                }
                Err(error) => return not_made("mount point", &path, error),
            }
        }
        Err(Errno::LOOP).context(what())
    }
}

/// The failure to make a file or directory in a container's root. Below a read-only mount it is final, because the client
/// requested that mount. The agent matches the end of this message and retries: another container may make the mount point
/// meanwhile.
fn not_made<T>(kind: &str, path: &Path, error: Errno) -> Step<T> {
    let path = path.display();
    if error == Errno::ROFS {
        let message = format!(
            "the {kind} {path} does not exist, and cannot be made: it is below a read-only mount"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    Err(error).context(format!("make the {kind} {path}"))
}

/// `path` without `.` and `..`, from the root.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => out.push(name),
            Component::ParentDir => {
                out.pop();
            }
            Component::Prefix(_) | Component::RootDir | Component::CurDir => {}
        }
    }
    out
}

fn parts(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::Prefix(_) | Component::RootDir | Component::CurDir | Component::ParentDir => {
            None
        }
    })
}
