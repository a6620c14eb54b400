//! The kernel's operations on cgroup directories: creating and removing them with their files, and killing their processes.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use file_tree::{Entry, Mounts, Visitor};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// The maximum number of rounds of listing and killing processes: listed processes may fork before they die.
const ROUNDS: usize = 100;

/// Operations on cgroups that differ from those on plain directories.
pub trait Kernel: Send + Sync {
    /// Creates a cgroup.
    ///
    /// # Errors
    /// The kernel's error; `AlreadyExists` if the cgroup exists.
    fn make(&self, directory: &Path) -> io::Result<()>;
    /// Removes a cgroup and its descendants, which must not have processes.
    ///
    /// # Errors
    /// The kernel's error; `ResourceBusy` if a cgroup has a process.
    fn remove(&self, directory: &Path) -> io::Result<()>;
    /// Removes a cgroup without children.
    ///
    /// # Errors
    /// The kernel's error; `ResourceBusy` if the cgroup has a process or a child.
    fn remove_one(&self, directory: &Path) -> io::Result<()>;
    /// Kills a process.
    fn kill(&self, process: i32);
}

/// The cgroup kernel interface of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct HostKernel;

impl Kernel for HostKernel {
    fn make(&self, directory: &Path) -> io::Result<()> {
        fs::create_dir(directory)
    }

    fn remove(&self, directory: &Path) -> io::Result<()> {
        match fs::remove_dir(directory) {
            Ok(()) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(_) => {}
        }
        let top = file_tree::open(directory).map_err(io::Error::from)?;
        file_tree::walk(top, Mounts::Stay, &mut Below).map_err(io::Error::from)?;
        fs::remove_dir(directory)
    }

    fn remove_one(&self, directory: &Path) -> io::Result<()> {
        fs::remove_dir(directory)
    }

    fn kill(&self, process: i32) {
        if let Some(process) = Pid::from_raw(process) {
            // The process may be gone already.
            let _ = kill_process(process, Signal::KILL);
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
        // Removing the parent fails as well, and reports the error.
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        Ok(())
    }
}

/// Kills all processes in a cgroup and its descendants. They may take a moment to exit.
pub(super) fn kill_all(kernel: &impl Kernel, directory: &Path) {
    // Kernels before 5.14, and cgroup v1, lack this file.
    let all_at_once =
        File::options().write(true).truncate(true).open(directory.join("cgroup.kill"));
    if all_at_once.is_ok_and(|mut file| file.write_all(b"1").is_ok()) {
        return;
    }
    let mut before = Vec::new();
    for _ in 0..ROUNDS {
        let processes = processes(directory);
        // If the list is unchanged, nothing was forked, and the listed processes are exiting.
        if processes.is_empty() || processes == before {
            return;
        }
        processes.iter().for_each(|process| kernel.kill(*process));
        before = processes;
    }
}

/// The processes in a cgroup and its descendants that the agent can kill. Omits processes of PID namespaces that it cannot see: cgroup
/// v2 lists them as 0, and cgroup v1 does not list them. So a cgroup with an empty list may have processes.
pub(super) fn processes(directory: &Path) -> Vec<i32> {
    let mut found = Processes::default();
    if let Ok(top) = file_tree::open(directory) {
        found.read(top.as_fd());
        // A directory that disappears during the walk has no processes.
        let _ = file_tree::walk(top, Mounts::Stay, &mut found);
    }
    found.0
}

#[derive(Default)]
struct Processes(Vec<i32>);

impl Processes {
    fn read(&mut self, directory: BorrowedFd<'_>) {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, "cgroup.procs", flags, Mode::empty());
        let mut text = String::new();
        if file.is_ok_and(|file| File::from(file).read_to_string(&mut text).is_ok()) {
            let pids = text.lines().filter_map(|line| line.trim().parse().ok());
            self.0.extend(pids.filter(|pid: &i32| *pid > 0));
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
