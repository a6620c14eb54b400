//! ◆ The paths of a pod's and a container's cgroups.

use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::kernel::cgroup::{
    hierarchy::{Branch, Controller, Tree},
    limits::{InvalidCgroup, invalid},
};

/// A cgroup: the same path in every hierarchy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CgroupPath {
    /// The hierarchies.
    pub tree: Tree,
    /// The path below the base of each.
    pub path: PathBuf,
    /// By hierarchy, the number of last components of the path that were made for this cgroup; they are removed with it.
    pub own: Vec<usize>,
}

impl CgroupPath {
    /// The cgroup `name` in this one.
    pub fn child(&self, name: &str) -> Self {
        Self {
            tree: self.tree.clone(),
            path: self.path.join(name),
            own: vec![1; self.tree.branches.len()],
        }
    }

    /// The cgroup above, which was made for the same pod.
    pub fn parent(&self) -> Option<Self> {
        Some(Self {
            tree: self.tree.clone(),
            path: self.path.parent()?.to_owned(),
            own: self.own.clone(),
        })
    }

    /// Its directory in one hierarchy.
    pub fn directory(&self, branch: &Branch) -> PathBuf {
        branch.base.join(&self.path)
    }

    /// Its directories, one for each hierarchy.
    pub fn directories(&self) -> impl Iterator<Item = PathBuf> {
        self.tree.branches.iter().map(|b| self.directory(b))
    }

    /// A file of a controller; none if the host lacks the controller.
    pub fn file(&self, controller: Controller, name: &str) -> Option<PathBuf> {
        let branch = self.tree.branch(controller)?;
        Some(self.directory(branch).join(name))
    }

    /// Its v2 directory, with or without controllers.
    pub fn unified(&self) -> Option<PathBuf> {
        self.tree.unified().map(|branch| self.directory(branch))
    }

    /// The directories that are removed with it, innermost first. They must be empty by then.
    pub fn removed(&self) -> impl Iterator<Item = PathBuf> {
        let branches = self.tree.branches.iter().zip(&self.own);
        branches.flat_map(|(branch, own)| {
            let directory = self.directory(branch);
            let parts: Vec<PathBuf> = directory.ancestors().take(*own).map(Into::into).collect();
            parts
        })
    }
}

/// The path of a client's `cgroup_parent` (CRI v1, LinuxPodSandboxConfig), below the root of every hierarchy.
pub fn parent(text: &str) -> Result<PathBuf, InvalidCgroup> {
    if text.ends_with(".slice") && !text.contains('/') {
        return invalid(format!(
            "cgroup_parent {text:?} is a slice of systemd, and the cgroup driver is cgroupfs (see RuntimeConfig): give a path like /kubepods/burstable/podUID"
        ));
    }
    let path: PathBuf = Path::new(text)
        .components()
        .filter(|part| !matches!(part, Component::RootDir | Component::CurDir))
        .collect();
    let plain = path.components().all(|part| matches!(part, Component::Normal(_)));
    // A file name has at most 255 bytes; a line of /proc/PID/cgroup holds one path.
    let fits = path.iter().all(|part| part.len() <= 255) && text.len() <= 2048;
    if !plain || !fits || text.contains(['\0', '\n']) || path.as_os_str().is_empty() {
        return invalid(format!(
            "cgroup_parent {:?} is not a path: give one like /kubepods/burstable/podUID, without ..",
            text.chars().take(300).collect::<String>()
        ));
    }
    Ok(path)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("/kubepods/burstable/podx", Some("kubepods/burstable/podx"))]
    #[case("kubepods", Some("kubepods"))]
    #[case("//a/./b/", Some("a/b"))]
    #[case("/kubepods.slice/x", Some("kubepods.slice/x"))]
    #[case("kubepods-burstable.slice", None)]
    #[case("/", None)]
    #[case("/a/../..", None)]
    #[case("a\nb", None)]
    #[case("a\0b", None)]
    fn cgroup_parent_accepts_paths_only(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(parent(text).ok(), expected.map(PathBuf::from));
    }

    #[test]
    fn cgroup_parent_rejects_names_over_255_bytes() {
        assert!(parent(&"x".repeat(255)).is_ok());
        assert!(parent(&"x".repeat(256)).is_err());
        let sentence = parent(&"x/".repeat(1 << 20)).unwrap_err().to_string();
        assert!(sentence.len() < 500, "{}", sentence.len());
    }

    #[test]
    fn removal_spares_directories_that_existed_before() {
        let branch = |base: &str| Branch { base: base.into(), v2: false, controllers: [].into() };
        let cgroup = CgroupPath {
            tree: Tree { branches: vec![branch("/cpu"), branch("/pids")] },
            path: "kubepods/podx".into(),
            own: vec![0, 2],
        };
        let removed: Vec<_> = cgroup.removed().collect();
        assert_eq!(removed, ["/pids/kubepods/podx", "/pids/kubepods"].map(PathBuf::from));
        let container = cgroup.child("c");
        let removed: Vec<_> = container.removed().collect();
        assert_eq!(removed, ["/cpu/kubepods/podx/c", "/pids/kubepods/podx/c"].map(PathBuf::from));
    }
}
