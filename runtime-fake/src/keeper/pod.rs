//! The pod's own namespaces, which the keeper lives in and so keeps.

use std::{
    ffi::CString,
    io::{self, Read as _},
    os::fd::{BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::UnshareFlags,
};

use super::{
    child::{hide, unshare},
    pause::{self, Pause},
    protocol::{Failure, FailureKind},
    root::overlay,
    step::{Doing as _, Step},
    sys::{self, Fork},
    userns::UserNamespace,
};
use crate::launch::{PodPlan, Rung, of_network};

/// A pod that is set up.
pub(super) struct Pod {
    pub(super) plan: PodPlan,
    /// The pod's shared memory directory.
    pub(super) shm: Option<PathBuf>,
    /// The mount namespace of the daemon, where mounts of the host are to be found; none where there is no way back to it,
    /// from inside a user namespace.
    pub(super) host_mounts: Option<OwnedFd>,
    /// The user namespace that its containers, and its other namespaces, belong to; none where that is the keeper's own.
    pub(super) user_namespace: Option<UserNamespace>,
    /// The first process of the namespace that all containers share.
    pub(super) pause: Option<Pause>,
    /// Namespaces that end with their last descriptor: kept alive for the daemon, which may end before the pod.
    _held: Vec<OwnedFd>,
}

/// Makes what `plan` asks for.
pub(super) fn set_up(plan: PodPlan, held: Vec<OwnedFd>) -> Step<Pod> {
    let (mut shm, mut host_mounts) = (None, None);
    let user_namespace = plan
        .user_namespace
        .as_ref()
        .map(UserNamespace::make)
        .transpose()?;
    let of_pod = plan.sysctls.iter().filter(|(name, _)| !of_network(name));
    let set_sysctls = || -> Step {
        let mut of_pod = of_pod.clone();
        of_pod.try_for_each(|(name, value)| set_sysctl(name, value))
    };
    if plan.rung != Rung::Process {
        if plan.rung == Rung::Root {
            let namespace = std::fs::File::open("/proc/self/ns/mnt");
            host_mounts = Some(namespace.doing("hold the host's mount namespace")?.into());
        }
        let mut flags = UnshareFlags::empty();
        flags.set(UnshareFlags::NEWUTS, !plan.hostname.is_empty());
        flags.set(UnshareFlags::NEWIPC, plan.own_ipc);
        flags.set(UnshareFlags::NEWNET, plan.own_network);
        match &user_namespace {
            None => unshare(flags | UnshareFlags::NEWNS).doing("make the pod's namespaces")?,
            Some(users) => {
                unshare(UnshareFlags::NEWNS).doing("make the pod's namespaces")?;
                // Those of an IPC namespace are for its owner to set.
                users.surround(flags, set_sysctls)?;
            }
        }
        mount_change(
            "/",
            MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
        )
        .doing("separate the pod's mounts from the host's")?;
        if !plan.hostname.is_empty() {
            rustix::system::sethostname(plan.hostname.as_bytes())
                .doing(format_args!("set the host name {:?}", plan.hostname))?;
        }
        if plan.own_ipc {
            shm = Some(mount_shm(&plan)?);
        }
        if user_namespace.is_none() {
            set_sysctls()?;
        }
    }
    let pause = if plan.shared_pids {
        Some(pause::start(&plan, user_namespace.as_ref())?)
    } else {
        None
    };
    Ok(Pod {
        plan,
        shm,
        host_mounts,
        user_namespace,
        pause,
        _held: held,
    })
}

fn mount_shm(plan: &PodPlan) -> Step<PathBuf> {
    let at = plan.directory.join("shm");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    let label = overlay::context(plan.label.as_deref());
    let options = CString::new(format!("mode=1777,size=65536k{label}")).map_err(io::Error::from);
    let options = options.doing("mount the pod's shared memory")?;
    mount("shm", &at, "tmpfs", flags, Some(options.as_c_str()))
        .doing("mount the pod's shared memory")?;
    if let Some(maps) = &plan.user_namespace {
        let (uid, gid) = maps.root();
        std::os::unix::fs::chown(&at, Some(uid), Some(gid))
            .doing("give the pod its shared memory")?;
    }
    Ok(at)
}

/// Some of these are of an interface, which is there when the pod is connected.
pub(super) fn set_network_sysctls(plan: &PodPlan) -> Step {
    let mut network = plan.sysctls.iter().filter(|(name, _)| of_network(name));
    network.try_for_each(|(name, value)| set_sysctl(name, value))
}

fn set_sysctl(name: &str, value: &str) -> Step {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    std::fs::write(&path, value).map_err(|error| {
        Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to set the sysctl {name} to {value:?}: {}",
                super::step::plain(&error)
            ),
        )
    })
}

/// Where a process is born that is not just a child of the keeper.
#[derive(Clone, Copy, Default)]
pub(super) struct Birthplace<'a> {
    /// The user namespace that it is root of; its new namespaces belong to it.
    pub(super) users: Option<&'a UserNamespace>,
    /// The directory of its v2 cgroup.
    pub(super) cgroup: Option<BorrowedFd<'a>>,
}

/// Gives this process a session keyring of its own. An ordinary user may have few (keyrings(7), maxkeys): beyond that it
/// has its pod's, which is the keeper's.
pub(super) fn own_keyring() -> Step {
    match sys::join_new_keyring() {
        Err(error) if error.raw_os_error() == Some(libc::EDQUOT) => Ok(()),
        joined => joined.doing("make a session keyring"),
    }
}

/// Forks a child into new namespaces (`flags`) at `place`. What has to be done by a process with the keeper's power, for the
/// child to inherit, is done `before`.
///
/// The keeper cannot enter a user namespace itself: there would be no way back. Another child goes, forks the real one as
/// its own sibling, and ends.
pub(super) fn fork_into(place: Birthplace<'_>, flags: i32, before: impl FnOnce()) -> Step<Fork> {
    let what = "start a process in the container";
    let Some(users) = place.users else {
        return sys::fork_inside(flags, place.cgroup).doing(what);
    };
    let (mut reader, mut writer) = io::pipe().doing(what)?;
    // A process in another user namespace has no power over cgroups: the one that goes is born in it already.
    match sys::fork_inside(0, place.cgroup).doing(what)? {
        Fork::Child => {
            drop(reader);
            // Hidden before it is born where others see it.
            let sibling = hide()
                .and_then(|()| own_keyring())
                .map(|()| before())
                .and_then(|()| users.enter())
                .and_then(|()| sys::fork(flags | libc::CLONE_PARENT).doing(what));
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
            // Just this child: nobody else waits for it, and its end tells nothing more.
            let _ = nix::sys::wait::waitpid(nix::unistd::Pid::from_raw(go_between), None);
            read.doing(what)?;
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
