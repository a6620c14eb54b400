//! The ends of cgroups: what the kernel killed in them, killing what is left, and taking them away.

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

use crate::cgroup::{CgroupPath, hierarchy::Controller};

/// How often a cgroup is looked at on a box that has v1 alone: its one way to tell that a cgroup has become empty is to run a
/// program on the host (`release_agent`), which is for the host's owner to set.
const PAUSE: Duration = Duration::from_millis(1);
/// How often the processes of a cgroup are listed to be killed, where they cannot be killed all at once.
const ROUNDS: usize = 1000;

/// How many processes of a cgroup the kernel has killed because its memory, or the box's, was used up; none where nobody
/// counts.
pub fn oom_kills(cgroup: &CgroupPath) -> Option<u64> {
    let v2 = cgroup.tree.branch(Controller::Memory)?.v2;
    let name = if v2 {
        "memory.events"
    } else {
        "memory.oom_control"
    };
    let text = fs::read_to_string(cgroup.file(Controller::Memory, name)?).ok()?;
    counted(&text, "oom_kill")
}

/// A number of a file of `name number` lines.
fn counted(text: &str, name: &str) -> Option<u64> {
    text.lines()
        .filter_map(|line| line.split_once(' '))
        .find(|(key, _)| *key == name)?
        .1
        .trim()
        .parse()
        .ok()
}

/// Kills everything in a cgroup and below it. The last of it may take a moment to be gone.
pub fn kill(cgroup: &CgroupPath) {
    if let Some(unified) = cgroup.unified() {
        match fs::write(unified.join("cgroup.kill"), "1") {
            Ok(()) => return,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !unified.exists() => return,
            // Kernels before 5.14.
            Err(_) => {}
        }
    }
    let Some(directory) = cgroup.directories().find(|d| d.exists()) else {
        return;
    };
    // What is frozen forks no faster than it is killed.
    let freezer = cgroup.file(Controller::Freezer, "freezer.state");
    let freeze = |state: &str| {
        if let Some(file) = &freezer {
            // Without it the rounds below have to do.
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

/// The processes in a cgroup's directory and below it. Those of other process namespaces have no number here.
fn processes(directory: &Path) -> Vec<Pid> {
    let mut found = Processes::default();
    if let Ok(top) = file_tree::open(directory) {
        found.read(top.as_fd());
        // What goes away meanwhile has no processes.
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

/// Takes a cgroup away with what its processes have made below it. Says whether it is gone: it has to be empty.
pub fn remove(cgroup: &CgroupPath) -> bool {
    // Every one is tried, whatever became of the others.
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

/// Takes away what is below a cgroup, as far as it is empty.
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

/// [`remove`], as often as it takes for what was killed to be gone, but no longer than `timeout`.
pub fn remove_in_time(cgroup: &CgroupPath, timeout: Duration) -> bool {
    let until = Instant::now() + timeout;
    // On a box with both it tells for v1 too: a process leaves all its cgroups at once.
    let events = cgroup
        .unified()
        .and_then(|directory| File::open(directory.join("cgroup.events")).ok());
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

/// Whether there is a process in the cgroup of this `cgroup.events`, or below it. None is in one that is gone.
fn is_populated(mut events: &File) -> bool {
    let mut text = String::new();
    let read = events
        .rewind()
        .and_then(|()| events.read_to_string(&mut text));
    read.is_ok() && counted(&text, "populated") == Some(1)
}

/// Waits until the file says something else than when it was read (kernel documentation, admin-guide/cgroup-v2.rst,
/// "[Un]populated Notification").
fn wait_for_event(events: &File, timeout: Duration) {
    let mut wanted = [PollFd::new(events.as_fd(), PollFlags::POLLPRI)];
    // Whatever comes of it, the caller looks again.
    let _ = poll(
        &mut wanted,
        PollTimeout::try_from(timeout).unwrap_or(PollTimeout::MAX),
    );
}

/// Removes what was made for a pod's cgroup, unless it has come into other use.
pub fn remove_own(cgroup: &CgroupPath) {
    for directory in cgroup.removed() {
        let _ = fs::remove_dir(directory);
    }
}

/// Takes away the directory of all pods, if this one was the last in it.
pub fn remove_parent(pod: &CgroupPath) {
    for (directory, own) in pod.directories().zip(&pod.own) {
        // A client's own are the client's.
        if *own == 1
            && let Some(parent) = directory.parent()
        {
            let _ = fs::remove_dir(parent);
        }
    }
}

/// Ends a pod's cgroups whatever is in them: those of `containers`, and its own. Says whether they are gone.
pub fn destroy(pod: &CgroupPath, containers: &[String], timeout: Duration) -> bool {
    let mut all = true;
    for container in containers {
        all &= destroy_container(&pod.child(container), timeout);
    }
    remove_own(pod);
    all
}

/// Ends a container's cgroups whatever is in them. Says whether they are gone.
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
