//! The disk usage of a pod's directory trees.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use file_tree::{Entry, Errno, Mounts, Visitor};
use k8s_openapi::api::core::v1::Pod;

use super::{component, content, directory, in_memory};
use crate::local_node::eviction::local_storage::is_ephemeral;
use crate::pod_spec::spec::memory::is_in_memory;

/// The unit of `st_blocks`.
const BLOCK: u64 = 512;

#[derive(Default)]
struct Sum {
    bytes: u64,
    inodes: u64,
    /// Files with several links, which are counted once. A container can create millions of them: `compact::Set` would move all
    /// later ones at each insertion.
    linked: HashSet<(u64, u64)>,
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
            self.add(u64::try_from(stat.st_blocks).unwrap_or_default());
        }
        Ok(())
    }
}

impl Sum {
    /// Adds a file or directory of this many blocks.
    fn add(&mut self, blocks: u64) {
        self.inodes += 1;
        self.bytes = self.bytes.saturating_add(blocks.saturating_mul(BLOCK));
    }
}

/// The disk usage of a volume in bytes and inodes, which includes its directory (pkg/volume/util/fs/fs.go DiskUsage); `None` if
/// there is no such directory.
pub(crate) fn of_volume(path: &Path) -> io::Result<Option<(u64, u64)>> {
    let Some(mut sum) = sum(path)? else {
        return Ok(None);
    };
    sum.add(fs::symlink_metadata(path)?.blocks());
    Ok(Some((sum.bytes, sum.inodes)))
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

/// The disk usage in bytes and inodes of a pod's hosts file, and of the files in its directory of logs, which are logs of the pod
/// as a whole. Those of containers are in directories, which are ignored. It blocks.
#[must_use]
pub fn of_own_files(etc_hosts: &Path, logs: &Path) -> (u64, u64) {
    let logs = fs::read_dir(logs).into_iter().flatten().flatten();
    let logs = logs.filter_map(|file| file.metadata().ok()).filter(|found| !found.is_dir());
    let files = fs::symlink_metadata(etc_hosts).into_iter().chain(logs);
    files.fold((0_u64, 0_u64), |(bytes, inodes), found| {
        (bytes.saturating_add(found.blocks().saturating_mul(BLOCK)), inodes + 1)
    })
}

/// A volume's usage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeUsage {
    /// The volume's name.
    pub name: String,
    /// Whether it is on the disk of the agent's directory, not in memory.
    pub on_disk: bool,
    /// Whether it counts as ephemeral storage of the pod.
    pub ephemeral: bool,
    /// Bytes.
    pub bytes: u64,
    /// Files and directories.
    pub inodes: u64,
    /// How long the measurement took.
    pub took: Duration,
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
            let since = Instant::now();
            let (bytes, inodes) = of_volume(&path).ok().flatten()?;
            let (name, ephemeral) = (volume.name.clone(), is_ephemeral(volume));
            Some(VolumeUsage { name, on_disk, ephemeral, bytes, inodes, took: since.elapsed() })
        })
    });
    measured.collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

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

    /// With a sorted list of inodes, this takes minutes.
    #[test]
    fn million_files_with_several_links_are_counted_in_linear_time() {
        let mut sum = Sum::default();
        assert!((0..1_u64 << 20).rev().all(|inode| sum.linked.insert((1, inode))));
    }

    #[test]
    fn own_files_are_hosts_file_and_logs_beside_those_of_containers() {
        let root = tempfile::tempdir().unwrap();
        let (hosts, logs) = (root.path().join("etc-hosts"), root.path().join("logs"));
        assert_eq!(of_own_files(&hosts, &logs), (0, 0));
        fs::create_dir_all(logs.join("app")).unwrap();
        fs::write(logs.join("app/0.log"), vec![1; 1 << 20]).unwrap();
        assert_eq!(of_own_files(&hosts, &logs), (0, 0));
        fs::write(&hosts, vec![1; 5000]).unwrap();
        fs::write(logs.join("shim.log"), vec![1; 5000]).unwrap();
        let (bytes, inodes) = of_own_files(&hosts, &logs);
        assert!((10_000..1 << 20).contains(&bytes), "{bytes}");
        assert_eq!(inodes, 2);
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
        let names: Vec<(&str, bool, bool, u64)> = found
            .iter()
            .map(|one| (one.name.as_str(), one.on_disk, one.ephemeral, one.inodes))
            .collect();
        let expected =
            [("data", true, true, 2), ("memory", false, false, 1), ("login", false, false, 2)];
        assert_eq!(names, expected);
        assert!(found[0].bytes >= 1 << 20, "{found:?}");
    }
}
