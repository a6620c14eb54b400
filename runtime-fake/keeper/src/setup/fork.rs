//! Forks of the keeper into other namespaces.

use std::{
    io::{self, Read as _},
    os::fd::BorrowedFd,
};

use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::sys::{self, Fork};
use crate::kernel::sys::{hide, own_keyring};
use crate::setup::userns::UserNamespace;

/// The user namespace and cgroup that a process is cloned into.
#[derive(Clone, Copy, Default)]
pub(crate) struct CloneTarget<'a> {
    /// The user namespace in which it is root; its new namespaces belong to it.
    pub(crate) users: Option<&'a UserNamespace>,
    /// The directory of its v2 cgroup.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
}

/// Forks a child into new namespaces (`flags`) at `target`. `before` runs with the keeper's privileges, and the child
/// inherits its effects.
///
/// The keeper cannot enter a user namespace itself, because it could not return. An intermediate child enters, forks the actual
/// child as its own sibling, and exits.
pub(crate) fn fork_into(target: CloneTarget<'_>, flags: i32, before: impl FnOnce()) -> Step<Fork> {
    let what = "start a process in the container";
    let Some(users) = target.users else {
        return sys::fork_inside(flags, target.cgroup).context(what);
    };
    let (mut reader, mut writer) = io::pipe().context(what)?;
    // A process in another user namespace may not move into cgroups: the intermediate process is created in the cgroup.
    match sys::fork_inside(0, target.cgroup).context(what)? {
        Fork::Child => {
            drop(reader);
            // Hide it before the fork: other processes may see the child in its namespaces.
            let sibling = hide()
                .and_then(|()| own_keyring())
                .map(|()| before())
                .and_then(|()| users.enter())
                .and_then(|()| sys::fork(flags | libc::CLONE_PARENT).context(what));
            let report = match sibling {
                Ok(Fork::Child) => return Ok(Fork::Child),
                Ok(Fork::Parent(pid)) => Ok(pid),
                Err(failure) => Err(failure),
            };
            let _ = serde_json::to_writer(&mut writer, &report);
            std::process::exit(0);
        }
        Fork::Parent(go_between) => {
            drop(writer);
            let mut report = Vec::new();
            let read = reader.read_to_end(&mut report);
            // Waits for this child only: no other code waits for it, and its exit status carries no information.
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(go_between), None);
            read.context(what)?;
            let report: Step<i32> = serde_json::from_slice(&report).map_err(|_| {
                Failure::new(
                    FailureKind::System,
                    "the process that enters the container's namespaces ended early",
                )
            })?;
            report.map(Fork::Parent)
        }
    }
}
