//! The code of the new process between a fork of the keeper and the container's program.
//!
//! The keeper has one thread, so its fork may run any code. The child reports on its report pipe: one [`Report`] when
//! it waits at the barrier, and another one if `execve` fails. The pipe closes when the program runs.

use std::{
    io::Read as _,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::PathBuf,
};

use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags},
};

use crate::contract::plan::{ExecPlan, IsolationMode, LaunchPlan, ProcessPlan, RestorePlan};
use crate::kernel::cgroup::directory::CgroupFds;
use crate::kernel::failure::{Context as _, Step};
use crate::kernel::seccomp::Filter;
use crate::kernel::secure_join::Root;
use crate::kernel::sys;
use crate::kernel::sys::own_keyring;
use crate::kernel::sys::{hide, unshare};
use crate::setup::pid_namespace;
use crate::setup::pod::Pod;
use crate::setup::process;
use crate::setup::restore;
use crate::setup::root::{self, accounts};
use crate::setup::shared::Shared;
use crate::setup::terminal;
use crate::setup::user;
use crate::setup::userns::UserNamespace;
use crate::setup::{Report, START_ERROR, fail, send_report};

/// The child's ends of its pipes.
pub(crate) struct ChildStreams {
    pub(crate) stdin: OwnedFd,
    pub(crate) stdout: OwnedFd,
    pub(crate) stderr: OwnedFd,
    /// The pipe for its reports.
    pub(crate) report: OwnedFd,
    /// The socket for sending a terminal, which is used instead of the pipes.
    pub(crate) terminal: Option<OwnedFd>,
}

/// The pod and namespaces of a container's first process.
#[derive(Clone, Copy)]
pub(crate) struct ContainerContext<'a> {
    pub(crate) pod: &'a Pod,
    /// The process namespace to join, if it is shared.
    pub(crate) shared: Option<&'a Shared>,
    /// The socket on which [`root::idmap::prepare`] sends mounts, for a process in the pod's own user namespace.
    pub(crate) prepared: Option<&'a OwnedFd>,
}

/// Runs a container's first process.
pub(crate) fn container(
    plan: &LaunchPlan,
    home: ContainerContext<'_>,
    filter: Option<Filter>,
    ends: ChildStreams,
    barrier: OwnedFd,
    cgroup: Option<CgroupFds>,
) -> ! {
    let (report, terminal) = take_over(ends);
    let guarded = guard_null(home.pod.null.as_ref());
    let entered = enter_cgroup(cgroup);
    let host = home.pod.host_mounts.as_ref();
    let ways = [Some(&report), Some(&barrier), terminal.as_ref()];
    let shared = home.shared.map_or([None, None], Shared::descriptors);
    close_others(&[&ways[..], &[host, home.prepared], &shared].concat());
    let host = host.map(OwnedFd::as_fd);
    let set_up = || -> Step<Next<'_>> {
        entered?;
        guarded?;
        // In the pod's user namespace it has a keyring already, made
        // outside, where ordinary users' quotas do not apply.
        begin(&plan.process, home.pod.user_namespace.is_none())?;
        if plan.isolation != IsolationMode::Process {
            hide()?;
            // The root of the new cgroup namespace is the cgroup that this process is in.
            unshare(UnshareFlags::NEWCGROUP).context("make the container's cgroup namespace")?;
        }
        adjust_oom_score(plan.oom_score_adj);
        // Devices and mount points get exactly their configured modes.
        rustix::process::umask(Mode::empty());
        if let Some(restore) = &plan.restore {
            rustix::process::setsid().context("start a session")?;
            let root = root::make(plan, home.pod.shm.as_deref(), host)?;
            restore::check(restore, &root)?;
            return Ok(Next::Restore(restore, root));
        }
        if let Some(shared) = home.shared {
            pid_namespace::enter_on_fork(&shared.namespace)?;
        } else {
            rustix::process::setsid().context("start a session")?;
        }
        let accounts = if plan.isolation == IsolationMode::Process {
            rustix::process::chdir(&plan.directory).context("enter the container's directory")?;
            accounts::read(&Root::own().context("open the root directory")?, true)?
        } else if let Some(socket) = home.prepared {
            root::enter_mapped(plan, socket)?
        } else {
            root::enter(plan, home.pod, home.shared, host)?
        };
        let user = user::resolve(&plan.process.user, &accounts.passwd, &accounts.group)?;
        if plan.isolation != IsolationMode::Process && !plan.stdin {
            take_own_null();
        }
        if let Some(socket) = &terminal {
            terminal::open_and_send(socket)?;
            if plan.isolation != IsolationMode::Process {
                terminal::console(&plan.mounts)?;
            }
            if home.shared.is_none() {
                terminal::control()?;
            }
        }
        let own_root = plan.isolation != IsolationMode::Process;
        let ready = process::prepare(&plan.process, user, own_root, filter)?;
        Ok(Next::Program(Box::new(ready)))
    };
    let next = match set_up() {
        Ok(next) => next,
        Err(failure) => fail(&report, failure),
    };
    let user = match &next {
        Next::Program(ready) => &ready.ids,
        Next::Restore(plan, _) => &plan.user,
    };
    send_report(&report, &Report::Ready(user.clone()));
    // A keeper that exits, or gives the container up, closes the barrier without writing to it.
    let mut go = [0u8; 1];
    match (std::fs::File::from(barrier).read(&mut go), next) {
        (Ok(1), Next::Program(ready)) if home.shared.is_some() => {
            pid_namespace::fork_into(*ready, report, terminal.is_some())
        }
        (Ok(1), Next::Program(ready)) => fail(&report, ready.exec()),
        (Ok(1), Next::Restore(plan, root)) => fail(&report, restore::exec(plan, &root)),
        (Ok(_) | Err(_), _) => std::process::exit(START_ERROR),
    }
}

