//! What the kernel does with the directory of a cgroup: it makes its files and removes them with it, and kills its processes.

use std::ffi::CStr;
use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::path::Path;

use file_tree::{Entry, Mounts, Visitor};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

/// How often the processes of a cgroup are listed and killed: those that are listed may fork before they die.
const ROUNDS: usize = 100;

/// The operations on cgroups that plain directories do not have.
pub trait Kernel: Send + Sync {
    /// Makes a cgroup.
    ///
    /// # Errors
    /// The kernel's; `AlreadyExists`: there is one.
    fn make(&self, directory: &Path) -> io::Result<()>;
    /// Removes a cgroup with those below it. None of them may have a process.
    ///
    /// # Errors
    /// The kernel's; `ResourceBusy`: one has a process.
    fn remove(&self, directory: &Path) -> io::Result<()>;
    /// Removes a cgroup that has no other one below it.
    ///
    /// # Errors
    /// The kernel's; `ResourceBusy`: it has a process or another cgroup.
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
            // One that is gone is what was wanted.
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
        // The one above fails too then, and is reported.
        let _ = rustix::fs::unlinkat(parent, name, AtFlags::REMOVEDIR);
        Ok(())
    }
}

/// Kills every process in a cgroup and below it. The last ones may take a moment to exit.
pub(super) fn kill_all(kernel: &impl Kernel, directory: &Path) {
    // Kernels before 5.14, and cgroup v1, have no such file.
    let all_at_once =
        File::options().write(true).truncate(true).open(directory.join("cgroup.kill"));
    if all_at_once.is_ok_and(|mut file| file.write_all(b"1").is_ok()) {
        return;
    }
    let mut before = Vec::new();
    for _ in 0..ROUNDS {
        let processes = processes(directory);
        // The same ones again are dying: nothing was forked meanwhile.
        if processes.is_empty() || processes == before {
            return;
        }
        processes.iter().for_each(|process| kernel.kill(*process));
        before = processes;
    }
}

/// The processes in a cgroup and below it. Those of other process namespaces have no pid here: they are listed as 0.
pub(super) fn processes(directory: &Path) -> Vec<i32> {
    let mut found = Processes::default();
    if let Ok(top) = file_tree::open(directory) {
        found.read(top.as_fd());
        // A directory that is removed during the walk has no processes.
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
