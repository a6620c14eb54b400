//! The disk usage of container logs, and that of the machine's file systems.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Component, Path, PathBuf};

use agent::cri::stats::LayerStats;
use agent::cri::{ListedState, Lists};
use agent::observed::SandboxId;
use agent::storage::volumes::of_own_files;
use compact::Set;
use file_tree::mountinfo::mounts;
use jiff::Timestamp;

use super::summary::PodReference;

/// The unit of [`MetadataExt::blocks`].
const BLOCK: u64 = 512;

/// Whether a name from the runtime is a valid file name.
fn is_name(name: &str) -> bool {
    let mut components = Path::new(name).components();
    matches!((components.next(), components.next()), (Some(Component::Normal(_)), None))
}

/// The directory of a container's logs; `None` if a name from the runtime is not a valid file name.
pub(super) fn log_directory(logs: &Path, pod: &PodReference, container: &str) -> Option<PathBuf> {
    is_name(container).then_some(pod_log_directory(logs, pod)?.join(container))
}

fn pod_log_directory(logs: &Path, pod: &PodReference) -> Option<PathBuf> {
    let name = format!("{}_{}_{}", pod.namespace, pod.name, pod.uid);
    is_name(&name).then(|| logs.join(&name))
}

/// The disk usage of a pod's hosts file, and of the logs of the pod as a whole; `None` if it has neither.
pub(super) fn own_files(root_dir: &Path, logs: &Path, pod: &PodReference) -> Option<LayerStats> {
    let logs = pod_log_directory(logs, pod)?;
    let uid = Some(&pod.uid).filter(|uid| is_name(uid))?;
    let (bytes, inodes) = of_own_files(&root_dir.join("pods").join(uid).join("etc-hosts"), &logs);
    (inodes > 0).then(|| LayerStats {
        at: Timestamp::now(),
        used_bytes: Some(bytes),
        inodes_used: Some(inodes),
        ..LayerStats::default()
    })
}

/// ◆ The file systems of a mount table on devices and the root's, by the device, and those in memory, by the mount point (cAdvisor
/// 0.56, fs/fs.go processMounts and addSystemRootLabel), each with its mount point. Those of other machines, which may not respond,
/// and those of containers are left out.
pub(super) fn file_systems(table: &str) -> Vec<(String, PathBuf)> {
    let (mut found, mut known) = (Vec::new(), Set::new());
    for mount in mounts(table) {
        let device = match mount.kind {
            "tmpfs" => mount.at.clone(),
            kind if mount.at == "/" || is_on_device(kind) => mount.source,
            _ => continue,
        };
        if known.insert(device.clone()) {
            found.push((device, PathBuf::from(mount.at)));
        }
    }
    found
}

/// ◆ Whether cAdvisor measures file systems of this type, which are on devices (cAdvisor 0.56, fs/{vfs,btrfs,zfs}/plugin.go).
fn is_on_device(kind: &str) -> bool {
    let others = [
        "btrfs", "zfs", "xfs", "squashfs", "f2fs", "jfs", "reiserfs", "hfs", "hfsplus", "ntfs",
        "vfat", "fat", "msdos", "exfat", "udf", "iso9660",
    ];
    kind.starts_with("ext") || others.contains(&kind)
}

/// The disk usage of a container's logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogUsage {
    pub(crate) pod: PodReference,
    pub(crate) container: String,
    pub(crate) bytes: u64,
}

/// The usage of the logs of each running container. Logs that cannot be read are omitted.
pub(super) fn log_usage(logs_dir: &Path, (sandboxes, containers): &Lists) -> Vec<LogUsage> {
    let ready = sandboxes.iter().filter(|sandbox| sandbox.ready);
    let ready: Set<&SandboxId> = ready.map(|sandbox| &sandbox.id).collect();
    let running = containers.iter().filter(|container| {
        container.state == ListedState::Running && ready.contains(&container.sandbox_id)
    });
    let used = running.filter_map(|listed| {
        let pod = PodReference {
            name: listed.pod.name.clone(),
            namespace: listed.pod.namespace.clone(),
            uid: listed.pod.uid.as_str().to_owned(),
        };
        let container = listed.name.clone();
        let bytes = logs(&log_directory(logs_dir, &pod, &container)?)?.used_bytes?;
        Some(LogUsage { pod, container, bytes })
    });
    used.collect()
}

