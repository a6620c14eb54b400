//! The disk usage of a pod's directory trees.

use std::io;
use std::path::Path;

use compact::Set;
use file_tree::{Entry, Errno, Mounts, Visitor};
use k8s_openapi::api::core::v1::Pod;

use super::{component, content, directory, in_memory};
use crate::pod_spec::spec::memory::is_in_memory;

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

#[derive(Default)]
struct Sum {
    bytes: u64,
    inodes: u64,
    /// Files with several links, which are counted once.
    linked: Set<(u64, u64)>,
}

impl Visitor for Sum {
    fn visit(&mut self, entry: &Entry<'_>) -> Result<(), Errno> {
        // A removed file uses nothing.
        let Ok(stat) = entry.stat() else {
            return Ok(());
        };
        let counts = entry.is_directory()
            || stat.st_nlink < 2
            || self.linked.insert((stat.st_dev, stat.st_ino));
        if counts {
            let blocks = u64::try_from(stat.st_blocks).unwrap_or_default();
            self.inodes += 1;
            self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
        }
        Ok(())
    }
}

/// The disk usage of a directory's content in bytes; 0 if there is no such directory. Other mounts are ignored.
pub(crate) fn of_tree(path: &Path) -> io::Result<u64> {
    Ok(sum(path)?.map_or(0, |sum| sum.bytes))
}

/// The disk usage of a directory's content in bytes and inodes; `None` if it cannot be read.
pub(crate) fn of_directory(path: &Path) -> Option<(u64, u64)> {
    let sum = sum(path).ok().flatten()?;
    Some((sum.bytes, sum.inodes))
}

/// `None` if there is no such directory.
fn sum(path: &Path) -> io::Result<Option<Sum>> {
    let top = match file_tree::open(path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let mut sum = Sum::default();
    file_tree::walk(top, Mounts::Stay, &mut sum)?;
    Ok(Some(sum))
}

/// A volume's usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume's name.
    pub name: String,
    /// Whether it is on the disk of the agent's directory, not in memory.
    pub on_disk: bool,
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
}

/// The usage of the volumes that an agent with this root directory keeps for a pod: emptyDirs that the runtime does not keep,
/// ConfigMaps, Secrets, fields of the pod, and projected volumes. Other and unreadable volumes are ignored. It blocks.
#[must_use]
pub fn of_volumes(root_dir: &Path, pod: &Pod) -> Vec<VolumeUsage> {
    let uid = component(pod.metadata.uid.as_deref().unwrap_or_default());
    let on_disk = root_dir.join("pods").join(&uid);
    let in_memory = in_memory::directory(root_dir).join(&uid);
    let volumes = pod.spec.iter().flat_map(|spec| spec.volumes.iter().flatten());
    let measured = volumes.filter_map(|volume| {
        let paths = match (content::kind(volume), &volume.empty_dir) {
            (Some(kind), _) => [(true, &on_disk), (false, &in_memory)]
                .map(|(on_disk, of)| (on_disk, of.join("volumes").join(kind).join(&volume.name)))
                .to_vec(),
            (None, Some(empty)) if is_in_memory(empty) => {
                vec![(false, directory::empty_dir(&in_memory, &volume.name))]
            }
            (None, Some(_)) => vec![(true, directory::empty_dir(&on_disk, &volume.name))],
            (None, None) => Vec::new(),
        };
        paths.into_iter().find_map(|(on_disk, path)| {
            let Sum { bytes, inodes, .. } = sum(&path).ok().flatten()?;
            Some(VolumeUsage { name: volume.name.clone(), on_disk, bytes, inodes })
        })
    });
    measured.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::fs;

    use serde_json::json;

    use super::*;

    #[test]
    fn blocks_are_counted_once_for_all_hard_links() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(of_tree(&root.path().join("none")).unwrap(), 0);
        fs::create_dir(root.path().join("d")).unwrap();
        let file = root.path().join("d/f");
        fs::write(&file, vec![1; 1 << 20]).unwrap();
        let one = of_tree(root.path()).unwrap();
        assert!((1 << 20..1 << 21).contains(&one), "{one}");
        fs::hard_link(&file, root.path().join("again")).unwrap();
        assert_eq!(of_tree(root.path()).unwrap(), one);
        let sparse = fs::File::create(root.path().join("sparse")).unwrap();
        sparse.set_len(1 << 30).unwrap();
        assert_eq!(of_tree(root.path()).unwrap(), one);
    }

    #[test]
    fn volumes_are_measured_where_the_agent_keeps_them() {
        let root = tempfile::tempdir().unwrap();
        let of_pod = root.path().join("pods/u1/volumes/kubernetes.io~empty-dir/data");
        fs::create_dir_all(&of_pod).unwrap();
        fs::write(of_pod.join("f"), vec![1; 1 << 20]).unwrap();
        let of_secret = root.path().join("memory/u1/volumes/kubernetes.io~secret/login");
        fs::create_dir_all(&of_secret).unwrap();
        fs::write(of_secret.join("password"), "x").unwrap();
        let of_runtime = json!({"name": "of-runtime", "emptyDir": {"medium": "Memory"}});
        fs::create_dir_all(root.path().join("memory/u1/volumes/kubernetes.io~empty-dir/memory"))
            .unwrap();
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"uid": "u1"},
            "spec": {"containers": [], "volumes": [
                {"name": "data", "emptyDir": {}},
                {"name": "none", "emptyDir": {}},
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                of_runtime,
                {"name": "login", "secret": {"secretName": "login"}},
                {"name": "host", "hostPath": {"path": "/"}},
            ]},
        }))
        .unwrap();
        let found = of_volumes(root.path(), &pod);
        let names: Vec<(&str, bool, u64)> =
            found.iter().map(|one| (one.name.as_str(), one.on_disk, one.inodes)).collect();
        assert_eq!(names, [("data", true, 1), ("memory", false, 0), ("login", false, 1)]);
        assert!(found[0].bytes >= 1 << 20, "{found:?}");
    }
}
