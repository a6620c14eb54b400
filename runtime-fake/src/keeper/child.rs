//! What runs in the new process between a fork of the keeper and the container's program.
//!
//! The keeper has one thread, so a fork of it may run any code. The child says on its report pipe how it went: one
//! [`Report`] when it waits at the barrier, another one if `execve` fails; the pipe closes when the program runs.

use std::{
    io::{self, Read as _, Write as _},
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::Mode,
    thread::{LinkNameSpaceType, UnshareFlags},
};
use serde::{Deserialize, Serialize};

use super::{
    pod::Pod,
    process,
    protocol::{Failure, UserIds},
    restore, root,
    step::{Doing as _, Step},
    sys, terminal,
};
use crate::{
    cgroup::directory::Entrance,
    launch::{ExecPlan, LaunchPlan, RestorePlan, Rung, seccomp::Filter},
};

/// The exit status of a process whose program could not be run, as containerd reports it (`StartError`).
pub(super) const START_ERROR: i32 = 128;

/// One line of JSON on the report pipe.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Report {
    /// Set up; the ids that were found.
    Ready(UserIds),
    /// It cannot be done.
    Failed(Failure),
}

/// The child's ends of its pipes.
pub(super) struct Ends {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
    /// Says how it went.
    pub(super) report: OwnedFd,
    /// Takes a terminal, which is used instead of the pipes.
    pub(super) terminal: Option<OwnedFd>,
}

/// A container's first process.
///
/// `prepared` tells what [`root::mapped::prepare`] does, for a process in the pod's own user namespace.
#[allow(
    clippy::too_many_arguments,
    reason = "all that a process takes along from its keeper, once"
)]
pub(super) fn container(
    plan: &LaunchPlan,
    pod: &Pod,
    prepared: Option<&OwnedFd>,
    filter: Option<Filter>,
    ends: Ends,
    barrier: OwnedFd,
    cgroup: Option<Entrance>,
) -> ! {
    let (report, terminal) = take_over(ends);
    let entered = enter_cgroup(cgroup);
    let host = pod.host_mounts.as_ref();
    let ways = [Some(&report), Some(&barrier), terminal.as_ref()];
    close_others(&[&ways[..], &[host, prepared]].concat());
    let host = host.map(OwnedFd::as_fd);
    let set_up = || -> Step<Next<'_>> {
        entered?;
        sys::die_with_parent().doing("be ended with the keeper")?;
        process::confine(&plan.process)?;
        rustix::process::setsid().doing("start a session")?;
        if plan.rung != Rung::Process {
            hide()?;
            // Its root is the cgroup that this process is in by now.
            unshare(UnshareFlags::NEWCGROUP).doing("make the container's cgroup namespace")?;
        }
        adjust_oom_score(plan.oom_score_adj);
        // Devices and mount points get just the modes they are given.
        rustix::process::umask(Mode::empty());
        if let Some(restore) = &plan.restore {
            let root = root::make(plan, pod.shm.as_deref(), host)?;
            restore::check(restore, &root)?;
            return Ok(Next::Restore(restore, root));
        }
        if plan.rung == Rung::Process {
            rustix::process::chdir(&plan.directory).doing("enter the container's directory")?;
        } else if let Some(socket) = prepared {
            root::enter_mapped(plan, socket)?;
        } else {
            root::enter(plan, pod.shm.as_deref(), host)?;
        }
        if plan.rung != Rung::Process && !plan.stdin {
            take_own_null();
        }
        if let Some(way) = terminal {
            terminal::take(&way)?;
            if plan.rung != Rung::Process {
                terminal::console(&plan.mounts)?;
            }
        }
        process::prepare(&plan.process, filter).map(Next::Program)
    };
    let next = match set_up() {
        Ok(next) => next,
        Err(failure) => fail(report, failure),
    };
    let user = match &next {
        Next::Program(ready) => &ready.ids,
        Next::Restore(plan, _) => &plan.user,
    };
    say(&report, &Report::Ready(user.clone()));
    // A keeper that ends, or gives the container up, closes the barrier without a word.
    let mut go = [0u8; 1];
    match std::fs::File::from(barrier).read(&mut go) {
        Ok(1) => fail(
            report,
            match next {
                Next::Program(ready) => ready.exec(),
                Next::Restore(plan, root) => restore::exec(plan, &root),
            },
        ),
        Ok(_) | Err(_) => std::process::exit(START_ERROR),
    }
}

/// What a container's first process becomes when it is started.
enum Next<'a> {
    Program(process::Ready),
    /// criu, which makes the processes of a checkpoint; the root is for them, and still to be entered.
    Restore(&'a RestorePlan, PathBuf),
}

