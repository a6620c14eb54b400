//! ◆ The names and directories of volumes, in the kubelet's format, so that a kubelet that replaces the agent finds the mounts,
//! and vice versa. Pure.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/{csi_attacher,csi_mounter,csi_plugin,csi_util}.go; pkg/volume/util/util.go
//! GetUniqueVolumeName.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use agent::storage::drivers::DIRECTORY;
use sha2::{Digest as _, Sha256};

/// The directory of staged volumes, below the agent's.
pub(crate) const STAGING: &str = "plugins/kubernetes.io/csi";

/// The directory of block volumes, below the agent's. Each has a directory with the name of its PersistentVolume.
const DEVICES: &str = "plugins/kubernetes.io/csi/volumeDevices";

/// Directories in [`DEVICES`] that do not belong to a volume.
const DEVICE_STAGING: &str = "staging";
const DEVICE_PUBLISH: &str = "publish";

/// The staging path of a volume, below its directory in [`STAGING`].
const GLOBAL_MOUNT: &str = "globalmount";

/// A volume of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeKey {
    /// The driver's name.
    pub(crate) driver: String,
    /// The volume's handle in the driver.
    pub(crate) handle: String,
    /// The name of the PersistentVolume, if it is a block volume.
    pub(crate) device: Option<String>,
}

impl VolumeKey {
    /// The name of an attachable volume in the node's status.
    pub(crate) fn unique_name(&self) -> String {
        format!("kubernetes.io/csi/{}^{}", self.driver, self.handle)
    }

    /// The name of the VolumeAttachment for a node.
    pub(crate) fn attachment(&self, node: &str) -> String {
        format!("csi-{}", sha256(&[&self.handle, &self.driver, node]))
    }

    /// Driver and handle, which identify the volume in calls.
    pub(crate) fn of_driver(&self) -> (String, String) {
        (self.driver.clone(), self.handle.clone())
    }

    /// The staging path, below the agent's directory.
    pub(crate) fn staging(&self, root: &Path) -> PathBuf {
        if let Some(name) = &self.device {
            return root.join(DEVICES).join(DEVICE_STAGING).join(name);
        }
        let directory = root.join(STAGING).join(&self.driver);
        directory.join(sha256(&[&self.handle])).join(GLOBAL_MOUNT)
    }
}

/// The handle of an inline volume.
pub(crate) fn inline_handle(pod_uid: &str, name: &str) -> String {
    format!("csi-{}", sha256(&[pod_uid, name]))
}

/// The directory of CSI volumes below a pod's directory.
pub(crate) fn volumes_of_pod(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumes").join(DIRECTORY)
}

/// The target path of a volume in a pod. Its parent directory has the record.
pub(crate) fn target(pod_dir: &Path, spec_name: &str) -> PathBuf {
    volumes_of_pod(pod_dir).join(spec_name.replace('/', "~")).join("mount")
}

/// The directory of the record of a block volume, by the name of its PersistentVolume.
pub(crate) fn device_record(root: &Path, name: &str) -> PathBuf {
    root.join(DEVICES).join(name).join("data")
}

/// The directory in which a block device is published for pods. Each pod's file has the pod's uid as name.
pub(crate) fn device_targets(root: &Path, name: &str) -> PathBuf {
    root.join(DEVICES).join(DEVICE_PUBLISH).join(name)
}

/// The directory of a pod's block devices: links to the published devices.
pub(crate) fn devices_of_pod(pod_dir: &Path) -> PathBuf {
    pod_dir.join("volumeDevices").join(DIRECTORY)
}

/// The directory of block volumes, and a predicate for names in it that belong to a volume.
pub(crate) fn devices(root: &Path) -> (PathBuf, fn(&str) -> bool) {
    (root.join(DEVICES), |name| !matches!(name, DEVICE_STAGING | DEVICE_PUBLISH))
}

/// Whether a name is a single path component. Only manifests that no API server has validated contain other names.
pub(crate) fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// The hexadecimal digest of the concatenated texts.
fn sha256(texts: &[&str]) -> String {
    let mut hasher = Sha256::new();
    for text in texts {
        hasher.update(text.as_bytes());
    }
    let mut digits = String::with_capacity(64);
    for byte in hasher.finalize() {
        // Writing to a string cannot fail.
        let _ = write!(digits, "{byte:02x}");
    }
    digits
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The digests are sha256sum(1)'s for `vol-1d.examplen1`, `vol-1` and `u1data`.
    #[test]
    fn names_equal_the_kubelets() {
        let key =
            VolumeKey { driver: "d.example".to_owned(), handle: "vol-1".to_owned(), device: None };
        assert_eq!(key.unique_name(), "kubernetes.io/csi/d.example^vol-1");
        assert_eq!(
            key.attachment("n1"),
            "csi-2403980985f4a2f14fca5ef1efa9ccc39b35027f8eeead24a448d2659ba4bd58"
        );
        assert_eq!(
            key.staging(Path::new("/r")),
            Path::new(
                "/r/plugins/kubernetes.io/csi/d.example/d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49/globalmount"
            )
        );
        assert_eq!(
            inline_handle("u1", "data"),
            "csi-394e2f1c7e9d97fca241351d1f3fe5e473d332141cbc3a61861a8e3a8a0caf84"
        );
        assert_eq!(
            target(Path::new("/r/pods/u1"), "pv/a"),
            Path::new("/r/pods/u1/volumes/kubernetes.io~csi/pv~a/mount")
        );
    }

    #[test]
    fn block_device_paths_equal_the_kubelets() {
        let root = Path::new("/r");
        let (driver, handle) = ("d".to_owned(), "h".to_owned());
        let key = VolumeKey { driver, handle, device: Some("pv".to_owned()) };
        let at = Path::new("/r/plugins/kubernetes.io/csi/volumeDevices");
        assert_eq!(key.unique_name(), "kubernetes.io/csi/d^h");
        assert_eq!(key.staging(root), at.join("staging/pv"));
        assert_eq!(device_targets(root, "pv"), at.join("publish/pv"));
        assert_eq!(device_record(root, "pv"), at.join("pv/data"));
        let links = devices_of_pod(Path::new("/r/pods/u1"));
        assert_eq!(links, Path::new("/r/pods/u1/volumeDevices/kubernetes.io~csi"));
        let (directory, is_volume) = devices(root);
        let volumes = ["staging", "publish", "pv"].map(is_volume);
        assert_eq!((directory.as_path(), volumes), (at, [false, false, true]));
    }

    #[rstest]
    #[case("hostpath.csi.k8s.io", true)]
    #[case("", false)]
    #[case("..", false)]
    #[case("a/b", false)]
    fn is_file_name_rejects_path_separators(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(is_file_name(name), expected);
    }
}
