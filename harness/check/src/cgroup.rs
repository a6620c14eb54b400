//! The control groups of the pods of a check, below one for all of them. A kubelet gives one to each pod, and some runtimes find
//! a pod's statistics nowhere else.

use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use compact::Set;
use cri::v1;
use harness::client::{Answer, Client};

/// Where the hierarchies of control groups are.
const ROOT: &str = "/sys/fs/cgroup";

/// The control group of a run, by the names of the runtime's driver.
#[derive(Debug, Clone)]
pub(super) enum RunGroup {
    /// Of the driver cgroupfs.
    Directory(String),
    /// Of the driver systemd.
    Slice(String),
}

impl RunGroup {
    /// The parent of a pod's control groups: one of its own, so that its statistics are those of no other pod. Of slices the whole
    /// path, as a kubelet names it (Kubernetes 1.36, pkg/kubelet/cm ToSystemd): some runtimes look there for statistics.
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

/// The control group of a run; none where the runtime does not say how it names control groups.
pub(super) async fn of_run(client: &Client, run: &str) -> Answer<Option<RunGroup>> {
    let request = v1::RuntimeConfigRequest {};
    let answer = client.runtime.clone().runtime_config(request).await?;
    let linux = answer.into_inner().linux;
    Ok(linux.map(|linux| match linux.cgroup_driver() {
        v1::CgroupDriver::Cgroupfs => RunGroup::Directory(run.to_owned()),
        v1::CgroupDriver::Systemd => RunGroup::Slice(run.to_owned()),
    }))
}

/// The slice of a run, below no other: a dash in a slice's name leads to its parent (systemd.slice(5)).
fn slice_of_run(run: &str) -> String {
    slice(&run.replace('-', "_"))
}

fn slice(name: &str) -> String {
    format!("{name}.slice")
}

/// Removes what runtimes leave of the parent: not all remove one that they have made. Returns what could not be removed.
pub(super) fn remove(run: &str) -> Vec<String> {
    remove_below(Path::new(ROOT), run)
}

fn remove_below(root: &Path, run: &str) -> Vec<String> {
    let mut left = Vec::new();
    // Of v2 the root is one hierarchy, of v1 each of its directories.
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

/// The names of all runs whose parents are there.
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

/// The control groups of this machine that have a container's id in their name, in each hierarchy.
pub(super) fn of(id: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    find(Path::new(ROOT), id, &mut found);
    found
}

fn find(path: &Path, id: &str, found: &mut Vec<PathBuf>) {
    // One that goes away meanwhile has nothing in it.
    for below in directories(path).unwrap_or_default() {
        let name = below.file_name().unwrap_or_default().to_string_lossy();
        match name.contains(id) {
            true => found.push(below),
            false => find(&below, id, found),
        }
    }
}

/// The directories in one; symbolic links are none.
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

/// Removes a control group and those below it, none of which may have a process. Its files go with it.
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
        // The hierarchies are directories of the root, as groups of v2 are.
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
