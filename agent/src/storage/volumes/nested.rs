//! Mount points inside volumes that the agent writes: containers cannot create any there.
//!
//! Source: Kubernetes 1.36, pkg/volume/util/nested_volumes.go, MakeNestedMountpoints. It ignores subPath; the agent creates such
//! mount points in the mounted part.

use std::fs;
use std::path::{Component, Path, PathBuf};

use api::pod::Pod;
use compact::Set;
use k8s_openapi::api::core::v1::Container;

use super::VolumeError;
use super::content::Payload;
use super::directory::make_dir;

/// A path in a volume at which a container mounts another one.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MountPoint {
    path: PathBuf,
    /// Whether the container mounts only a part of the volume.
    in_part: bool,
}

impl MountPoint {
    /// ◆ Whether to create it before the files are written, so that it hides a file of the same name, as in a kubelet. A mount
    /// point in a subPath is created in the directory of the files: instead of the link to that directory, it would hide the files
    /// of the subPath.
    pub(super) fn precedes(&self, files: &Payload) -> bool {
        let first = self.path.iter().next();
        let mut in_directories = files.keys().filter(|file| file.iter().nth(1).is_some());
        !self.in_part || in_directories.all(|file| file.iter().next() != first)
    }
}

/// ◆ The paths at which containers mount other volumes below this one. Paths below another mount are not in this volume.
pub(super) fn mount_points(pod: &Pod, volume: &str) -> Set<MountPoint> {
    pod.all_containers().flat_map(|(_, container)| of_container(container, volume)).collect()
}

fn of_container(container: &Container, volume: &str) -> Vec<MountPoint> {
    let mounts = || container.volume_mounts.iter().flatten();
    let mut all: Vec<PathBuf> = mounts().map(|mount| clean(&mount.mount_path)).collect();
    all.sort();
    let mut found = Vec::new();
    for outer in mounts().filter(|mount| mount.name == volume) {
        let at = clean(&outer.mount_path);
        let part = clean(outer.sub_path.as_deref().unwrap_or_default());
        let mut last: Option<&Path> = None;
        for inner in all.iter().filter(|inner| **inner != at) {
            let Ok(below) = inner.strip_prefix(&at) else { continue };
            if last.is_none_or(|last| !inner.starts_with(last)) {
                let in_part = part.components().next().is_some();
                found.push(MountPoint { path: part.join(below), in_part });
                last = Some(inner);
            }
        }
    }
    found
}

/// The path without a leading slash, and without `.` and `..`.
fn clean(path: &str) -> PathBuf {
    let mut clean = PathBuf::new();
    for part in Path::new(path).components() {
        match part {
            Component::Normal(name) => clean.push(name),
            Component::ParentDir => drop(clean.pop()),
            Component::CurDir | Component::RootDir | Component::Prefix(_) => {}
        }
    }
    clean
}

/// Creates the mount points. Existing ones stay, even files: a file may be mounted over a file.
pub(super) fn make<'m>(
    volume: &Path,
    mount_points: impl IntoIterator<Item = &'m MountPoint>,
) -> Result<(), VolumeError> {
    for mount_point in mount_points {
        let mut at = volume.to_owned();
        for name in &mount_point.path {
            at.push(name);
            if fs::metadata(&at).is_err() {
                make_dir(&at, 0o755)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures::pod_of;

    /// The mounts of each container as `volume path [part]`; the test is about those of `v`.
    #[rstest]
    #[case::none("v /a, w /b, w /ab/c", &[])]
    #[case::below("v /a, w /a/b/", &["b"])]
    #[case::deeper("w /a/b/c, v /a/./", &["b/c"])]
    #[case::of_the_mount_below("v /a, w /a/b, x /a/b/c, x /a/bc", &["b", "bc"])]
    #[case::shared("v /a, w /a/b; v /c, w /c/b, w /c/d", &["b", "d"])]
    #[case::in_itself("v /a, v /a/b", &["b"])]
    #[case::twice("v /a, v /c, w /a/b, w /c/d", &["b", "d"])]
    #[case::of_a_part("v /a p, w /a/b", &["p/b"])]
    #[case::root("v /, w /b", &["b"])]
    #[case::upward("v /a, w /a/../../a/b", &["b"])]
    #[case::another_one("w /a, v /a/b", &[])]
    fn mount_points_are_in_the_volume(#[case] containers: &str, #[case] expected: &[&str]) {
        let mount = |text: &str| {
            let mut words = text.split(' ');
            let mut next = || words.next();
            json!({"name": next(), "mountPath": next(), "subPath": next()})
        };
        let containers = (0..).zip(containers.split("; ")).map(|(number, mounts)| {
            let mounts: Vec<Value> = mounts.split(", ").map(mount).collect();
            json!({"name": format!("c{number}"), "volumeMounts": mounts})
        });
        let pod = pod_of("u1", "p", json!({"containers": containers.collect::<Vec<_>>()}));
        let found = mount_points(&pod, "v");
        let paths = found.iter().map(|found| found.path.as_path());
        assert!(paths.eq(expected.iter().map(Path::new)), "{found:?}");
    }
}
