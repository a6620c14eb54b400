//! Makes cgroups and writes their files.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::{self, Write as _},
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::fs::{Mode, OFlags};

use crate::kernel::cgroup::{
    CgroupError, CgroupPath, CgroupPlan,
    hierarchy::{Branch, Controller},
    plan::{CurrentValues, Write},
    program,
};

/// Limit on the attempts to make a directory whose empty parent other processes keep removing.
const ATTEMPTS: usize = 8;

/// Open descriptors through which a process enters a cgroup.
#[derive(Debug)]
pub struct CgroupFds {
    /// `tasks` of every v1 hierarchy.
    tasks: Vec<File>,
    /// The directory on v2.
    unified: Option<OwnedFd>,
}

impl CgroupFds {
    /// The v2 directory to create a process in.
    pub fn unified(&self) -> Option<BorrowedFd<'_>> {
        self.unified.as_ref().map(|fd| fd.as_fd())
    }

    /// Moves this process, which has one thread, into the v1 cgroups: a thread that moves itself does not block.
    pub fn enter(&self) -> io::Result<()> {
        self.tasks.iter().try_for_each(|mut file| file.write_all(b"0"))
    }
}

/// Makes a container's cgroup and applies its limits and device rules.
pub fn prepare(plan: &CgroupPlan) -> Result<CgroupFds, CgroupError> {
    make(&plan.path)?;
    // Device rules are many lines of one file.
    let same_file = |a: &Write, b: &Write| a.controller == b.controller && a.file == b.file;
    for writes in plan.writes.chunk_by(same_file) {
        put_all(&plan.path, writes)?;
    }
    if let (Some(rules), Some(unified)) = (&plan.devices, plan.path.unified()) {
        program::attach(&unified, rules)
            .map_err(CgroupError::to("restrict the container's access to devices"))?;
    }
    open_fds(&plan.path)
}

/// Opens the descriptors of an existing cgroup.
pub fn open_fds(cgroup: &CgroupPath) -> Result<CgroupFds, CgroupError> {
    let mut tasks = Vec::new();
    for branch in cgroup.tree.branches.iter().filter(|b| !b.v2) {
        let path = cgroup.directory(branch).join("tasks");
        let file = File::options().write(true).open(&path);
        tasks.push(file.map_err(CgroupError::to(format_args!("open {}", path.display())))?);
    }
    let open = |path: std::path::PathBuf| {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&path, flags, Mode::empty())
            .map_err(io::Error::from)
            .map_err(CgroupError::to(format_args!("open {}", path.display())))
    };
    let unified = cgroup.unified().map(open).transpose()?;
    Ok(CgroupFds { tasks, unified })
}

/// Makes a cgroup's missing directories.
pub fn make(cgroup: &CgroupPath) -> Result<(), CgroupError> {
    for branch in &cgroup.tree.branches {
        let directory = cgroup.directory(branch);
        let mut made = make_in(branch, &directory);
        for _ in 1..ATTEMPTS {
            match &made {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    made = make_in(branch, &directory);
                }
                Ok(()) | Err(_) => break,
            }
        }
        let what = format_args!("make the cgroup {}", directory.display());
        made.map_err(CgroupError::to(what))?;
    }
    Ok(())
}

/// Tries the last part first: usually only that one is missing.
fn make_in(branch: &Branch, directory: &Path) -> io::Result<()> {
    let parent = match directory.parent() {
        Some(parent) if directory != branch.base => parent,
        Some(_) | None => return Ok(()),
    };
    match fs::create_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_in(branch, parent)?;
            match fs::create_dir(directory) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        Ok(()) | Err(_) => {}
    }
    if branch.v2 {
        enable(branch, parent)?;
    } else if branch.controllers.contains(&Controller::Cpuset) {
        fill(&branch.base, directory)?;
    }
    Ok(())
}

/// Enables the controllers of `branch` for the cgroups in `directory` (cgroups(7), cgroup.subtree_control).
fn enable(branch: &Branch, directory: &Path) -> io::Result<()> {
    let file = directory.join("cgroup.subtree_control");
    let missing = missing(&fs::read_to_string(&file)?, &branch.controllers);
    if missing.is_empty() {
        return Ok(());
    }
    if directory != branch.base
        && let Some(parent) = directory.parent()
    {
        enable(branch, parent)?;
    }
    let words: Vec<String> = missing.iter().map(|c| format!("+{}", c.name(true))).collect();
    fs::write(&file, words.join(" "))
}

/// The controllers of `wanted` that are missing in a list of names.
pub fn missing(list: &str, wanted: &BTreeSet<Controller>) -> BTreeSet<Controller> {
    let there: BTreeSet<Controller> =
        list.split_whitespace().filter_map(|name| Controller::named(name, true)).collect();
    wanted.difference(&there).copied().collect()
}

