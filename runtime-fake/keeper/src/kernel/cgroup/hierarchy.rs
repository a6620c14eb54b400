//! ◆ The cgroup hierarchies of a host, read from `/proc`, and the part of each that the runtime may use.
//!
//! A host has one of three layouts: every controller on a hierarchy of its own (v1), all of them on one (v2), or
//! controllers on v1 beside a v2 tree that has none or few (hybrid). Here all three are one list.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use file_tree::mountinfo::{Mount, mounts};
use serde::{Deserialize, Serialize};

/// A controller that the runtime uses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Controller {
    /// CPU shares and quotas.
    Cpu,
    /// CPU usage; a controller of its own on v1 only.
    Cpuacct,
    /// Allowed processors and memory nodes.
    Cpuset,
    /// Memory and swap.
    Memory,
    /// Access to devices; on v2 BPF programs do that.
    Devices,
    /// The number of processes.
    Pids,
    /// Huge pages.
    Hugetlb,
    /// Block I/O; `io` on v2.
    Blkio,
    /// Freezes all processes; on v2 every cgroup can.
    Freezer,
}

impl Controller {
    const ALL: [Self; 9] = [
        Self::Cpu,
        Self::Cpuacct,
        Self::Cpuset,
        Self::Memory,
        Self::Devices,
        Self::Pids,
        Self::Hugetlb,
        Self::Blkio,
        Self::Freezer,
    ];

    /// Its name, which is the prefix of its files; on v2 `blkio` is `io`.
    pub const fn name(self, v2: bool) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuacct => "cpuacct",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
            Self::Devices => "devices",
            Self::Pids => "pids",
            Self::Hugetlb => "hugetlb",
            Self::Blkio if v2 => "io",
            Self::Blkio => "blkio",
            Self::Freezer => "freezer",
        }
    }

    /// The controller with the kernel's name `name`.
    pub fn named(name: &str, v2: bool) -> Option<Self> {
        Self::ALL.into_iter().find(|c| c.name(v2) == name)
    }
}

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its mount point.
    pub mount: PathBuf,
    /// Version 2.
    pub v2: bool,
    /// Its controllers; empty on v2, where files list them, not `/proc`.
    pub controllers: BTreeSet<Controller>,
    /// Mounted read-only.
    pub read_only: bool,
    /// This process's own cgroup, as a directory; none if it is outside the mount.
    pub own: Option<PathBuf>,
}

/// Every usable hierarchy, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)) and `/proc/self/cgroup` (cgroups(7)). A
/// hierarchy that is mounted twice counts once.
pub fn mounted(mountinfo: &str, cgroup: &str) -> Vec<Hierarchy> {
    let mut found: Vec<(String, Hierarchy)> = Vec::new();
    for (root, hierarchy) in mounts(mountinfo).filter_map(|mount| one(mount, cgroup)) {
        let same = found
            .iter()
            .position(|(_, f)| f.v2 == hierarchy.v2 && f.controllers == hierarchy.controllers);
        match same {
            // Prefer the mount that shows the whole hierarchy, and a writable one.
            Some(at) if better(&root, &hierarchy) > better(&found[at].0, &found[at].1) => {
                found[at] = (root, hierarchy);
            }
            Some(_) => {}
            None => found.push((root, hierarchy)),
        }
    }
    found.into_iter().map(|(_, hierarchy)| hierarchy).collect()
}

fn better(root: &str, hierarchy: &Hierarchy) -> (bool, bool, bool) {
    (!hierarchy.read_only, root == "/", hierarchy.mount.starts_with("/sys/fs/cgroup"))
}

/// The root of the mount in its file system, and the hierarchy; `None` for mounts of other kinds.
fn one(mount: Mount<'_>, cgroup: &str) -> Option<(String, Hierarchy)> {
    let v2 = match mount.kind {
        "cgroup" => false,
        "cgroup2" => true,
        _ => return None,
    };
    let controllers: BTreeSet<Controller> = if v2 {
        BTreeSet::new()
    } else {
        let words = mount.super_options.split(',');
        words.filter_map(|word| Controller::named(word, false)).collect()
    };
    if !v2 && controllers.is_empty() {
        return None;
    }
    let is_ours = |list: &str| {
        if v2 {
            list.is_empty()
        } else {
            list.split(',')
                .filter_map(|word| Controller::named(word, false))
                .any(|c| controllers.contains(&c))
        }
    };
    let own = cgroup.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (list, path) = (parts.next()?, parts.next()?);
        is_ours(list).then(|| below(path, &mount.root)).flatten()
    });
    let read_only =
        [mount.options, mount.super_options].iter().any(|o| o.split(',').any(|word| word == "ro"));
    let hierarchy = Hierarchy {
        own: own.map(|own| Path::new(&mount.at).join(own)),
        mount: mount.at.into(),
        v2,
        controllers,
        read_only,
    };
    Some((mount.root, hierarchy))
}

/// `path` relative to `root`; `None` if it is elsewhere (`/..`, in a container that shows the host's hierarchy).
fn below(path: &str, root: &str) -> Option<PathBuf> {
    let path = Path::new(path).strip_prefix(root).ok()?;
    let plain = path.components().all(|part| matches!(part, std::path::Component::Normal(_)));
    plain.then(|| path.to_owned())
}

