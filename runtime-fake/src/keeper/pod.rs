//! The pod's own namespaces, which the keeper lives in and so keeps.

use std::{
    io::{self, Read as _},
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};

use rustix::{
    mount::{MountFlags, MountPropagationFlags, mount, mount_change},
    thread::{LinkNameSpaceType, UnshareFlags},
};

use super::{
    child::{hide, join, unshare},
    protocol::{Failure, FailureKind},
    step::{Doing as _, Step},
    sys::{self, Fork},
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
    /// The first process of the namespace that all containers share.
    pub(super) pause: Option<i32>,
    /// Namespaces that end with their last descriptor: kept alive for the daemon, which may end before the pod.
    _held: Vec<OwnedFd>,
}

/// Makes what `plan` asks for.
pub(super) fn set_up(plan: PodPlan, held: Vec<OwnedFd>) -> Step<Pod> {
    let (mut shm, mut host_mounts) = (None, None);
    if plan.rung != Rung::Process {
        if plan.rung == Rung::Root {
            let namespace = std::fs::File::open("/proc/self/ns/mnt");
            host_mounts = Some(namespace.doing("hold the host's mount namespace")?.into());
        }
        let mut flags = UnshareFlags::NEWNS;
        flags.set(UnshareFlags::NEWUTS, !plan.hostname.is_empty());
        flags.set(UnshareFlags::NEWIPC, plan.own_ipc);
        flags.set(UnshareFlags::NEWNET, plan.own_network);
        unshare(flags).doing("make the pod's namespaces")?;
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
            shm = Some(mount_shm(&plan.directory)?);
        }
        for (name, value) in plan.sysctls.iter().filter(|(name, _)| !of_network(name)) {
            set_sysctl(name, value)?;
        }
    }
    let pause = if plan.shared_pids {
        Some(start_pause()?)
    } else {
        None
    };
    Ok(Pod {
        plan,
        shm,
        host_mounts,
        pause,
        _held: held,
    })
}

fn mount_shm(directory: &Path) -> Step<PathBuf> {
    let at = directory.join("shm");
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("shm", &at, "tmpfs", flags, Some(c"mode=1777,size=65536k"))
        .doing("mount the pod's shared memory")?;
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

fn start_pause() -> Step<i32> {
    match sys::fork(libc::CLONE_NEWPID).doing("start the pod's first process")? {
        Fork::Parent(pid) => Ok(pid),
        Fork::Child => {
            let _ = sys::die_with_parent();
            let _ = rustix::thread::set_name(c"pause");
            sys::close_all();
            sys::pause_for_ever()
        }
    }
}

/// Forks a child into new namespaces (`flags`) and into the process namespace of `target`.
///
/// The keeper cannot go there itself: inside a user namespace there would be no way back. Another child goes, forks the
/// real one as its own sibling, and ends.
pub(super) fn fork_into(target: Option<i32>, flags: i32) -> Step<Fork> {
    let what = "start a process in the container";
    let Some(target) = target else {
        return sys::fork(flags).doing(what);
    };
    let (mut reader, mut writer) = io::pipe().doing(what)?;
    match sys::fork(0).doing(what)? {
        Fork::Child => {
            drop(reader);
            // Hidden before it is born where others see it.
            let sibling = hide()
                .and_then(|()| join(target, "pid", LinkNameSpaceType::ProcessID))
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
                    "the process that enters the container's process namespace ended early",
                )
            })?;
            report.map(Fork::Parent)
        }
    }
}
