//! The target path of a volume in a pod, and the record that is written before it is published: next to a mount point, or, for a
//! block device, the record of the volume and a link in the pod's directory, which the containers get.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_block.go; pkg/volume/util/volumepathhandler. The kubelet also bind mounts the
//! device in the volume's directory `dev`, which protects it from removal; the agent mounts nothing.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, symlink};
use std::path::{Path, PathBuf};

use agent::storage::drivers::DriverStep;

use crate::names::{VolumeKey, device_record, device_targets, devices, devices_of_pod, target};
use crate::record::{self, Found, Record, directories, ignore_not_found};
use crate::request::PodVolume;

/// The location of a pod's volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct VolumePaths {
    /// The target path, at which the driver publishes it.
    pub(crate) target: PathBuf,
    device: Option<DevicePlace>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct DevicePlace {
    link: PathBuf,
    /// The directory of the record.
    record: PathBuf,
    /// The name of the PersistentVolume.
    name: String,
}

impl VolumePaths {
    /// The location of a volume in the pod with this directory.
    pub(crate) fn of(root: &Path, pod_dir: &Path, pod_volume: &PodVolume) -> Self {
        match &pod_volume.key.device {
            Some(name) => Self::of_device(root, pod_dir, name),
            None => Self::of_mount(pod_dir, &pod_volume.spec_name),
        }
    }

    /// The location of a file system volume.
    pub(crate) fn of_mount(pod_dir: &Path, spec_name: &str) -> Self {
        Self { target: target(pod_dir, spec_name), device: None }
    }

    /// The location of the block device of a PersistentVolume.
    pub(crate) fn of_device(root: &Path, pod_dir: &Path, name: &str) -> Self {
        // The directory's name is the pod's uid.
        let uid = pod_dir.file_name().unwrap_or_default();
        Self {
            target: device_targets(root, name).join(uid),
            device: Some(DevicePlace {
                link: devices_of_pod(pod_dir).join(name),
                record: device_record(root, name),
                name: name.to_owned(),
            }),
        }
    }

    /// The path that the pod's containers get.
    pub(crate) fn container_path(&self) -> &Path {
        self.device.as_ref().map_or(&self.target, |device| &device.link)
    }

    /// The step that unmounts the volume, and the path that identifies it.
    pub(crate) fn teardown(&self) -> (DriverStep, &Path) {
        match &self.device {
            None => (DriverStep::TearDown, parent(&self.target)),
            Some(device) => (DriverStep::UnmapDevice, &device.link),
        }
    }

    /// Reads the record of the volume.
    pub(crate) fn read(&self) -> Found {
        let Some(device) = &self.device else {
            return record::read(parent(&self.target));
        };
        match fs::symlink_metadata(&device.link) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Missing,
            Err(error) => return Found::Unreadable(error),
            Ok(_) => {}
        }
        match read_device(&device.record, &device.name) {
            // The link exists, so the volume may be published, but the missing record does not tell which volume it is.
            Found::Missing => Found::Unreadable(io::ErrorKind::NotFound.into()),
            found @ (Found::Record(_) | Found::Unreadable(_)) => found,
        }
    }

    /// The volume that is, or may be, published there.
    pub(crate) fn key(&self) -> Option<VolumeKey> {
        match self.read() {
            Found::Record(Record { key, .. }) => Some(key),
            Found::Missing | Found::Unreadable(_) => None,
        }
    }

    /// Records that the volume may be published from now on.
    pub(crate) fn prepare(&self, pod_volume: &PodVolume, node: &str) -> io::Result<()> {
        make_directory(parent(&self.target))?;
        let Some(device) = &self.device else {
            return record::write_published(pod_volume, &self.target, node);
        };
        make_directory(&device.record)?;
        record::write_device(pod_volume, &device.record, node)?;
        make_directory(parent(&device.link))?;
        ignore_not_found(fs::remove_file(&device.link))?;
        symlink(&self.target, &device.link)
    }

    /// The directory to search for mounts: that of the record, because the mount point itself may be on a file system that hangs.
    pub(crate) fn may_have_mounts(&self) -> &Path {
        if self.device.is_some() { &self.target } else { parent(&self.target) }
    }

    /// Removes the files of an unpublished volume.
    pub(crate) fn remove(&self) -> io::Result<()> {
        match &self.device {
            None => record::remove(&self.target),
            Some(device) => {
                ignore_not_found(fs::remove_file(&self.target))?;
                ignore_not_found(fs::remove_file(&device.link))
            }
        }
    }
}

/// Records that a volume may be staged, and creates its staging directory.
pub(crate) fn prepare_staging(pod_volume: &PodVolume, root: &Path, node: &str) -> io::Result<()> {
    let staging = pod_volume.key.staging(root);
    make_directory(&staging)?;
    let Some(name) = &pod_volume.key.device else {
        return record::write_staged(&pod_volume.key, &staging);
    };
    let directory = device_record(root, name);
    make_directory(&directory)?;
    record::write_device(pod_volume, &directory, node)
}

/// Removes the files of an unstaged volume that no pod uses.
pub(crate) fn remove_staging(key: &VolumeKey, root: &Path) -> io::Result<()> {
    let staging = key.staging(root);
    let Some(name) = &key.device else {
        return record::remove(&staging);
    };
    ignore_not_found(fs::remove_dir(&staging))?;
    remove_device(root, name)
}

