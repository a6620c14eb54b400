//! The cgroups of the check's pods, all below one cgroup of the run. The kubelet creates a cgroup for each pod, and some runtimes
//! find a pod's statistics only there.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use compact::Set;
use cri::v1;
use harness::client::{CallResult, Client};

/// The mount point of the cgroup hierarchies.
const ROOT: &str = "/sys/fs/cgroup";

/// The cgroup of a run, named as the runtime's driver requires.
#[derive(Debug, Clone)]
pub(super) enum RunGroup {
    /// For the cgroupfs driver.
    Directory(String),
    /// For the systemd driver.
    Slice(String),
}

impl RunGroup {
    /// The cgroup parent of a pod. Each pod has its own, so that its statistics include no other pod. For slices it is the full
    /// path, as the kubelet writes it (Kubernetes 1.36, pkg/kubelet/cm ToSystemd): some runtimes look there for statistics.
    pub(super) fn of_pod(&self, pod: &str) -> String {
        match self {
            Self::Directory(run) => format!("/{run}/{pod}"),
            Self::Slice(run) => {
                let (run, pod) = (run.replace('-', "_"), pod.replace('-', "_"));
                format!("/{}/{}", slice(&run), slice(&format!("{run}-{pod}")))
            }
        }
    }
}

/// The cgroup of a run; `None` if the runtime does not report its cgroup driver.
pub(super) async fn of_run(client: &Client, run: &str) -> CallResult<Option<RunGroup>> {
    let request = v1::RuntimeConfigRequest {};
    let answer = client.runtime.clone().runtime_config(request).await?;
    let linux = answer.into_inner().linux;
    Ok(linux.map(|linux| match linux.cgroup_driver() {
        v1::CgroupDriver::Cgroupfs => RunGroup::Directory(run.to_owned()),
        v1::CgroupDriver::Systemd => RunGroup::Slice(run.to_owned()),
    }))
}

/// The slice of a run, directly below the root: a dash in a slice's name separates it from its parent (systemd.slice(5)).
fn slice_of_run(run: &str) -> String {
    slice(&run.replace('-', "_"))
}

fn slice(name: &str) -> String {
    format!("{name}.slice")
}

/// Removes what is left of the run's cgroup: some runtimes do not remove cgroup parents that they created. Returns what could not
/// be removed.
pub(super) fn remove(run: &str) -> Vec<String> {
    remove_below(Path::new(ROOT), run)
}

fn remove_below(root: &Path, run: &str) -> Vec<String> {
    let mut left = Vec::new();
    // In cgroup v2 the root is the only hierarchy; in v1 each directory of the root is one.
    let hierarchies = directories(root).unwrap_or_default();
    for hierarchy in hierarchies.iter().map(PathBuf::as_path).chain([root]) {
        for name in [run, &slice_of_run(run)] {
            let path = hierarchy.join(name);
            match remove_tree(&path) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => left.push(format!("control group {}: {error}", path.display())),
            }
        }
    }
    left
}

/// The names of the top-level cgroups, among them those of runs.
pub(super) fn names() -> Set<String> {
    names_below(Path::new(ROOT))
}

fn names_below(root: &Path) -> Set<String> {
    let hierarchies = directories(root).unwrap_or_default();
    let groups = hierarchies
        .iter()
        .map(PathBuf::as_path)
        .chain([root])
        .flat_map(|hierarchy| directories(hierarchy).unwrap_or_default());
    let name = |group: PathBuf| {
        let name = group.file_name()?.to_str()?;
        Some(match name.strip_suffix(".slice") {
            Some(slice) => slice.replace('_', "-"),
            None => name.to_owned(),
        })
    };
    groups.filter_map(name).collect()
}

/// All cgroups of this machine whose name contains a container's id, in each hierarchy.
pub(super) fn of(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find(Path::new(ROOT), id, &mut found);
    found
}

fn find(path: &Path, id: &str, found: &mut Vec<PathBuf>) {
    // A cgroup that is removed in the meantime contains nothing.
    for below in directories(path).unwrap_or_default() {
        let name = below.file_name().unwrap_or_default().to_string_lossy();
        match name.contains(id) {
            true => found.push(below),
            false => find(&below, id, found),
        }
    }
}

/// The subdirectories of a directory, without symbolic links.
fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for entry in path.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            all.push(entry.path());
        }
    }
    Ok(all)
}

/// Removes a cgroup and its child cgroups, which must have no processes. The kernel removes their files.
fn remove_tree(path: &Path) -> io::Result<()> {
    for below in directories(path)? {
        remove_tree(&below)?;
    }
    std::fs::remove_dir(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_has_no_parent() {
        assert_eq!(slice_of_run("crib-check-1-2"), "crib_check_1_2.slice");
        let group = RunGroup::Slice("crib-check-1-2".to_owned());
        let path = "/crib_check_1_2.slice/crib_check_1_2-a_b.slice";
        assert_eq!(group.of_pod("a-b"), path);
        let group = RunGroup::Directory("crib-check-1-2".to_owned());
        assert_eq!(group.of_pod("a-b"), "/crib-check-1-2/a-b");
    }

    #[test]
    fn groups_of_the_run_alone_are_removed_in_each_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        for path in ["cpu/run-1/pod/c", "memory/run_1.slice", "run-1", "cpu/run-2/pod"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        assert_eq!(remove_below(root.path(), "run-1"), [""; 0]);
        let left: Vec<bool> = ["cpu/run-1", "memory/run_1.slice", "run-1", "cpu/run-2/pod"]
            .iter()
            .map(|path| root.path().join(path).exists())
            .collect();
        assert_eq!(left, [false, false, false, true]);
    }

    #[test]
    fn names_are_the_same_for_both_drivers() {
        let root = tempfile::tempdir().unwrap();
        for path in ["cpu/run-1/pod", "memory/run_2.slice/pod", "run-3"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let names = names_below(root.path());
        // In cgroup v1 the hierarchies are directories of the root, as cgroups are in v2.
        let expected = ["cpu", "memory", "run-1", "run-2", "run-3"];
        assert_eq!(names, expected.map(str::to_owned).into());
    }

    #[test]
    fn groups_of_a_container_are_found_in_each_hierarchy() {
        let root = tempfile::tempdir().unwrap();
        for path in ["cpu/run/abc", "memory/run.slice/cri-abc.scope", "cpu/run/other"] {
            std::fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let mut found = Vec::new();
        find(root.path(), "abc", &mut found);
        found.sort();
        let expected = ["cpu/run/abc", "memory/run.slice/cri-abc.scope"];
        assert_eq!(found, expected.map(|path| root.path().join(path)));
    }

    #[test]
    fn group_that_is_used_is_named() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("cpu/run")).unwrap();
        std::fs::write(root.path().join("cpu/run/file"), "").unwrap();
        let left = remove_below(root.path(), "run");
        assert_eq!(left.len(), 1, "{left:?}");
        assert!(left[0].contains("cpu/run: "), "{left:?}");
    }
}
