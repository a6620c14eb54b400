//! Walks over and removal of directory trees that an untrusted process made: a container's layers and volumes.
//!
//! A container may nest directories 60,000 deep, with paths that exceed `PATH_MAX`, or fill one directory with 200,000
//! files. Nothing here recurses, and stack, open descriptors and memory are bounded whatever the tree looks like. Each
//! name is looked up relative to the descriptor of its directory: no symbolic link is followed, and no mount is crossed
//! unless the caller asks for it.
//!
//! [`mountinfo`] tells where something is mounted, in a tree as anywhere else.
//!
//! This package depends on no other package of the workspace, so that the runtime, the agent and the harness remove
//! trees with the same code.

pub mod mountinfo;
pub mod private;
mod remove;
mod trash;
mod walk;

pub use remove::{RemoveError, remove, remove_at};
pub use trash::Trash;
pub use walk::{Entry, Mounts, Visitor, names, open, walk};

use rustix::{
    fd::{AsFd, AsRawFd as _, OwnedFd},
    fs::{CWD, Mode, OFlags, ResolveFlags},
    io::Errno,
    path::Arg,
};

/// Whether a call failed because the system or this process is short of descriptors or memory (EMFILE, ENFILE, ENOMEM), so
/// that the same call may succeed later, and the failure says nothing about the file.
#[must_use]
pub fn is_transient(error: &std::io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM)
    )
}

/// How many directories of one tree are open at a time.
const OPEN: usize = 32;

/// Opens the directory `name` of `parent`: neither a symbolic link nor, unless `mounts` says so, another mount.
fn enter(parent: impl AsFd, name: impl Arg + Copy, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Stay {
        resolve |= ResolveFlags::NO_XDEV;
    }
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// Gives the owner of the directory `name` every right on it. Where a user has no power over modes, a container's own
/// files can be protected from their owner.
fn open_up(parent: impl AsFd, name: impl Arg) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // fchmod(2) does not take such a descriptor, and fchmodat(2) would follow a link put in the directory's place.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::RWXU, rustix::fs::AtFlags::empty())
}