/// The beginning of every process's set-up.
fn begin(plan: &ProcessPlan, keyring: bool) -> Step {
    sys::die_with_parent().context("be ended with the keeper")?;
    if keyring {
        own_keyring()?;
    }
    process::confine(plan)
}

/// The program that a container's first process becomes at StartContainer.
enum Next<'a> {
    Program(Box<process::Ready>),
    /// criu, which restores the processes of a checkpoint; it still has to enter the root.
    Restore(&'a RestorePlan, PathBuf),
}

/// Replaces a standard input that is /dev/null by the container's own, as runc does: a process inside could not reopen the
/// host's.
fn take_own_null() {
    // A client may have mounted another file there; opening it must not block.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let null = rustix::fs::open("/dev/null", flags, Mode::empty());
    if let Ok(null) = null
        && is_null(null.as_fd())
    {
        let _ = rustix::stdio::dup2_stdin(&null);
    }
}

/// Replaces standard streams that are the host's /dev/null by ones of the mount `null`. Through a stream of another mount, root in
/// the container could change the mode and owner of the host's file.
fn guard_null(null: Option<&OwnedFd>) -> Step {
    let Some(null) = null else { return Ok(()) };
    let open = || {
        let path = format!("/proc/self/fd/{}", null.as_raw_fd());
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::open(path, flags, Mode::empty())
    };
    let guard = || -> Result<(), Errno> {
        if is_null(rustix::stdio::stdin()) {
            rustix::stdio::dup2_stdin(open()?)?;
        }
        if is_null(rustix::stdio::stdout()) {
            rustix::stdio::dup2_stdout(open()?)?;
        }
        if is_null(rustix::stdio::stderr()) {
            rustix::stdio::dup2_stderr(open()?)?;
        }
        Ok(())
    };
    guard().context("open /dev/null for the container")
}

fn is_null(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
            && stat.st_rdev == rustix::fs::makedev(1, 3)
    })
}

