//! Observes processes, files and links through the kernel, independently of the tested runtime.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};

use file_tree::mountinfo::mounts;

/// A process, by its id in the test's own PID namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObservedProcess {
    /// The process id.
    pub pid: i32,
}

/// This process.
#[must_use]
pub fn own() -> ObservedProcess {
    ObservedProcess { pid: i32::try_from(std::process::id()).unwrap_or(i32::MAX) }
}

/// All processes.
#[must_use]
pub fn processes() -> Vec<ObservedProcess> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .map(|pid| ObservedProcess { pid })
        .collect()
}

/// The processes that have `mark` (`NAME=VALUE`) in their environment or as an argument, sorted by id. An ordinary user can read
/// the environment only of its own processes, but the arguments of all.
#[must_use]
pub fn marked(mark: &str) -> Vec<ObservedProcess> {
    let mut found: Vec<ObservedProcess> = processes()
        .into_iter()
        .filter(|process| {
            ["environ", "cmdline"].into_iter().any(|file| {
                let bytes = process.bytes(file);
                bytes.split(|byte| *byte == 0).any(|word| word == mark.as_bytes())
            })
        })
        .collect();
    found.sort();
    found
}

impl ObservedProcess {
    /// A path below `/proc/PID`.
    #[must_use]
    pub fn path(self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.pid.to_string()).join(name)
    }

    /// A file of `/proc/PID`; empty if it cannot be read.
    #[must_use]
    pub fn bytes(self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_default()
    }

    /// A text file of `/proc/PID`; empty if it cannot be read.
    #[must_use]
    pub fn text(self, name: &str) -> String {
        String::from_utf8_lossy(&self.bytes(name)).into_owned()
    }

    /// Its namespaces: a map from the kind (`net`, `pid`, …) to the identity (`net:[4026531840]`).
    #[must_use]
    pub fn namespaces(self) -> BTreeMap<String, String> {
        let entries = fs::read_dir(self.path("ns")).into_iter().flatten().flatten();
        entries
            .filter_map(|entry| {
                let namespace = fs::read_link(entry.path()).ok()?;
                let name = entry.file_name().to_string_lossy().into_owned();
                Some((name, namespace.to_string_lossy().into_owned()))
            })
            .collect()
    }

    /// A field of `/proc/PID/status` (proc_pid_status(5)), without surrounding spaces.
    #[must_use]
    pub fn status(self, field: &str) -> Option<String> {
        let status = self.text("status");
        let mut lines = status.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(name, _)| *name == field).map(|(_, value)| value.trim().to_owned())
    }

    /// The set of capabilities in a field like `CapEff`, one bit each.
    #[must_use]
    pub fn capabilities(self, field: &str) -> Option<u64> {
        u64::from_str_radix(&self.status(field)?, 16).ok()
    }

    /// Its arguments, separated by spaces; empty for a zombie.
    #[must_use]
    pub fn command_line(self) -> String {
        self.text("cmdline").replace('\0', " ").trim_end().to_owned()
    }

    /// Its cgroups: a map from the controllers of each hierarchy to the cgroup's directory. The key of v2 is empty.
    #[must_use]
    pub fn cgroups(self) -> BTreeMap<String, PathBuf> {
        let table = own().text("mountinfo");
        let mount = |controllers: &str| {
            let mut mounts = mounts(&table).filter(|mount| match controllers {
                "" => mount.kind == "cgroup2",
                list => mount.kind == "cgroup" && mount.super_options.ends_with(list),
            });
            mounts.next().map(|mount| PathBuf::from(mount.at))
        };
        let text = self.text("cgroup");
        let lines = text.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let at = mount(controllers)?.join(path.trim_start_matches('/'));
            Some((controllers.to_owned(), at))
        });
        lines.collect()
    }

    /// A controller's file in its cgroup, by its name in v1 or v2; empty if it is missing.
    #[must_use]
    pub fn cgroup_file(self, controller: &str, v1: &str, v2: &str) -> String {
        let cgroups = self.cgroups();
        let first = cgroups
            .iter()
            .find(|(names, _)| names.split(',').any(|name| name == controller))
            .map(|(_, at)| at.join(v1));
        let path = first.or_else(|| cgroups.get("").map(|at| at.join(v2)));
        let text = path.and_then(|path| fs::read_to_string(path).ok());
        text.unwrap_or_default().trim().to_owned()
    }

    /// Its parent; 0 if the parent is in another PID namespace, or there is none.
    #[must_use]
    pub fn parent(self) -> i32 {
        self.status("PPid").and_then(|pid| pid.parse().ok()).unwrap_or(0)
    }

    /// The target of a link in `/proc/PID` (`cwd`, `root`, `exe`, `fd/3`), even if the target was removed.
    #[must_use]
    pub fn link(self, name: &str) -> Option<PathBuf> {
        fs::read_link(self.path(name)).ok().map(without_mark)
    }

    /// The targets of its open descriptors.
    #[must_use]
    pub fn descriptors(self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("fd")).into_iter().flatten().flatten();
        entries.filter_map(|entry| fs::read_link(entry.path()).ok().map(without_mark)).collect()
    }

    /// Whether it exists and has not exited.
    #[must_use]
    pub fn runs(self) -> bool {
        self.status("State").is_some_and(|state| !state.starts_with(['Z', 'X']))
    }
}

/// The network links of the test's own network namespace.
#[must_use]
pub fn links() -> Vec<String> {
    let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The directories that can contain cgroups: the roots of all hierarchies, and this process's own cgroup in each, with its parent.
#[must_use]
pub fn cgroup_directories() -> Vec<PathBuf> {
    let own = own();
    let table = own.text("mountinfo");
    let mut places: Vec<PathBuf> = Vec::new();
    for mount in mounts(&table).filter(|mount| mount.kind.starts_with("cgroup")) {
        let at = PathBuf::from(mount.at);
        // For v2, the list of controllers in /proc/PID/cgroup is empty.
        let unified = mount.kind == "cgroup2";
        let cgroups = own.text("cgroup");
        let paths = cgroups.lines().filter_map(|line| {
            let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
            let names = mount.super_options.split(',');
            let fits = if unified {
                controllers.is_empty()
            } else {
                !controllers.is_empty() && names.into_iter().any(|name| controllers.contains(name))
            };
            fits.then(|| at.join(path.trim_start_matches('/')))
        });
        for path in paths {
            places.extend(path.parent().filter(|above| above.starts_with(&at)).map(Into::into));
            places.push(path);
        }
        places.push(at);
    }
    places.sort();
    places.dedup();
    places
}

/// The cgroups below a cgroup, innermost first.
#[must_use]
pub fn cgroups_below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        found.extend(cgroups_below(&entry.path()));
        found.push(entry.path());
    }
    found
}

/// The path of a removed file, without the kernel's suffix (proc_pid_cwd(5)).
fn without_mark(target: PathBuf) -> PathBuf {
    let path = target.as_os_str().as_bytes();
    match path.strip_suffix(b" (deleted)") {
        Some(path) => PathBuf::from(OsStr::from_bytes(path)),
        None => target,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_process_is_observed() {
        let own = own();
        assert!(own.runs());
        assert!(processes().contains(&own));
        assert!(own.namespaces()["net"].starts_with("net:["));
        assert_eq!(own.status("Pid"), Some(own.pid.to_string()));
        assert!(own.link("exe").is_some_and(|path| path.is_absolute()));
        assert!(links().contains(&"lo".to_owned()));
    }
}
