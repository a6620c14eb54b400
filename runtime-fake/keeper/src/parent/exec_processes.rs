//! Finds the processes that an exec or a container has started, so that they can be killed with it.
//!
//! A process can leave its process group, session and parent. So every exec gets a cgroup namespace of its own, with the same
//! view as its container's: every process that the exec starts is created in it, and only a process with CAP_SYS_ADMIN can leave
//! it. A container with neither a process namespace nor a cgroup of its own is identified by its mount namespace.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::{self, File},
    os::fd::AsRawFd as _,
    path::PathBuf,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::kernel::sys;

/// Limit on the readings of the list of processes. Processes that fork faster than they are killed are then left alone.
const PASSES: usize = 64;

/// How an exec's processes are recognised.
#[derive(Debug)]
pub(crate) enum ExecScope {
    /// They are in this cgroup namespace.
    Namespace(Namespace),
    /// There is no such namespace: they are in its session, or are its descendants.
    Session,
}

/// A namespace that only these processes are in. It is held open, because the kernel reuses the number of a namespace that has
/// ended, perhaps for another container's.
#[derive(Debug)]
pub(crate) struct Namespace {
    kind: &'static str,
    name: PathBuf,
    _held: File,
}

impl Namespace {
    /// The mount namespace of a process, if it is not this one's.
    pub(crate) fn of_mounts(pid: i32) -> Option<Self> {
        Self::of(pid, "mnt")
    }

    /// The namespace `kind` of a process, if it is not this process's own.
    fn of(pid: i32, kind: &'static str) -> Option<Self> {
        let held = File::open(format!("/proc/{pid}/ns/{kind}")).ok()?;
        let name = fs::read_link(format!("/proc/self/fd/{}", held.as_raw_fd())).ok()?;
        let own = name_of(std::process::id(), kind)?;
        let its = Self { kind, name, _held: held };
        (its.name != own).then_some(its)
    }

    fn has(&self, pid: i32) -> bool {
        name_of(pid, self.kind).as_ref() == Some(&self.name)
    }

    /// Kills every process in it.
    pub(crate) fn kill(&self) {
        kill_found(|| processes().filter(|pid| self.has(*pid)).collect(), |pid| self.has(pid));
    }
}

impl ExecScope {
    /// The scope of `pid`, whose program already runs.
    pub(crate) fn of(pid: i32) -> Self {
        Namespace::of(pid, "cgroup").map_or(Self::Session, Self::Namespace)
    }
}

fn name_of(pid: impl std::fmt::Display, kind: &str) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()
}

/// Kills the exec `pid`, a child that this process has not reaped, and every process in its `scope`.
pub(crate) fn kill(pid: i32, scope: &ExecScope) {
    sys::kill(-pid, libc::SIGKILL);
    sys::kill(pid, libc::SIGKILL);
    match scope {
        ExecScope::Namespace(its) => its.kill(),
        ExecScope::Session => {
            kill_found(|| of_session(pid), |other| of_session(pid).contains(&other))
        }
    }
}

/// Kills the processes that `find` returns until it returns no new one. Before each kill, `still` checks that the pid was not
/// reused.
fn kill_found(find: impl Fn() -> Vec<i32>, still: impl Fn(i32) -> bool) {
    let mut killed = BTreeSet::new();
    for _ in 0..PASSES {
        let found = find().into_iter();
        let new: Vec<i32> = found.filter(|pid| killed.insert(*pid)).collect();
        // A killed process cannot fork: a pass that finds no new process is the last.
        if new.is_empty() {
            return;
        }
        for pid in new {
            kill_if(pid, || still(pid));
        }
    }
}

/// Kills a process that is not a child of this one, unless its pid was reused.
fn kill_if(pid: i32, still: impl FnOnce() -> bool) {
    let process = Pid::from_raw(pid).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
    if let Some(process) = process
        && still()
    {
        let _ = pidfd_send_signal(&process, Signal::KILL);
    }
}