/// The namespaces of an exec, which are its container's first process's (`target`).
pub(crate) struct ExecNamespaces<'a> {
    pub(crate) pid: i32,
    pub(crate) users: Option<&'a UserNamespace>,
    /// The mount namespace; none without namespaces.
    pub(crate) mounts: Option<OwnedFd>,
    /// The process namespace, if it is not the host's.
    pub(crate) pids: Option<OwnedFd>,
    /// [`Pod::null`].
    pub(crate) null: Option<&'a OwnedFd>,
}

/// Runs another process in a container.
pub(crate) fn exec(
    plan: &ExecPlan,
    target: ExecNamespaces<'_>,
    filter: Option<Filter>,
    ends: ChildStreams,
    cgroup: Option<CgroupFds>,
) -> ! {
    let (report, terminal) = take_over(ends);
    let guarded = guard_null(target.null);
    let entered = enter_cgroup(cgroup);
    let users = target.users.map(UserNamespace::fd);
    let mut keep: Vec<i32> = [Some(&report), terminal.as_ref()]
        .into_iter()
        .chain([target.mounts.as_ref(), target.pids.as_ref()])
        .flatten()
        .map(|fd| fd.as_raw_fd())
        .chain(users.map(|fd| fd.as_raw_fd()))
        .collect();
    sys::close_others(&mut keep);
    let ExecNamespaces { pid, users, mounts, pids, null: _ } = target;
    let alone = pids.is_none();
    let own_root = mounts.is_some();
    let set_up = || -> Step<process::Ready> {
        entered?;
        guarded?;
        begin(&plan.process, true)?;
        // The value of the container's first process. Read before `hide`, after which only root may write it.
        let of_first = std::fs::read_to_string(format!("/proc/{pid}/oom_score_adj"));
        adjust_oom_score(of_first.ok().and_then(|text| text.trim().parse().ok()));
        hide()?;
        match mounts {
            None => {
                let what = "enter the container's directory";
                rustix::process::chdir(format!("/proc/{pid}/cwd")).context(what)?;
            }
            Some(namespace) => {
                users.map_or(Ok(()), UserNamespace::enter)?;
                if let Some(pids) = &pids {
                    pid_namespace::enter_on_fork(pids)?;
                }
                let what = "join the container's mount namespace";
                // setns(2) requires that root and working directory are unshared, even in a process with one thread.
                unshare(UnshareFlags::FS).context(what)?;
                let name = Some(LinkNameSpaceType::Mount);
                rustix::thread::move_into_link_name_space(namespace.as_fd(), name).context(what)?;
                // Its cgroup namespace identifies all processes that it starts (see `exec_processes`). Without one, a kill may
                // miss some.
                let _ = unshare(UnshareFlags::NEWCGROUP);
            }
        }
        if alone {
            rustix::process::setsid().context("start a session")?;
        }
        if let Some(socket) = &terminal {
            terminal::open_and_send(socket)?;
            if alone {
                terminal::control()?;
            }
        }
        process::prepare(&plan.process, plan.user.clone(), own_root, filter)
    };
    match set_up() {
        Ok(ready) if alone => fail(&report, ready.exec()),
        Ok(ready) => pid_namespace::fork_into(ready, report, terminal.is_some()),
        Err(failure) => fail(&report, failure),
    }
}

fn enter_cgroup(cgroup_fds: Option<CgroupFds>) -> Step {
    // On v2 the process was created in its cgroup.
    cgroup_fds
        .map_or(Ok(()), |cgroup_fds| cgroup_fds.enter().context("enter the container's cgroup"))
}

pub(crate) fn adjust_oom_score(wanted: Option<i32>) {
    let Some(wanted) = wanted else { return };
    // Without CAP_SYS_RESOURCE the kernel rejects a lower value than the current one, which then stays.
    let _ = std::fs::write("/proc/self/oom_score_adj", wanted.to_string());
}

/// Makes the pipes the standard streams. It cannot report before that, so an error ends the process.
fn take_over(ends: ChildStreams) -> (OwnedFd, Option<OwnedFd>) {
    let ChildStreams { stdin, stdout, stderr, report, terminal } = ends;
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