/// The disk usage of the files in a directory; `None` if it cannot be read.
pub(super) fn logs(directory: &Path) -> Option<LayerStats> {
    let files = std::fs::read_dir(directory).ok()?;
    let mut sum = LayerStats { at: Timestamp::now(), ..LayerStats::default() };
    let (mut bytes, mut inodes) = (0_u64, 0_u64);
    for file in files {
        // A file may have been rotated away; it counts as empty. Symbolic links are not followed.
        if let Ok(metadata) = file.and_then(|file| file.metadata())
            && !metadata.is_dir()
        {
            bytes = bytes.saturating_add(metadata.blocks().saturating_mul(BLOCK));
            inodes += 1;
        }
    }
    (sum.used_bytes, sum.inodes_used) = (Some(bytes), Some(inodes));
    Some(sum)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use agent::cri::{ListedContainer, ListedSandbox, PodRef};
    use agent::observed::ContainerId;
    use api::pod::PodUid;
    use rstest::rstest;

    use super::*;

    #[test]
    fn each_device_has_its_first_mount() {
        let table = "\
            22 1 8:1 / / rw shared:1 - ext4 /dev/sda1 rw\n\
            23 22 0:21 / /run rw - tmpfs tmpfs rw\n\
            24 22 8:1 /a /b rw - ext4 /dev/sda1 rw\n\
            25 22 0:22 / /data rw - nfs4 server:/data rw\n\
            26 22 0:23 / /c rw - overlay overlay rw\n\
            27 22 8:2 / /d rw - xfs /dev/sda2 rw\n";
        let expected = [("/dev/sda1", "/"), ("/run", "/run"), ("/dev/sda2", "/d")];
        let expected = expected.map(|(device, at)| (device.to_owned(), PathBuf::from(at)));
        assert_eq!(file_systems(table), expected);
    }

    #[rstest]
    #[case::boot("1 0 8:1 / /boot rw - vfat /dev/sda1 rw\n", Some("/dev/sda1"))]
    #[case::pool("1 0 0:9 / /data rw - zfs pool/data rw\n", Some("pool/data"))]
    #[case::root("1 0 0:9 / / rw - overlay overlay rw\n", Some("overlay"))]
    #[case::container("1 0 0:9 / /run/c/rootfs rw - overlay overlay rw\n", None)]
    #[case::kernel("1 0 0:9 / /proc rw - proc proc rw\n", None)]
    fn file_systems_on_devices_and_of_the_root_are_measured(
        #[case] table: &str,
        #[case] device: Option<&str>,
    ) {
        let found = file_systems(table);
        let devices: Vec<&str> = found.iter().map(|(device, _)| device.as_str()).collect();
        assert_eq!(devices, Vec::from_iter(device));
    }

    #[rstest]
    #[case("ns", "app", Some("/logs/ns_p_u/app"))]
    #[case("ns", "..", None)]
    #[case("ns", "a/b", None)]
    #[case("../ns", "app", None)]
    #[case("ns", "", None)]
    fn names_of_other_directories_are_refused(
        #[case] namespace: &str,
        #[case] container: &str,
        #[case] expected: Option<&str>,
    ) {
        let pod = PodReference {
            name: "p".to_owned(),
            namespace: namespace.to_owned(),
            uid: "u".to_owned(),
        };
        let directory = log_directory(Path::new("/logs"), &pod, container);
        assert_eq!(directory.as_deref(), expected.map(Path::new));
    }

    #[test]
    fn logs_take_the_blocks_of_their_files() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("0.log"), vec![b'x'; 5000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", directory.path().join("link")).unwrap();
        let used = logs(directory.path()).unwrap();
        assert!(used.used_bytes >= Some(5000), "{used:?}");
        assert_eq!(used.inodes_used, Some(2));
        assert_eq!(logs(&directory.path().join("none")), None);
    }

    #[test]
    fn running_containers_have_log_usage() {
        let directory = tempfile::tempdir().unwrap();
        let at = Timestamp::UNIX_EPOCH;
        let pod = |name: &str| PodRef {
            uid: PodUid::new(format!("uid-{name}")),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            agent: None,
        };
        let sandbox = |name: &str, ready| ListedSandbox {
            id: SandboxId::new(name),
            pod: pod(name),
            ready,
            created_at: at,
        };
        let container = |of: &str, name: &str, state| ListedContainer {
            id: ContainerId::new(name),
            sandbox_id: SandboxId::new(of),
            pod: pod(of),
            name: name.to_owned(),
            state,
            created_at: at,
        };
        for path in ["ns_web_uid-web/app", "ns_web_uid-web/init", "ns_old_uid-old/app"] {
            let path = directory.path().join(path);
            std::fs::create_dir_all(&path).unwrap();
            std::fs::write(path.join("0.log"), vec![b'x'; 5000]).unwrap();
        }
        let lists = (
            vec![sandbox("web", true), sandbox("old", false)],
            vec![
                container("web", "app", ListedState::Running),
                container("web", "init", ListedState::Exited),
                container("web", "silent", ListedState::Running),
                container("old", "app", ListedState::Running),
            ],
        );
        let used = log_usage(directory.path(), &lists);
        let names: Vec<_> =
            used.iter().map(|one| (one.pod.uid.as_str(), one.container.as_str())).collect();
        assert_eq!(names, [("uid-web", "app")]);
        assert!(used[0].bytes >= 5000, "{used:?}");
    }
}
