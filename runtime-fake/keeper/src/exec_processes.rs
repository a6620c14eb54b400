//! Finds the processes that an exec has started, so that they can be killed with it.
//!
//! A process can leave its process group, session and parent. So every exec gets a cgroup namespace of its own, with
//! the same view as its container's: every process that the exec starts is created in it, and only a process with
//! CAP_SYS_ADMIN can leave it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use crate::sys;

/// How often the list of processes is read. Processes that fork faster than they are killed are then left alone.
const PASSES: usize = 64;

/// How an exec's processes are recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExecScope {
    /// They are in this cgroup namespace.
    Namespace(PathBuf),
    /// There is no such namespace: they are in its session, or are its descendants.
    Session,
}

impl ExecScope {
    /// The scope of `pid`, whose program runs by now.
    pub(crate) fn of(pid: i32) -> Self {
        match (namespace(pid), namespace(std::process::id())) {
            (Some(its), Some(own)) if its != own => Self::Namespace(its),
            _ => Self::Session,
        }
    }
}

fn namespace(pid: impl std::fmt::Display) -> Option<PathBuf> {
    fs::read_link(format!("/proc/{pid}/ns/cgroup")).ok()
}

/// Kills the exec `pid`, a child that this process has not reaped, and every process in its `scope`.
pub(crate) fn kill(pid: i32, scope: &ExecScope) {
    sys::kill(-pid, libc::SIGKILL);
    sys::kill(pid, libc::SIGKILL);
    let mut killed = BTreeSet::new();
    for _ in 0..PASSES {
        // A killed process cannot fork: a pass that finds no new process is the last.
        let found: Vec<i32> = match scope {
            ExecScope::Namespace(its) => processes()
                .filter(|other| namespace(other).as_ref() == Some(its))
                .collect(),
            ExecScope::Session => of_session(pid),
        };
        let mut found_new = false;
        for other in found {
            if other != pid && killed.insert(other) {
                found_new = true;
                kill_if(other, || match scope {
                    ExecScope::Namespace(its) => namespace(other).as_ref() == Some(its),
                    ExecScope::Session => of_session(pid).contains(&other),
                });
            }
        }
        if !found_new {
            return;
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
    let all: BTreeMap<i32, (i32, i32)> = processes()
        .filter_map(|pid| Some((pid, stat(pid)?)))
        .collect();
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
}
