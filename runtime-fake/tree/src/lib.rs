//! Walks over and removes directory trees that an untrusted process made: a container's layers and volumes.
//!
//! A container may nest directories 60,000 deep, with paths longer than `PATH_MAX`, or fill one directory with 200,000 files. No
//! function here recurses; stack, open descriptors and memory are bounded for any tree. Each name is looked up relative to the
//! descriptor of its directory: no symbolic link is followed, and no mount is crossed unless the caller requests it.
//!
//! [`part`] makes, finds and reads parts of such a tree by their path, [`directory`] makes directories that a user names,
//! [`mountinfo`] parses mount tables, [`named_text`] reads files that a user names, up to a limit.
//!
//! This package depends on no other package of the workspace, so that the runtime, the agent and the harness
//! remove trees with the same code.

pub mod directory;
mod group;
pub mod mountinfo;
pub mod named_text;
pub mod part;
pub mod private;
mod remove;
mod scoped;
mod space;
mod trash;
mod walk;

/// Why a visitor stops.
pub use rustix::io::Errno;

use rustix::fd::{AsFd, AsRawFd as _, OwnedFd};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};
use rustix::path::Arg;

pub use group::{give_to_group, give_to_group_if_possible, is_of_group};
pub use remove::{RemoveError, remove, remove_at};
pub use scoped::{open_scoped, try_open_scoped};
pub use space::{FsUsage, Space, space, usage};
pub use trash::Trash;
pub use walk::{Entry, Mounts, Visitor, names, open, walk};

/// Whether a call failed because the system or this process is short of descriptors or memory (EMFILE, ENFILE, ENOMEM). The same
/// call may succeed later; the failure does not concern the file itself.
#[must_use]
pub fn is_transient(error: &std::io::Error) -> bool {
    matches!(Errno::from_io_error(error), Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM))
}

/// Limit on the directories of one tree that are open at a time.
const OPEN: usize = 32;

/// Opens the directory `name` of `parent`. Refuses a symbolic link and, with [`Mounts::Stay`], a mount point.
fn enter(parent: impl AsFd, name: impl Arg + Copy, mounts: Mounts) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut resolve = ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    if mounts == Mounts::Stay {
        resolve |= ResolveFlags::NO_XDEV;
    }
    rustix::fs::openat2(parent, name, flags, Mode::empty(), resolve)
}

/// Sets mode 0700 on the directory `name`. A container can revoke its owner's own permissions, and a user without
/// CAP_DAC_OVERRIDE is bound by them.
fn open_up(parent: impl AsFd, name: impl Arg) -> Result<(), Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let directory = rustix::fs::openat(parent, name, flags, Mode::empty())?;
    // fchmod(2) rejects an O_PATH descriptor, and fchmodat(2) would follow a link put in the directory's place.
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    rustix::fs::chmodat(CWD, path, Mode::RWXU, rustix::fs::AtFlags::empty())
}
