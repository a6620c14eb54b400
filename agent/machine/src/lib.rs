//! The machine's resources: memory from cgroups and `/proc`, process IDs, and file systems.
//!
//! `memory` ◆ parses the kernel's memory statistics, `limits` detects which memory limits it supports; both only read files and
//! call statvfs(3). [`cgroups`] creates, limits and removes the cgroups of pods, below the agent's own root, with or without
//! systemd. [`kmsg`] finds OOM kills in the kernel log, `threshold` waits for a memory usage threshold on cgroup v1. [`logind`]
//! delays shutdowns; [`dbus`] is the client for logind and systemd.

pub mod cgroups;
pub mod dbus;
pub mod kmsg;
mod limits;
pub mod logind;
mod memory;
mod threshold;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use agent::machine::{FileSystem, KernelMemory, Machine, MemoryThreshold, MemoryUse, ProcessIds};

/// The machine that this process runs on.
#[derive(Clone, Debug)]
pub struct HostMachine {
    root: PathBuf,
}

impl Default for HostMachine {
    fn default() -> Self {
        Self::with_root(Path::new("/"))
    }
}

impl HostMachine {
    /// A machine whose `/proc` and `/sys` are below this directory.
    #[must_use]
    pub fn with_root(root: &Path) -> Self {
        Self { root: root.to_owned() }
    }

    /// The directory of a cgroup in the memory controller's hierarchy.
    fn memory_cgroup(&self, path: &str) -> String {
        let hierarchy = if limits::is_unified(&self.root) { "" } else { "/memory" };
        format!("sys/fs/cgroup{hierarchy}/{}", path.trim_matches('/'))
    }

    fn text(&self, path: &str) -> io::Result<String> {
        let path = self.root.join(path);
        fs::read_to_string(&path)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }
}

impl Machine for HostMachine {
    fn kernel(&self) -> KernelMemory {
        limits::read(&self.root)
    }

    fn memory(&self) -> io::Result<MemoryUse> {
        let meminfo = self.text("proc/meminfo")?;
        let of_cgroup = |file: &str| self.text(&format!("sys/fs/cgroup/{file}")).ok();
        let used = if limits::is_unified(&self.root) {
            memory::of_meminfo(&meminfo, of_cgroup("memory.stat").as_deref())
        } else {
            let usage = of_cgroup("memory/memory.usage_in_bytes");
            let of_root = usage.zip(of_cgroup("memory/memory.stat"));
            // Without the memory controller, use the whole machine's memory from /proc.
            of_root
                .and_then(|(usage, stat)| memory::of_root_cgroup(&meminfo, &usage, &stat))
                .or_else(|| memory::of_meminfo(&meminfo, None))
        };
        used.ok_or_else(|| malformed("proc/meminfo"))
    }

    fn cgroup_memory(&self, path: &str) -> io::Result<Option<MemoryUse>> {
        let (files, inactive) = if limits::is_unified(&self.root) {
            (["memory.current", "memory.max", "memory.stat"], "inactive_file ")
        } else {
            let files = ["memory.usage_in_bytes", "memory.limit_in_bytes", "memory.stat"];
            (files, "total_inactive_file ")
        };
        let directory = self.memory_cgroup(path);
        let text = |file: &str| self.text(&format!("{directory}/{file}"));
        let [usage, limit, stat] = files.map(text);
        memory::of_cgroup(&usage?, &limit?, &stat?, inactive).ok_or_else(|| malformed(&directory))
    }

    fn memory_threshold(
        &self,
        path: &str,
        bytes: u64,
    ) -> io::Result<Option<Box<dyn MemoryThreshold>>> {
        if limits::is_unified(&self.root) {
            return Ok(None);
        }
        let directory = self.root.join(self.memory_cgroup(path));
        let watched = threshold::watch(&directory, bytes)?;
        Ok(Some(Box::new(watched)))
    }

    /// Source: Kubernetes 1.36, pkg/kubelet/stats/pidlimit/pidlimit_linux.go.
    fn processes(&self) -> io::Result<ProcessIds> {
        let limits = ["proc/sys/kernel/pid_max", "proc/sys/kernel/threads-max"];
        let limits = limits.iter().filter_map(|path| self.text(path).ok()?.trim().parse().ok());
        let limit = limits.min().ok_or_else(|| malformed("proc/sys/kernel/pid_max"))?;
        let running = memory::tasks(&self.text("proc/loadavg")?);
        let running = running.ok_or_else(|| malformed("proc/loadavg"))?;
        Ok(ProcessIds { limit, running })
    }

    fn file_system(&self, path: &Path) -> io::Result<FileSystem> {
        let device = fs::metadata(path)?.dev();
        let usage = file_tree::usage(path)?;
        Ok(FileSystem {
            device,
            capacity: usage.space.capacity,
            available: usage.space.available,
            inodes: usage.inodes,
            inodes_free: usage.inodes_free,
        })
    }

    fn mounts_below(&self, directory: &Path) -> io::Result<Vec<PathBuf>> {
        // The paths in the kernel's mount table contain no symbolic links.
        let directory = match fs::canonicalize(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            found => found?,
        };
        let table = self.text("proc/self/mountinfo")?;
        let mounts = file_tree::mountinfo::mounts(&table).map(|mount| PathBuf::from(mount.at));
        Ok(mounts.filter(|at| at.starts_with(&directory)).collect())
    }
}