/// A directory of one hierarchy; all of the runtime's cgroups are below it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// The directory.
    pub base: PathBuf,
    /// Version 2.
    pub v2: bool,
    /// The controllers available there.
    pub controllers: BTreeSet<Controller>,
}

/// The parts of a host's hierarchies that the runtime may use.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    /// One for each hierarchy.
    pub branches: Vec<Branch>,
}

impl Tree {
    /// The branch that has `controller`.
    pub fn branch(&self, controller: Controller) -> Option<&Branch> {
        self.branches.iter().find(|b| b.controllers.contains(&controller))
    }

    /// The v2 hierarchy, even without controllers: it reports empty cgroups, and can kill all processes of a cgroup with one
    /// write.
    pub fn unified(&self) -> Option<&Branch> {
        self.branches.iter().find(|b| b.v2)
    }

    /// A description for people.
    pub fn describe(&self) -> String {
        let names = |v2: bool| {
            let mut names: Vec<&str> = self
                .branches
                .iter()
                .filter(|b| b.v2 == v2)
                .flat_map(|b| b.controllers.iter().map(move |c| c.name(v2)))
                .collect();
            names.sort_unstable();
            names.join(" ")
        };
        match (names(false), names(true), self.unified().is_some()) {
            (v1, _, false) if v1.is_empty() => "none".to_owned(),
            (v1, _, false) => format!("v1: {v1}"),
            (v1, v2, true) => {
                let v2 = if v2.is_empty() { "no controllers" } else { v2.as_str() };
                if v1.is_empty() { format!("v2: {v2}") } else { format!("v1: {v1}; v2: {v2}") }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const V1: &str = "\
33 32 0:29 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
34 33 0:30 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 33 0:31 / /sys/fs/cgroup/memory ro,relatime - cgroup cgroup rw,memory
36 33 0:32 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,name=systemd
37 33 0:33 /docker/abc /sys/fs/cgroup/pids rw,relatime - cgroup cgroup rw,pids
";

    fn names(found: &[Hierarchy]) -> Vec<String> {
        let one = |h: &Hierarchy| {
            let list: Vec<&str> = h.controllers.iter().map(|c| c.name(h.v2)).collect();
            let own = h.own.as_ref().map_or("-".to_owned(), |p| p.display().to_string());
            let ro = if h.read_only { " ro" } else { "" };
            format!("{}={own}{ro}", list.join(","))
        };
        found.iter().map(one).collect()
    }

    #[rstest]
    #[case::v1(V1, "4:cpu,cpuacct:/a\n3:memory:/\n2:pids:/docker/abc/x\n1:name=systemd:/\n",
        &["cpu,cpuacct=/sys/fs/cgroup/cpu,cpuacct/a", "memory=/sys/fs/cgroup/memory/ ro",
          "pids=/sys/fs/cgroup/pids/x"])]
    #[case::v2("25 22 0:22 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate", "0::/user.slice/a b\n",
        &["=/sys/fs/cgroup/user.slice/a b"])]
    #[case::hybrid("40 31 0:37 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
42 31 0:39 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer", "1:freezer:/\n0::/x\n",
        &["=/sys/fs/cgroup/unified/x", "freezer=/sys/fs/cgroup/freezer/"])]
    #[case::mounted_twice("41 31 0:38 /sub /mnt/cg rw - cgroup2 cgroup2 rw
42 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw
43 31 0:38 / /also ro - cgroup2 cgroup2 rw", "0::/sub/x\n", &["=/sys/fs/cgroup/sub/x"])]
    #[case::outside_of_its_namespace("41 31 0:38 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw", "0::/../x\n", &["=-"])]
    #[case::escaped(r"41 31 0:38 / /my\040cg rw - cgroup2 cgroup2 rw", "0::/\n", &["=/my cg/"])]
    #[case::nothing("1 0 0:1 / / rw - ext4 /dev/vda rw\nnonsense", "", &[])]
    fn mounted_hierarchies_are_found_with_own_directory(
        #[case] mountinfo: &str,
        #[case] cgroup: &str,
        #[case] expected: &[&str],
    ) {
        assert_eq!(names(&mounted(mountinfo, cgroup)), expected);
    }

    #[test]
    fn tree_description_names_versions() {
        let branch = |v2, controllers: &[Controller]| Branch {
            base: PathBuf::new(),
            v2,
            controllers: controllers.iter().copied().collect(),
        };
        let tree = |branches| Tree { branches }.describe();
        assert_eq!(tree(vec![]), "none");
        assert_eq!(
            tree(vec![branch(false, &[Controller::Pids]), branch(false, &[Controller::Cpu])]),
            "v1: cpu pids"
        );
        assert_eq!(tree(vec![branch(true, &[Controller::Blkio, Controller::Cpu])]), "v2: cpu io");
        assert_eq!(
            tree(vec![branch(false, &[Controller::Cpu]), branch(true, &[])]),
            "v1: cpu; v2: no controllers"
        );
    }
}
