//! Separates a fork of the keeper: from its namespaces, its keyring, and the container's sight.

use std::io;

use rustix::thread::UnshareFlags;

use crate::kernel::failure::{Context as _, Step};
use crate::kernel::sys;

/// Keeps the container's processes from inspecting this one, whose /proc/PID/exe is the runtime's own program. It lasts
/// until `execve`.
pub(crate) fn hide() -> Step {
    sys::set_dumpable(false).context("hide from the container")
}

/// `unshare` for the keeper and its forks.
#[allow(
    unsafe_code,
    reason = "rustix marks unshare unsafe because of CLONE_FILES, which is not used here"
)]
pub(crate) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: CLONE_FILES, which would split the descriptors that other threads own, is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

/// Joins a new session keyring. An ordinary user's quota may be small (keyrings(7), maxkeys): once it is exceeded, the
/// process keeps its pod's keyring, which is the keeper's.
pub(crate) fn own_keyring() -> Step {
    match sys::join_new_keyring() {
        Err(error) if error.raw_os_error() == Some(libc::EDQUOT) => Ok(()),
        joined => joined.context("make a session keyring"),
    }
}