fn malformed(path: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("failed to parse /{path}"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use tempfile::TempDir;

    use super::*;

    const MEMINFO: &str = "MemTotal: 1000 kB\nMemFree: 300 kB\nInactive(file): 200 kB\n";

    fn tree(files: &[(&str, &str)]) -> (TempDir, HostMachine) {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let machine = HostMachine::with_root(root.path());
        (root, machine)
    }

    #[rstest]
    #[case::v1(&[
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "600000\n"),
        ("sys/fs/cgroup/memory/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n"),
    ], 500_000)]
    #[case::v1_without_the_controller(&[], 500 * 1024)]
    #[case::v1_with_a_malformed_file(&[
        ("sys/fs/cgroup/memory/memory.usage_in_bytes", "many\n"),
        ("sys/fs/cgroup/memory/memory.stat", "total_inactive_file 100000\n"),
    ], 500 * 1024)]
    #[case::v2(&[
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/memory.stat", "anon 5\ninactive_file 102400\n"),
    ], 600 * 1024)]
    #[case::v2_of_an_old_kernel(&[("sys/fs/cgroup/cgroup.controllers", "memory\n")], 500 * 1024)]
    fn working_set_excludes_reclaimable_memory(
        #[case] files: &[(&str, &str)],
        #[case] working_set: u64,
    ) {
        let (_root, machine) = tree(&[&[("proc/meminfo", MEMINFO)], files].concat());
        let memory = machine.memory().unwrap();
        assert_eq!((memory.capacity, memory.working_set), (1000 * 1024, working_set));
    }

    #[rstest]
    #[case::v1(&[
        ("sys/fs/cgroup/memory/kubepods/memory.usage_in_bytes", "600000\n"),
        ("sys/fs/cgroup/memory/kubepods/memory.limit_in_bytes", "900000\n"),
        ("sys/fs/cgroup/memory/kubepods/memory.stat", "inactive_file 1\ntotal_inactive_file 100000\n"),
    ])]
    #[case::v2(&[
        ("sys/fs/cgroup/cgroup.controllers", "memory\n"),
        ("sys/fs/cgroup/kubepods/memory.current", "600000\n"),
        ("sys/fs/cgroup/kubepods/memory.max", "900000\n"),
        ("sys/fs/cgroup/kubepods/memory.stat", "anon 5\ninactive_file 100000\n"),
    ])]
    fn memory_of_a_cgroup_is_that_of_its_limit(#[case] files: &[(&str, &str)]) {
        let (_root, machine) = tree(files);
        let expected = MemoryUse { capacity: 900_000, usage: 600_000, working_set: 500_000 };
        assert_eq!(machine.cgroup_memory("/kubepods").unwrap(), Some(expected));
        assert!(machine.cgroup_memory("/none").is_err());
    }

    #[test]
    fn kernel_watches_no_memory_on_cgroup_v2() {
        let (_root, machine) = tree(&[("sys/fs/cgroup/cgroup.controllers", "memory\n")]);
        assert!(machine.memory_threshold("/", 1).unwrap().is_none());
    }

    #[test]
    fn lower_pid_limit_applies() {
        let (_root, machine) = tree(&[
            ("proc/sys/kernel/pid_max", "4194304\n"),
            ("proc/sys/kernel/threads-max", "1000\n"),
            ("proc/loadavg", "0.1 0.2 0.3 2/345 678\n"),
        ]);
        assert_eq!(machine.processes().unwrap(), ProcessIds { limit: 1000, running: 345 });
    }

    #[test]
    fn missing_file_error_has_its_path() {
        let (root, machine) = tree(&[]);
        let error = machine.memory().unwrap_err().to_string();
        assert!(error.contains("proc/meminfo"), "{error}");
        assert!(machine.processes().is_err());
        assert!(machine.file_system(&root.path().join("none")).is_err());
    }

    #[test]
    fn mounts_below_reads_mountinfo() {
        let (root, machine) = tree(&[("pods/u1/volumes/x", ""), ("pods/u10/x", "")]);
        let at = root.path().canonicalize().unwrap();
        let at = at.display();
        let lines = ["pods/u1/volumes/a\\040b", "pods/u10", "pods"]
            .map(|path| format!("30 20 0:1 / {at}/{path} rw - tmpfs none rw\n"));
        let table = root.path().join("proc/self/mountinfo");
        fs::create_dir_all(table.parent().unwrap()).unwrap();
        fs::write(table, lines.concat()).unwrap();
        std::os::unix::fs::symlink("pods", root.path().join("link")).unwrap();
        let below = |path: &str| machine.mounts_below(&root.path().join(path)).unwrap();
        let expected = vec![PathBuf::from(format!("{at}/pods/u1/volumes/a b"))];
        assert_eq!(below("pods/u1"), expected);
        assert_eq!(below("link/u1"), expected);
        assert_eq!(below("pods").len(), 3);
        assert_eq!(below("none"), Vec::<PathBuf>::new());
        let (other, unknown) = tree(&[("pods/x", "")]);
        assert!(unknown.mounts_below(&other.path().join("pods")).is_err());
    }

    #[test]
    fn real_machine_is_measured() {
        let machine = HostMachine::default();
        let memory = machine.memory().unwrap();
        assert!(memory.working_set > 0 && memory.working_set <= memory.capacity, "{memory:?}");
        let processes = machine.processes().unwrap();
        assert!(processes.running > 0 && processes.running < processes.limit, "{processes:?}");
        let root = machine.file_system(Path::new("/")).unwrap();
        assert!(root.available <= root.capacity && root.capacity > 0, "{root:?}");
        let proc = machine.file_system(Path::new("/proc")).unwrap();
        assert_ne!(proc.device, root.device);
    }
}
