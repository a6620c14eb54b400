//! Finds what a test leaves behind: processes, mounts, network links, cgroups, files.
//!
//! Tests run concurrently, so a check finds only resources of its own test. Everything that a test starts refers to the test's
//! directory, whose name is unique. A process belongs to the test if that name is in its arguments, environment, working directory,
//! root, open files or mounts; so do its descendants. A network namespace is leaked if such a process keeps it alive. The name of
//! the runtime's bridge is derived from the state directory.

use std::collections::BTreeSet;
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use file_tree::mountinfo::mounts;
use sha2::{Digest as _, Sha256};

use crate::procfs::{self, ObservedProcess};

/// A leaked resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Leak {
    /// A process.
    Process {
        /// The process.
        process: ObservedProcess,
        /// Its command line.
        command: String,
        /// Why it belongs to the test.
        because: String,
    },
    /// A mount in the test's own mount namespace.
    Mount(PathBuf),
    /// A network link in the test's own network namespace.
    Link(String),
    /// A netfilter table in the test's own network namespace.
    Table(String),
    /// A cgroup.
    Cgroup(PathBuf),
    /// A file or directory.
    File(PathBuf),
}

impl fmt::Display for Leak {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Process { process, command, because } => {
                write!(f, "process {} ({command}): {because}", process.pid)
            }
            Self::Mount(path) => write!(f, "mount at {}", path.display()),
            Self::Link(name) => write!(f, "network link {name}"),
            Self::Table(name) => write!(f, "packet rules in table {name}"),
            Self::Cgroup(path) => write!(f, "cgroup {}", path.display()),
            Self::File(path) => write!(f, "file {}", path.display()),
        }
    }
}

/// Finds the leaks of one test.
#[derive(Debug, Clone)]
pub struct Leaks {
    root: PathBuf,
    state_dirs: Vec<PathBuf>,
}

impl Leaks {
    /// The leaks of the test whose directory is `root`. The directory's name should be unique on the host.
    #[must_use]
    pub fn below(root: &Path) -> Self {
        Self { root: root.to_owned(), state_dirs: Vec::new() }
    }

    /// Adds the bridge and the cgroups of the runtime with this state directory.
    #[must_use]
    pub fn with_state_dir(mut self, state_dir: &Path) -> Self {
        self.state_dirs.push(state_dir.to_owned());
        self
    }

    /// The test's processes, except the test itself.
    #[must_use]
    pub fn processes(&self) -> Vec<Leak> {
        let own = procfs::own();
        let own_mounts = own.link("ns/mnt");
        // When a thread of the test starts a program, the child is a copy of the test until `execve`.
        let own_program = own.link("exe");
        let all: Vec<ObservedProcess> = procfs::processes()
            .into_iter()
            .filter(|process| *process != own && process.link("exe") != own_program)
            // An exiting process releases its memory before its descriptors, and no longer runs code (proc_pid_statm(5)).
            .filter(|process| !process.bytes("statm").starts_with(b"0 "))
            .collect();
        let mut found: Vec<(ObservedProcess, String)> = Vec::new();
        for process in &all {
            if let Some(because) = self.names_root(*process, own_mounts.as_deref()) {
                found.push((*process, because));
            }
        }
        let mut known: BTreeSet<i32> = found.iter().map(|(process, _)| process.pid).collect();
        loop {
            let descendants: Vec<ObservedProcess> = all
                .iter()
                .copied()
                .filter(|process| {
                    !known.contains(&process.pid) && known.contains(&process.parent())
                })
                .collect();
            if descendants.is_empty() {
                break;
            }
            known.extend(descendants.iter().map(|process| process.pid));
            found.extend(descendants.into_iter().map(|process| {
                let because = format!("it is a child of process {}", process.parent());
                (process, because)
            }));
        }
        found
            .into_iter()
            .map(|(process, because)| Leak::Process {
                command: process.command_line(),
                process,
                because,
            })
            .collect()
    }

    /// Why a process belongs to the test; `None` if it does not.
    fn names_root(&self, process: ObservedProcess, own_mounts: Option<&Path>) -> Option<String> {
        let root = self.root.as_os_str().as_bytes();
        let below = |path: PathBuf| path.starts_with(&self.root);
        for file in ["cmdline", "environ"] {
            if contains(&process.bytes(file), root) {
                return Some(format!("its {file} names the test's directory"));
            }
        }
        for link in ["cwd", "root", "exe"] {
            if process.link(link).is_some_and(below) {
                return Some(format!("its {link} is in the test's directory"));
            }
        }
        if let Some(open) =
            process.descriptors().into_iter().find(|path| path.starts_with(&self.root))
        {
            return Some(format!("it has {} open", open.display()));
        }
        // Paths in mounts may be relative to another root, so only the name is compared.
        let name = self.root.file_name().unwrap_or(self.root.as_os_str()).as_bytes();
        let mounts = process.link("ns/mnt")?;
        (Some(mounts.as_path()) != own_mounts && contains(&process.bytes("mountinfo"), name))
            .then(|| "it has files of the test mounted".to_owned())
    }

