//! Resolves paths, and decides the name of an archive in the destination.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;

use file_tree::open_scoped;
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat};
use rustix::io::Errno;

use crate::error::CopyError;

/// The root in which paths are resolved.
#[derive(Debug)]
pub struct Root {
    /// The container's root; `None` for this process's own, and its working directory.
    of_container: Option<OwnedFd>,
}

impl Root {
    /// This process's own root and working directory.
    #[must_use]
    pub fn own() -> Self {
        Self { of_container: None }
    }

    /// A container's root directory: no path and no link leads out of it, even while the container changes them.
    #[must_use]
    pub fn of_container(directory: OwnedFd) -> Self {
        Self { of_container: Some(directory) }
    }

    /// Opens the file at a path, with `O_PATH`.
    fn open(&self, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::PATH | OFlags::CLOEXEC;
        let Some(root) = &self.of_container else {
            return openat(CWD, path, flags, Mode::empty());
        };
        // Magic links of /proc would lead out.
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        open_scoped(root, path, flags, Mode::empty(), resolve)
    }

    fn directory(&self, path: &Path) -> Result<OwnedFd, Errno> {
        self.open(path, OFlags::DIRECTORY)
    }
}

/// A file or directory to pack.
#[derive(Debug)]
pub struct Source {
    pub(crate) file: OwnedFd,
    pub(crate) name: OsString,
    pub(crate) path: Vec<u8>,
}

impl Source {
    /// Opens the file at a path; a link at its end is followed.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(root: &Root, path: &Path) -> Result<Self, CopyError> {
        let bytes = path.as_os_str().as_bytes();
        let file = root.open(path, OFlags::empty()).map_err(CopyError::errno("open", bytes))?;
        Ok(Self { file, name: Self::name(path), path: bytes.to_owned() })
    }

    /// Sets another name for it in the archive.
    pub fn rename(&mut self, name: &OsStr) {
        name.clone_into(&mut self.name);
    }

    /// The name of a path in its archive: the last component, or `.` if there is none or if the path means the contents of a
    /// directory, as in `dir/.`.
    #[must_use]
    pub fn name(path: &Path) -> OsString {
        let content = path.as_os_str().as_bytes();
        match path.file_name() {
            Some(name) if !content.ends_with(b"/.") => name.to_owned(),
            Some(_) | None => OsString::from("."),
        }
    }
}

/// The destination of an archive.
#[derive(Debug)]
pub struct Destination {
    pub(crate) directory: OwnedFd,
    /// The archive's name in the directory; `None`: its members are unpacked into the directory itself.
    pub(crate) name: Option<Vec<u8>>,
}

impl Destination {
    /// The destination of an archive called `name` (`.` for the contents of a directory): the directory at the path if it exists;
    /// otherwise the path is the archive's new name.
    ///
    /// # Errors
    /// If there is no directory for it.
    pub fn open(root: &Root, path: &Path, name: &OsStr) -> Result<Self, CopyError> {
        let bytes = path.as_os_str().as_bytes();
        let named = (name != ".").then(|| name.as_bytes().to_owned());
        match root.directory(path) {
            Ok(directory) => return Ok(Self { directory, name: named }),
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => return Err(CopyError::errno("open", bytes)(errno)),
        }
        let Some(name) = path.file_name().filter(|_| !bytes.ends_with(b"/.")) else {
            return Err(CopyError::refused(bytes, "is not a directory"));
        };
        if bytes.ends_with(b"/") {
            let why = "is not a directory: leave out the slash at its end to make it";
            return Err(CopyError::refused(bytes, why));
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or(Path::new("."));
        let directory = root.directory(parent);
        let failed = CopyError::errno("open the directory", parent.as_os_str().as_bytes());
        let directory = directory.map_err(failed)?;
        Ok(Self { directory, name: Some(name.as_bytes().to_owned()) })
    }
}

/// The file systems of the kernel: their magic numbers in `linux/magic.h`.
const OF_KERNEL: [u32; 14] = [
    0x9fa0,      // proc
    0x6265_6572, // sysfs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x7363_6673, // securityfs
    0xf97c_ff8c, // selinuxfs
    0xcafe_4a11, // bpf
    0x6165_676c, // pstore
    0xde5e_81e4, // efivarfs
    0x6265_6570, // configfs
    0x1cd1,      // devpts
    0x6e73_6673, // nsfs
];

/// Whether a file is on a file system of the kernel: reading or writing such a file acts on this process or on the machine.
pub(crate) fn is_of_kernel(file: BorrowedFd<'_>) -> Result<bool, Errno> {
    let kind = rustix::fs::fstatfs(file)?.f_type;
    // The type differs between architectures; all numbers have 32 bits.
    Ok(OF_KERNEL.contains(&(kind as u32)))
}

/// Reopens a file that is open with `O_PATH`, without looking up its name again.
pub(crate) fn reopen(file: &OwnedFd, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    openat(CWD, path, flags | OFlags::CLOEXEC | OFlags::NOCTTY, Mode::empty())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/var/log/app.log", "app.log")]
    #[case("dir/", "dir")]
    #[case("dir/.", ".")]
    #[case("/", ".")]
    #[case(".", ".")]
    #[case("..", ".")]
    #[case("a/..", ".")]
    fn archive_has_last_name_of_path(#[case] path: &str, #[case] name: &str) {
        assert_eq!(Source::name(Path::new(path)), name);
    }
}