/// A new v1 cpuset has no processors and memory nodes, and accepts no process until both are set: copy the parent's.
fn fill(base: &Path, directory: &Path) -> io::Result<()> {
    for name in ["cpuset.cpus", "cpuset.mems"] {
        filled(base, directory, name)?;
    }
    Ok(())
}

fn filled(base: &Path, directory: &Path, name: &str) -> io::Result<String> {
    let file = directory.join(name);
    let own = fs::read_to_string(&file)?;
    match directory.parent() {
        Some(parent) if own.trim().is_empty() && directory != base => {
            let parents = filled(base, parent, name)?;
            fs::write(&file, parents.trim())?;
            // With this, the kernel fills the cpusets below: for each write of ours it would visit every cpuset of the host.
            let _ = fs::write(directory.join("cgroup.clone_children"), "1");
            Ok(parents)
        }
        Some(_) | None => Ok(own),
    }
}

/// Writes one file of a cgroup.
fn put(cgroup: &CgroupPath, write: &Write) -> Result<(), CgroupError> {
    put_all(cgroup, std::slice::from_ref(write))
}

/// Writes one file of a cgroup several times.
fn put_all(cgroup: &CgroupPath, writes: &[Write]) -> Result<(), CgroupError> {
    let mut opened: Option<File> = None;
    for write in writes {
        let Some(path) = cgroup.file(write.controller, &write.file) else {
            return Ok(());
        };
        // Opened without O_CREAT, with which the kernel would return EACCES for a missing file.
        let file = match opened.take() {
            Some(file) => Ok(file),
            None => File::options().write(true).open(path),
        };
        let written = file.and_then(|mut file| {
            file.write_all(write.value.as_bytes())?;
            opened = Some(file);
            Ok(())
        });
        match written {
            Err(error) if write.optional && error.kind() == io::ErrorKind::NotFound => {}
            result => result.map_err(|source| CgroupError {
                what: format!("set {} to {:?}{}", write.file, write.value, advice(write, &source)),
                source,
            })?,
        }
    }
    Ok(())
}

fn advice(write: &Write, error: &io::Error) -> &'static str {
    match (write.controller, error.raw_os_error()) {
        (Controller::Memory, Some(libc::EBUSY)) => {
            " (the container uses more than that; the old limit stays)"
        }
        (Controller::Cpuset, Some(libc::EINVAL | libc::EACCES | libc::ERANGE)) => {
            " (the box, or the cgroup above, has no such processors or memory nodes)"
        }
        (Controller::Cpu, Some(libc::EINVAL)) => " (more than the cgroup above may use)",
        (Controller::Hugetlb, Some(libc::ENOENT)) => " (the box has no pages of this size)",
        (_, Some(libc::ENOENT)) => " (this kernel has no such file, or the cgroup is gone)",
        _ => "",
    }
}

/// Writes files of a cgroup in use: all of them, or none if the kernel rejects one.
pub fn change(cgroup: &CgroupPath, writes: &[Write]) -> Result<(), CgroupError> {
    let mut old: Vec<Write> = Vec::new();
    for write in writes {
        let before = cgroup
            .file(write.controller, &write.file)
            .and_then(|path| fs::read_to_string(path).ok());
        if let Err(failed) = put(cgroup, write) {
            for write in old.iter().rev() {
                if let Err(error) = put(cgroup, write) {
                    tracing::warn!(
                        error = crate::kernel::failure::chain(&error),
                        "failed to restore limit"
                    );
                }
            }
            return Err(failed);
        }
        old.extend(before.map(|text| Write { value: text.trim().to_owned(), ..write.clone() }));
    }
    Ok(())
}

/// Reads the values that the order of changes depends on. With `limit`, first reclaims the memory above it.
pub fn current_values(cgroup: &CgroupPath, limit: i64) -> CurrentValues {
    let number = |controller, name: &str| -> Option<u64> {
        let text = fs::read_to_string(cgroup.file(controller, name)?).ok()?;
        text.trim().parse().ok()
    };
    let memory = |name: &str| number(Controller::Memory, name);
    let v2 = |controller| cgroup.tree.branch(controller).is_some_and(|b| b.v2);
    let used = if limit > 0 && v2(Controller::Memory) {
        // Otherwise the kernel would kill processes to get below the limit; on v1 it rejects the limit.
        let above = memory("memory.current")
            .and_then(|used| used.checked_sub(limit.unsigned_abs()))
            .filter(|above| *above > 0);
        if let (Some(above), Some(file)) =
            (above, cgroup.file(Controller::Memory, "memory.reclaim"))
        {
            // The write fails if the kernel cannot reclaim all of it. Kernels before 5.19 lack the file.
            let _ = fs::write(file, above.to_string());
        }
        memory("memory.current")
    } else {
        None
    };
    CurrentValues {
        memory_and_swap: memory("memory.memsw.limit_in_bytes"),
        used,
        quota: number(Controller::Cpu, "cpu.cfs_quota_us"),
        period: number(Controller::Cpu, "cpu.cfs_period_us"),
    }
}