/// A standard input that is nothing is the container's own `/dev/null`, as with runc: the host's would be a file that
/// nobody can find again from inside.
fn take_own_null() {
    if let Ok(null) = std::fs::File::open("/dev/null") {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}

/// A further process in a container whose first process is `target`; it is in the right process namespace already, and
/// `mounts` is the right mount namespace, if there is one.
pub(super) fn exec(
    plan: &ExecPlan,
    target: i32,
    mounts: Option<&OwnedFd>,
    filter: Option<Filter>,
    ends: Ends,
    cgroup: Option<Entrance>,
) -> ! {
    let (report, terminal) = take_over(ends);
    let entered = enter_cgroup(cgroup);
    close_others(&[Some(&report), terminal.as_ref(), mounts]);
    let set_up = || -> Step<process::Ready> {
        entered?;
        sys::die_with_parent().doing("be ended with the keeper")?;
        process::confine(&plan.process)?;
        rustix::process::setsid().doing("start a session")?;
        hide()?;
        match mounts {
            None => {
                let what = "enter the container's directory";
                rustix::process::chdir(format!("/proc/{target}/cwd")).doing(what)?;
            }
            Some(namespace) => {
                let what = "join the container's mount namespace";
                // The keeper's threads (one) share root and directory with nobody, yet the kernel wants to be told.
                unshare(UnshareFlags::FS).doing(what)?;
                let name = Some(LinkNameSpaceType::Mount);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), name).doing(what)?;
                // So that all it starts can be found (see `kin`). Without one, less is found.
                let _ = unshare(UnshareFlags::NEWCGROUP);
            }
        }
        if let Some(way) = terminal {
            terminal::take(&way)?;
        }
        process::prepare(&plan.process, filter)
    };
    match set_up() {
        Ok(ready) => fail(report, ready.exec()),
        Err(failure) => fail(report, failure),
    }
}

fn enter_cgroup(entrance: Option<Entrance>) -> Step {
    // Into its v2 cgroup this process was born.
    entrance.map_or(Ok(()), |entrance| {
        entrance.enter().doing("enter the container's cgroup")
    })
}

/// Keeps the container's processes from looking into this one, whose /proc/PID/exe is the runtime's own program.
/// `execve` ends it.
pub(super) fn hide() -> Step {
    sys::set_dumpable(false).doing("hide from the container")
}

/// Moves this process into a namespace of `target`; `kind` is its name in `/proc/PID/ns`.
pub(super) fn join(target: i32, kind: &str, name: LinkNameSpaceType) -> Step {
    let what = || format!("join the {kind} namespace of process {target}");
    let own = if kind == "pid" {
        "pid_for_children"
    } else {
        kind
    };
    let own = std::fs::read_link(format!("/proc/self/ns/{own}")).doing(what())?;
    // The host's, which it is in already, it may not join when it is not root there.
    if own == std::fs::read_link(format!("/proc/{target}/ns/{kind}")).doing(what())? {
        return Ok(());
    }
    let namespace = std::fs::File::open(format!("/proc/{target}/ns/{kind}")).doing(what())?;
    rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(name)).doing(what())
}

/// `unshare` for the keeper and its forks.
#[allow(
    unsafe_code,
    reason = "rustix marks unshare unsafe because of CLONE_FILES, which is not used here"
)]
pub(super) fn unshare(flags: UnshareFlags) -> io::Result<()> {
    debug_assert!(!flags.contains(UnshareFlags::FILES));
    // SAFETY: CLONE_FILES, which would split the descriptors that other threads own, is not among the flags.
    unsafe { rustix::thread::unshare_unsafe(flags) }.map_err(Into::into)
}

pub(super) fn adjust_oom_score(wanted: Option<i32>) {
    let Some(wanted) = wanted else { return };
    // Without CAP_SYS_RESOURCE it cannot go below where it is: it stays there, which is the nearest that is allowed.
    let _ = std::fs::write("/proc/self/oom_score_adj", wanted.to_string());
}

/// Puts the pipes where the program expects them. Nothing can be reported before that, so errors end the process.
fn take_over(ends: Ends) -> (OwnedFd, Option<OwnedFd>) {
    let Ends {
        stdin,
        stdout,
        stderr,
        report,
        terminal,
    } = ends;
    let moved = rustix::stdio::dup2_stdin(stdin)
        .and_then(|()| rustix::stdio::dup2_stdout(stdout))
        .and_then(|()| rustix::stdio::dup2_stderr(stderr));
    if moved.is_err() {
        std::process::exit(START_ERROR);
    }
    (report, terminal)
}

fn close_others(keep: &[Option<&OwnedFd>]) {
    let keep = keep.iter().flatten();
    sys::close_others(&mut keep.map(|fd| fd.as_raw_fd()).collect::<Vec<_>>());
}

fn say(report: &OwnedFd, what: &Report) {
    let write = |mut to: std::fs::File| -> io::Result<()> {
        let mut line = serde_json::to_vec(what)?;
        line.push(b'\n');
        to.write_all(&line)
    };
    // When the keeper is gone there is nobody to tell.
    let _ = duplicate(report.as_fd()).and_then(|fd| write(fd.into()));
}

fn duplicate(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    fd.try_clone_to_owned()
}

fn fail(report: OwnedFd, failure: Failure) -> ! {
    say(&report, &Report::Failed(failure));
    std::process::exit(START_ERROR)
}
