//! The pause process: the first process of a process namespace that all containers of a pod share. It reaps their
//! orphans, and keeps the namespace alive.
//!
//! Every container sees it, and a container with CAP_SYS_PTRACE can inspect and control it. So it has nothing to exploit: its
//! root is empty; it has no descriptors or capabilities and cannot gain any; its filter allows only waiting; and its usage is
//! charged to the pod.

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::{AsFd as _, OwnedFd},
        unix::net::UnixStream,
    },
    path::PathBuf,
};

use rustix::{
    io::Errno,
    mount::{MountPropagationFlags, mount_change},
    thread::{CapabilitySet, CapabilitySets, UnshareFlags},
};

use crate::contract::frame;
use crate::contract::host;
use crate::contract::plan::PodPlan;
use crate::kernel::cgroup::{
    CgroupPath,
    directory::{self, CgroupFds},
};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount;
use crate::kernel::seccomp::Filter;
use crate::kernel::sys::{self, Fork};
use crate::kernel::sys::{hide, unshare};
use crate::setup::fork::{CloneTarget, fork_into};
use crate::setup::process;
use crate::setup::userns::UserNamespace;

/// A running pause process.
pub(crate) struct Pause {
    pub(crate) pid: i32,
    /// The mount point of a `/proc` of its namespace, for containers; none if it cannot be made.
    pub(crate) proc: Option<PathBuf>,
}

/// The cgroup of the pause process, if it has one: a leaf, since on v2 a cgroup with children has no processes of its
/// own (cgroups(7), "no internal processes"). As in containerd it is named after the sandbox's id.
pub(crate) fn cgroup(plan: &PodPlan) -> Option<CgroupPath> {
    let pod = plan.cgroup.as_ref().filter(|_| plan.shared_pids)?;
    let name = plan.directory.file_name()?.to_str()?;
    Some(pod.path.child(name))
}

/// Starts the pause process, and waits until it is confined.
pub(crate) fn start(plan: &PodPlan, users: Option<&UserNamespace>) -> Step<Pause> {
    let what = "start the pod's process";
    let place = cgroup(plan);
    if let Some(place) = &place {
        directory::make(place)?;
    }
    let cgroup_fds = place.as_ref().map(directory::open_fds).transpose()?;
    let (ours, theirs) = UnixStream::pair().context(what)?;
    let (mut reader, writer) = io::pipe().context(what)?;
    let target = CloneTarget { users, cgroup: cgroup_fds.as_ref().and_then(CgroupFds::unified) };
    let pid = match fork_into(target, libc::CLONE_NEWPID, || ())? {
        Fork::Parent(pid) => pid,
        Fork::Child => {
            drop((ours, reader));
            run(cgroup_fds.as_ref(), &theirs.into(), &writer.into())
        }
    };
    drop((theirs, writer));
    let mut report = Vec::new();
    reader.read_to_end(&mut report).context(what)?;
    let report: Step = serde_json::from_slice(&report).map_err(|_| {
        let message = "the pod's process ended early: it may have no memory, or a filter around the runtime forbids what it does";
        Failure::new(FailureKind::System, message)
    })?;
    report?;
    let mut receiver = frame::Receiver::default();
    receiver.fill(&ours).context(what)?;
    let proc = match receiver.take_descriptors(1) {
        Ok(mut came) => came.pop(),
        Err(_) => None,
    };
    let proc = proc.map(|proc| mount_proc(plan, proc)).transpose()?;
    Ok(Pause { pid, proc })
}

/// Mounts `/proc` where the keeper's forks find it.
fn mount_proc(plan: &PodPlan, proc: OwnedFd) -> Step<PathBuf> {
    let what = "keep the pod's /proc";
    let at = plan.directory.join("proc");
    match rustix::fs::mkdir(&at, rustix::fs::Mode::from_raw_mode(0o700)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error).context(what),
    }
    mount::attach(proc.as_fd(), mount::open_dir(&at).context(what)?.as_fd()).context(what)?;
    Ok(at)
}

/// The success report, preformatted: at this point the process can only write and wait.
const WELL: &[u8] = br#"{"Ok":null}"#;

fn run(cgroup: Option<&CgroupFds>, to: &OwnedFd, report: &OwnedFd) -> ! {
    let _ = rustix::thread::set_name(c"pause");
    let set_up = || -> Step {
        sys::die_with_parent().context("be ended with the keeper")?;
        if let Some(cgroup) = cgroup {
            cgroup.enter().context("enter the pod's cgroup")?;
        }
        hide()?;
        unshare(UnshareFlags::NEWNS | UnshareFlags::NEWCGROUP)
            .context("make the namespaces of the pod's process")?;
        let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", propagation).context("separate the mounts of the pod's process")?;
        let proc = mount::new_proc().ok();
        let descriptors: Vec<_> = proc.iter().map(|fd| fd.as_fd()).collect();
        frame::send(to, b"p", &descriptors).context("hand over the pod's /proc")?;
        mount::enter_nothing()?;
        rustix::process::setsid().context("start a session")?;
        sys::reset_signals();
        sys::ignore_children();
        confine()
    };
    match set_up() {
        Ok(()) => {
            let _ = rustix::io::write(report, WELL);
        }
        Err(failure) => {
            let _ = serde_json::to_writer(File::from(clone(report)), &Err::<(), _>(failure));
            sys::exit(1);
        }
    }
    sys::close_all();
    sys::wait_for_ever()
}

fn clone(fd: &OwnedFd) -> OwnedFd {
    fd.try_clone().unwrap_or_else(|_| sys::exit(1))
}

/// Drops all privileges.
fn confine() -> Step {
    let what = "give up the capabilities of the pod's process";
    process::bound(CapabilitySet::empty(), CapabilitySet::all())?;
    let none = CapabilitySets {
        effective: CapabilitySet::empty(),
        permitted: CapabilitySet::empty(),
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, none).context(what)?;
    rustix::thread::set_no_new_privs(true).context("set no_new_privs")?;
    match Filter::waiting(host::kernel()) {
        Some(filter) => sys::load_filter(&filter).context("filter the calls of the pod's process"),
        None => Ok(()),
    }
}
