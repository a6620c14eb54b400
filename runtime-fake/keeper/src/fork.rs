//! Forks of the keeper that are born in other namespaces.

use std::{
    io::{self, Read as _},
    os::fd::BorrowedFd,
};

use crate::{
    failure::{Context as _, Failure, FailureKind, Step},
    sys::{self, Fork},
    unshare::{hide, own_keyring},
    userns::UserNamespace,
};

/// The user namespace and cgroup that a process is cloned into.
#[derive(Clone, Copy, Default)]
pub(crate) struct CloneTarget<'a> {
    /// The user namespace that it is root of; its new namespaces belong to it.
    pub(crate) users: Option<&'a UserNamespace>,
    /// The directory of its v2 cgroup.
    pub(crate) cgroup: Option<BorrowedFd<'a>>,
}

/// Forks a child into new namespaces (`flags`) at `target`. What has to be done by a process with the keeper's power, for the
/// child to inherit, is done `before`.
///
/// The keeper cannot enter a user namespace itself: there would be no way back. Another child goes, forks the real one as
/// its own sibling, and ends.
pub(crate) fn fork_into(target: CloneTarget<'_>, flags: i32, before: impl FnOnce()) -> Step<Fork> {
    let what = "start a process in the container";
    let Some(users) = target.users else {
        return sys::fork_inside(flags, target.cgroup).context(what);
    };
    let (mut reader, mut writer) = io::pipe().context(what)?;
    // A process in another user namespace has no power over cgroups: the one that goes is born in it already.
    match sys::fork_inside(0, target.cgroup).context(what)? {
        Fork::Child => {
            drop(reader);
            // Hidden before it is born where others see it.
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
            // Just this child: no other code waits for it, and its exit status carries nothing.
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
