//! Counts OOM kills, kills the remaining processes of a cgroup, and removes it.

use std::{
    ffi::CStr,
    fs::{self, File},
    io::{self, Read as _, Seek as _},
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
    thread,
    time::{Duration, Instant},
};

use file_tree::{Entry, Mounts, Visitor};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    io::Errno,
    process::{Pid, Signal, kill_process},
};

use crate::kernel::cgroup::{CgroupPath, hierarchy::Controller};

/// The interval at which a cgroup is polled on a host with v1 only: v1 notifies of an empty cgroup only by running a program on
/// the host (`release_agent`), which belongs to the host's administrator.
const PAUSE: Duration = Duration::from_millis(1);
/// Limit on the rounds of listing and killing a cgroup's processes, where `cgroup.kill` is missing.
const ROUNDS: usize = 1000;

/// The number of a cgroup's processes that the OOM killer has killed, because the memory of the cgroup or the host was exhausted;
/// none if the host has no memory controller.
pub fn oom_kills(cgroup: &CgroupPath) -> Option<u64> {
    let v2 = cgroup.tree.branch(Controller::Memory)?.v2;
    let name = if v2 { "memory.events" } else { "memory.oom_control" };
    let text = fs::read_to_string(cgroup.file(Controller::Memory, name)?).ok()?;
    counted(&text, "oom_kill")
}

/// A value of a file of `name number` lines.
fn counted(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)?
        .1
        .trim()
        .parse()
        .ok()
}

/// Kills every process in a cgroup and below it. The last ones may take a moment to exit.
pub fn kill(cgroup: &CgroupPath) {
    if let Some(unified) = cgroup.unified() {
        match fs::write(unified.join("cgroup.kill"), "1") {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !unified.exists() => return,
            // Kernels before 5.14 have no `cgroup.kill`.
            Err(_) => {}
        }
    }
    let Some(directory) = cgroup.directories().find(|d| d.exists()) else {
        return;
    };
    // Frozen processes cannot fork faster than they are killed.
    let freezer = cgroup.file(Controller::Freezer, "freezer.state");
    let freeze = |state: &str| {
        if let Some(file) = &freezer {
            // If freezing fails, the rounds below must suffice.
            let _ = fs::write(file, state);
        }
    };
    freeze("FROZEN");
    for _ in 0..ROUNDS {
        let processes = processes(&directory);
        for pid in &processes {
            let _ = kill_process(*pid, Signal::KILL);
        }
        if processes.is_empty() || freezer.is_some() {
            break;
        }
    }
    freeze("THAWED");
}

/// The processes in a cgroup's directory and below it. Processes of other process namespaces have no pid here.
fn processes(directory: &Path) -> Vec<Pid> {
    let mut found = Processes::default();
    if let Ok(top) = file_tree::open(directory) {
        found.read(top.as_fd());
        // A directory that is removed during the walk has no processes.
        let _ = file_tree::walk(top, Mounts::Stay, &mut found);
    }
    found.0
}

#[derive(Default)]
struct Processes(Vec<Pid>);

impl Processes {
    fn read(&mut self, directory: BorrowedFd<'_>) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, "cgroup.procs", flags, Mode::empty());
        let mut text = String::new();
        if file.is_ok_and(|file| File::from(file).read_to_string(&mut text).is_ok()) {
            let pids = text.lines().filter_map(|line| line.parse().ok());
            self.0.extend(pids.filter_map(Pid::from_raw));
        }
    }
}

impl Visitor for Processes {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        if entry.is_directory() {
            let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Ok(below) = rustix::fs::openat(entry.parent, entry.name, flags, Mode::empty()) {
                self.read(below.as_fd());
            }
        }
        Ok(())
    }
}

/// Removes an empty cgroup, with the cgroups that its processes made below it. Returns whether it no longer exists.
pub fn remove(cgroup: &CgroupPath) -> bool {
    // Try every directory, even if others failed.
    let left = cgroup.directories().filter(|d| !remove_directory(d));
    left.count() == 0
}

fn remove_directory(directory: &Path) -> bool {
    match fs::remove_dir(directory) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::NotFound => true,
        Err(_) => {
            if let Ok(top) = file_tree::open(directory) {
                let _ = file_tree::walk(top, Mounts::Stay, &mut Below);
            }
            fs::remove_dir(directory).is_ok()
        }
    }
}

/// Removes the empty cgroups below a cgroup.
struct Below;

impl Visitor for Below {
    fn visit(&mut self, _: &Entry<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn leave(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<(), Errno> {
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        Ok(())
    }
}

/// Retries [`remove`] until the killed processes have exited, at most for `timeout`.
pub fn remove_in_time(cgroup: &CgroupPath, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    // On a hybrid host the v2 event covers v1 too: a process leaves all its cgroups at the same time.
    let events =
        cgroup.unified().and_then(|directory| File::open(directory.join("cgroup.events")).ok());
    while !remove(cgroup) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        match &events {
            Some(events) if is_populated(events) => wait_for_event(events, left),
            Some(_) | None => thread::sleep(PAUSE.min(left)),
        }
    }
    true
}

/// Whether the cgroup of this `cgroup.events`, or one below it, has a process. A removed cgroup has none.
fn is_populated(mut events: &File) -> bool {
    let mut text = String::new();
    let read = events.rewind().and_then(|()| events.read_to_string(&mut text));
    read.is_ok() && counted(&text, "populated") == Some(1)
}

/// Waits until the file changes (kernel documentation, admin-guide/cgroup-v2.rst, "[Un]populated Notification").
fn wait_for_event(events: &File, timeout: Duration) {
    let mut wanted = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
    // The caller checks again, regardless of the result of poll(2).
    let _ = poll(&mut wanted, PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX));
}

/// Removes the directories that were made for a pod's cgroup, if they are empty.
pub fn remove_own(cgroup: &CgroupPath) {
    for directory in cgroup.removed() {
        let _ = fs::remove_dir(directory);
    }
}

/// Removes the directory of all pods, if this pod was the last in it.
pub fn remove_parent(pod: &CgroupPath) {
    for (directory, own) in pod.directories().zip(&pod.own) {
        // A directory that the client named is the client's to remove.
        if *own == 1
            && let Some(parent) = directory.parent()
        {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Kills all processes in a pod's own cgroup and the cgroups of `containers`, and removes the cgroups. Returns whether all are
/// removed.
pub fn destroy(pod: &CgroupPath, containers: &[String], timeout: Duration) -> bool {
    let mut all = true;
    for container in containers {
        all &= destroy_container(&pod.child(container), timeout);
    }
    remove_own(pod);
    all
}

/// Kills all processes in a container's cgroups and removes them. Returns whether all are removed.
pub fn destroy_container(cgroup: &CgroupPath, timeout: Duration) -> bool {
    if !cgroup.directories().any(|d| d.exists()) {
        return true;
    }
    kill(cgroup);
    remove_in_time(cgroup, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn event_count_matches_whole_key_only() {
        let v1 = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n";
        let v2 = "low 0\nhigh 0\nmax 12\noom 2\noom_kill 1\noom_group_kill 0\n";
        assert_eq!(counted(v1, "oom_kill"), Some(3));
        assert_eq!(counted(v2, "oom_kill"), Some(1));
        assert_eq!(counted("", "oom_kill"), None);
    }
}