/// All processes in this process namespace.
pub(crate) fn processes() -> impl Iterator<Item = i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// The processes in the session of `leader`, and its descendants.
fn of_session(leader: i32) -> Vec<i32> {
    let all: BTreeMap<i32, (i32, i32)> =
        processes().filter_map(|pid| Some((pid, stat(pid)?))).collect();
    let mut found: BTreeSet<i32> = all
        .iter()
        .filter(|(pid, (_, session))| **pid != leader && *session == leader)
        .map(|(pid, _)| *pid)
        .collect();
    loop {
        let more: Vec<i32> = all
            .iter()
            .filter(|(pid, (parent, _))| {
                **pid != leader
                    && !found.contains(pid)
                    && (*parent == leader || found.contains(parent))
            })
            .map(|(pid, _)| *pid)
            .collect();
        if more.is_empty() {
            return found.into_iter().collect();
        }
        found.extend(more);
    }
}

/// The parent of a process.
pub(crate) fn parent(pid: i32) -> Option<i32> {
    Some(stat(pid)?.0)
}

fn stat(pid: i32) -> Option<(i32, i32)> {
    parent_and_session(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
}

/// Parses `/proc/PID/stat`. The name in parentheses may contain any character; the state and these fields follow it.
fn parent_and_session(stat: &str) -> Option<(i32, i32)> {
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let parent = fields.nth(1)?.parse().ok()?;
    let session = fields.nth(1)?.parse().ok()?;
    Some((parent, session))
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::process::{Child, Command, Stdio};

    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::plain("7 (sh) S 3 7 5 0 -1", Some((3, 5)))]
    #[case::a_name_of_parentheses("7 (a) S 1 (b)) R 4 7 6 0 -1", Some((4, 6)))]
    #[case::cut("7 (sh) S 3", None)]
    #[case::nonsense("", None)]
    fn stat_yields_parent_and_session(#[case] stat: &str, #[case] expected: Option<(i32, i32)>) {
        assert_eq!(parent_and_session(stat), expected);
    }

    /// A process in a cgroup namespace of its own; `None` where the box does not allow one.
    fn in_own_namespace() -> Option<Child> {
        // A user namespace might take the number that has become free; root needs none.
        let user: &[&str] = match rustix::process::geteuid().is_root() {
            true => &[],
            false => &["--user", "--map-root-user"],
        };
        let mut child = Command::new("unshare")
            .args(user)
            .arg("--cgroup")
            .args(["sh", "-c", "echo made; exec sleep 1000"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .ok()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take()?).read_line(&mut line).ok()?;
        match line.as_str() {
            "made\n" => Some(child),
            _ => {
                let _ = child.wait();
                None
            }
        }
    }

    fn end(mut child: Child) {
        let _ = child.kill();
        let _ = child.wait();
    }

    fn pid(child: &Child) -> i32 {
        i32::try_from(child.id()).unwrap_or_default()
    }

    #[test]
    fn scope_of_ended_exec_has_no_process_of_another() {
        let Some(exec) = in_own_namespace() else {
            let test = "scope_of_ended_exec_has_no_process_of_another";
            let reason = "this box lets this user make no cgroup namespaces";
            let _ = writeln!(
                std::io::LineWriter::new(std::io::stderr()),
                "skipped: {test}: needs CgroupNamespaces: {reason}"
            );
            return;
        };
        let ExecScope::Namespace(scope) = ExecScope::of(pid(&exec)) else {
            panic!("a process in a namespace of its own");
        };
        assert!(scope.has(pid(&exec)));
        end(exec);
        let others: Vec<Child> = (0..10).filter_map(|_| in_own_namespace()).collect();
        assert_eq!(others.len(), 10);
        let taken: Vec<bool> = others.iter().map(|other| scope.has(pid(other))).collect();
        others.into_iter().for_each(end);
        assert_eq!(taken, [false; 10]);
    }
}