/// Removes the directories of a block device that no pod uses.
pub(crate) fn remove_device(root: &Path, name: &str) -> io::Result<()> {
    let record = device_record(root, name);
    ignore_not_found(fs::remove_dir(device_targets(root, name)))?;
    record::remove_record(&record)?;
    let directory = parent(&record);
    // A kubelet may have created it.
    ignore_not_found(fs::remove_dir(directory.join("dev")))?;
    ignore_not_found(fs::remove_dir(directory))
}

/// Reads the record of a block device.
fn read_device(directory: &Path, name: &str) -> Found {
    match record::read(directory) {
        Found::Record(record) => {
            let key = VolumeKey { device: Some(name.to_owned()), ..record.key };
            Found::Record(Record { key, ..record })
        }
        found @ (Found::Missing | Found::Unreadable(_)) => found,
    }
}

/// The locations of all volumes in the pod with this directory.
pub(crate) fn of_pod(root: &Path, pod_dir: &Path) -> io::Result<Vec<VolumePaths>> {
    let mounts = record::of_pod(pod_dir)?.into_iter();
    let mounts =
        mounts.map(|directory| VolumePaths { target: directory.join("mount"), device: None });
    let devices = directories(&devices_of_pod(pod_dir))?.into_iter();
    let devices = devices.map(|link| {
        let name = link.file_name().unwrap_or_default().to_string_lossy();
        VolumePaths::of_device(root, pod_dir, &name)
    });
    Ok(mounts.chain(devices).collect())
}

/// The records of block volumes, with their directories.
pub(crate) fn device_records(root: &Path) -> io::Result<Vec<(PathBuf, Found)>> {
    let (directory, is_volume) = devices(root);
    let mut records = Vec::new();
    for path in directories(&directory)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if is_volume(&name) {
            let directory = device_record(root, &name);
            let found = read_device(&directory, &name);
            records.push((directory, found));
        }
    }
    Ok(records)
}

/// The block volumes with a readable record.
pub(crate) fn recorded_devices(root: &Path) -> io::Result<Vec<VolumeKey>> {
    let mut keys = Vec::new();
    for (_, found) in device_records(root)? {
        if let Found::Record(Record { key, .. }) = found {
            keys.push(key);
        }
    }
    Ok(keys)
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o750).create(path)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::request::fixtures::wanted_device;

    #[test]
    fn device_record_is_removed_with_last_pod() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let pod = |uid: &str| root.join("pods").join(uid);
        let pod_volume = wanted_device("pv");
        let paths = |uid: &str| VolumePaths::of(root, &pod(uid), &pod_volume);
        assert!(matches!(paths("u1").read(), Found::Missing));
        prepare_staging(&pod_volume, root, "n1").unwrap();
        fs::write(pod_volume.key.staging(root).join("of-driver"), "").unwrap();
        for uid in ["u1", "u2"] {
            paths(uid).prepare(&pod_volume, "n1").unwrap();
            // Again, as after a crash of the agent.
            paths(uid).prepare(&pod_volume, "n1").unwrap();
            assert_eq!(paths(uid).key(), Some(pod_volume.key.clone()));
            assert_eq!(of_pod(root, &pod(uid)).unwrap(), [paths(uid)]);
        }
        assert_eq!(fs::read_link(paths("u1").container_path()).unwrap(), paths("u1").target);
        assert_eq!(recorded_devices(root).unwrap(), std::slice::from_ref(&pod_volume.key));
        fs::write(&paths("u1").target, "").unwrap();
        paths("u1").remove().unwrap();
        assert!(matches!(paths("u1").read(), Found::Missing));
        assert_eq!(paths("u2").key(), Some(pod_volume.key.clone()));
        paths("u2").remove().unwrap();
        assert!(remove_staging(&pod_volume.key, root).is_err(), "it may be staged");
        fs::remove_file(pod_volume.key.staging(root).join("of-driver")).unwrap();
        remove_staging(&pod_volume.key, root).unwrap();
        assert_eq!(recorded_devices(root).unwrap(), []);
        assert_eq!(fs::read_dir(devices(root).0.join("staging")).unwrap().count(), 0);
        remove_device(root, "pv").unwrap();
    }

    #[test]
    fn device_without_record_is_unreadable() {
        let root = tempfile::tempdir().unwrap();
        let pod_volume = wanted_device("pv");
        let paths = VolumePaths::of(root.path(), &root.path().join("pods/u1"), &pod_volume);
        paths.prepare(&pod_volume, "n1").unwrap();
        record::remove_record(&device_record(root.path(), "pv")).unwrap();
        assert!(matches!(paths.read(), Found::Unreadable(_)));
    }

    #[test]
    fn device_of_a_kubelet_is_found() {
        let root = tempfile::tempdir().unwrap();
        let directory = device_record(root.path(), "pv");
        fs::create_dir_all(&directory).unwrap();
        let text = r#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h"}"#;
        fs::write(directory.join("vol_data.json"), text).unwrap();
        assert_eq!(recorded_devices(root.path()).unwrap(), [wanted_device("pv").key]);
    }
}