    /// The test's mounts in the mount namespace of the test's own process.
    #[must_use]
    pub fn mounts(&self) -> Vec<Leak> {
        let table = procfs::own().text("mountinfo");
        mounts(&table)
            .map(|mount| PathBuf::from(mount.at))
            .filter(|at| at.starts_with(&self.root) && *at != self.root)
            .map(Leak::Mount)
            .collect()
    }

    /// The bridges of the test's runtimes, and the links attached to them.
    #[must_use]
    pub fn links(&self) -> Vec<Leak> {
        let bridges: Vec<String> = self.state_dirs.iter().map(|dir| instance_name(dir)).collect();
        let master = |link: &str| {
            let path = Path::new("/sys/class/net").join(link).join("master");
            let master = std::fs::read_link(path).ok()?;
            Some(master.file_name()?.to_string_lossy().into_owned())
        };
        procfs::links()
            .into_iter()
            .filter(|link| {
                bridges.contains(link)
                    || master(link).is_some_and(|master| bridges.contains(&master))
            })
            .map(Leak::Link)
            .collect()
    }

    /// The netfilter tables of the test's runtimes, if this user may list them.
    #[must_use]
    pub fn tables(&self) -> Vec<Leak> {
        let names = self.state_dirs.iter();
        let names: Vec<String> = names.map(|dir| instance_name(dir)).collect();
        let tables = network::tables().unwrap_or_default();
        tables.into_iter().filter(|table| names.contains(table)).map(Leak::Table).collect()
    }

    /// The cgroups of the test's runtimes, in every hierarchy: one for each pod, and below it those of containers.
    #[must_use]
    pub fn cgroups(&self) -> Vec<Leak> {
        let directories = self.state_dirs.iter().flat_map(|state_dir| {
            let name = instance_name(state_dir);
            let places = procfs::cgroup_directories().into_iter();
            places.map(move |place| place.join(&name))
        });
        directories
            .filter(|directory| directory.exists())
            .flat_map(|directory| {
                let mut all = procfs::cgroups_below(&directory);
                all.push(directory);
                all
            })
            .map(Leak::Cgroup)
            .collect()
    }

    /// All leaks, including the test's directory.
    #[must_use]
    pub fn check(&self) -> Vec<Leak> {
        let mut left = self.running();
        if self.root.exists() {
            left.push(Leak::File(self.root.clone()));
        }
        left
    }

    /// All leaks except files.
    #[must_use]
    pub fn running(&self) -> Vec<Leak> {
        [self.processes(), self.mounts(), self.links(), self.tables(), self.cgroups()].concat()
    }
}

/// The name of a runtime's bridge, netfilter table and cgroups. It is computed independently of the runtime, because leaks are
/// observed from outside.
fn instance_name(state_dir: &Path) -> String {
    let digest = Sha256::digest([state_dir.as_os_str().as_bytes(), &[0]].concat());
    let digits: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
    format!("crib{digits}")
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    !needle.is_empty() && haystack.windows(needle.len()).any(|window| window == needle)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;
    use crate::process::Process;

    fn pids(leaks: &Leaks) -> Vec<i32> {
        let found = leaks.processes().into_iter();
        found
            .filter_map(|leak| match leak {
                Leak::Process { process, .. } => Some(process.pid),
                Leak::Mount(_)
                | Leak::Link(_)
                | Leak::Table(_)
                | Leak::Cgroup(_)
                | Leak::File(_) => None,
            })
            .collect()
    }

    /// Waits until the kernel shows the environment of the process. A spawn returns during execve, when the environment is still empty.
    fn wait_for_environment(pid: i32) {
        let (file, started) = (format!("/proc/{pid}/environ"), Instant::now());
        while std::fs::read(&file).unwrap().is_empty() {
            assert!(
                started.elapsed() < Duration::from_secs(60),
                "process {pid} has no environment"
            );
            std::thread::yield_now();
        }
    }

    #[test]
    fn leaks_find_process_by_cwd_environment_and_open_files() {
        let dir = tempfile::tempdir().unwrap();
        let leaks = Leaks::below(dir.path());
        let mut in_directory = Command::new("sleep");
        in_directory.arg("1000").current_dir(dir.path());
        let mut in_environment = Command::new("sleep");
        in_environment.arg("1000").env("PLACE", dir.path().join("x"));
        let mut in_files = Command::new("sleep");
        in_files.arg("1000").stderr(std::fs::File::create(dir.path().join("log")).unwrap());
        let mut by_parent = Command::new("sh");
        by_parent.args(["-c", "cd /; (sleep 1000) & wait", dir.path().to_str().unwrap()]);
        for mut command in [in_directory, in_environment, in_files] {
            let process = Process::spawn(command.stdin(Stdio::null())).unwrap();
            wait_for_environment(process.pid());
            assert_eq!(pids(&leaks), [process.pid()], "{command:?}");
            drop(process);
            assert_eq!(leaks.processes(), []);
        }
    }

    #[test]
    fn instance_name_is_stable() {
        assert_eq!(instance_name("/run/crib".as_ref()), "cribaba9af7e");
    }

    #[test]
    fn leaks_include_test_directory() {
        let dir = tempfile::tempdir().unwrap();
        let leaks = Leaks::below(dir.path());
        assert_eq!(leaks.check(), [Leak::File(dir.path().to_owned())]);
        dir.close().unwrap();
        assert_eq!(leaks.check(), []);
    }
}
