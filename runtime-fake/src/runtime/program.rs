//! The keepers' executable: this program, through a read-only mount.
//!
//! A container whose program is a script with `#!/proc/self/exe`, or a link to it, runs the keeper's executable inside, and can
//! get a descriptor of the file that every keeper on the machine is started from (CVE-2019-5736). So keepers are started from a
//! detached read-only mount of that file alone. It uses no memory: the file's pages are shared.

use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use keeper::set_read_only;
use nix::sched::{CloneFlags, unshare};
use rustix::{
    fs::{CWD, fstat, stat},
    mount::{OpenTreeFlags, open_tree},
};

/// This process's own executable.
const OWN: &str = "/proc/self/exe";

/// The executable, ready for `execve`.
pub(crate) struct Program {
    mount: Option<OwnedFd>,
}

impl Program {
    /// Opens a read-only mount if the machine allows it. If it does not, there are no namespaces either, and nothing
    /// to protect.
    pub(crate) fn own() -> Self {
        // A user namespace has no privileges over inherited mounts, but has them over copies: unshare a mount namespace for this
        // thread.
        let thread = std::thread::spawn(|| -> std::io::Result<OwnedFd> {
            unshare(CloneFlags::CLONE_NEWNS)?;
            let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
            // Open it by name: the link leads into the previous mount namespace.
            let mount = open_tree(CWD, std::fs::read_link(OWN)?, flags)?;
            let (named, own) = (fstat(&mount)?, stat(OWN)?);
            if (named.st_dev, named.st_ino) != (own.st_dev, own.st_ino) {
                return Err(std::io::Error::other("its file was replaced"));
            }
            set_read_only(mount.as_fd(), false)?;
            Ok(mount)
        });
        let mount = match thread.join() {
            Ok(Ok(mount)) => Some(mount),
            Ok(Err(error)) => {
                tracing::debug!(%error, "failed to mount keeper program read-only: containers might write to it");
                None
            }
            Err(_) => None,
        };
        Self { mount }
    }

    /// A path for `execve` in a child of this process.
    pub(crate) fn path(&self) -> String {
        match &self.mount {
            Some(mount) => format!("/proc/self/fd/{}", mount.as_raw_fd()),
            None => OWN.to_owned(),
        }
    }
}
