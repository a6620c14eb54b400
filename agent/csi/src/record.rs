//! The record of a volume next to its mount point (`vol_data.json`), in the kubelet's format. It is written before the driver
//! mounts, and removed after the driver has unmounted, so that each mount has a record.
//!
//! Source: Kubernetes 1.36, pkg/volume/csi/csi_util.go saveVolumeData, csi_plugin.go volDataKey.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::names::{STAGING, VolumeKey, volumes_of_pod};
use crate::request::PodVolume;

/// The file name.
pub(crate) const FILE: &str = "vol_data.json";

/// An existing record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: VolumeKey,
    /// Whether the volume is bound to a claim: other volumes are never staged.
    pub(crate) is_persistent: bool,
}

/// The result of a search for a record in a directory.
#[derive(Debug)]
pub(crate) enum Found {
    Record(Record),
    /// There is no record.
    Missing,
    /// The record cannot be read, or does not identify a volume.
    Unreadable(io::Error),
}

/// Records that a volume is published at `target` for a pod on this node.
pub(crate) fn write_published(pod_volume: &PodVolume, target: &Path, node: &str) -> io::Result<()> {
    write(
        target,
        &json!({
            "specVolID": pod_volume.spec_name,
            "volumeHandle": pod_volume.key.handle,
            "driverName": pod_volume.key.driver,
            "nodeName": node,
            "attachmentID": pod_volume.key.attachment(node),
            "volumeLifecycleMode": pod_volume.mode(),
        }),
    )
}

/// Records that a volume is staged at `staging`.
pub(crate) fn write_staged(key: &VolumeKey, staging: &Path) -> io::Result<()> {
    write(staging, &json!({"volumeHandle": key.handle, "driverName": key.driver}))
}

/// Records in a directory that a volume is, or may be, published as a block device for pods on this node.
pub(crate) fn write_device(pod_volume: &PodVolume, directory: &Path, node: &str) -> io::Result<()> {
    write_in(
        directory,
        &json!({
            "specVolID": pod_volume.spec_name,
            "volumeHandle": pod_volume.key.handle,
            "driverName": pod_volume.key.driver,
            "nodeName": node,
            "attachmentID": pod_volume.key.attachment(node),
        }),
    )
}

/// Writes the record next to a mount point.
fn write(mount_point: &Path, record: &Value) -> io::Result<()> {
    write_in(parent(mount_point), record)
}

/// Atomically writes the record in a directory.
fn write_in(directory: &Path, record: &Value) -> io::Result<()> {
    let new = directory.join(format!(".{FILE}.new"));
    fs::write(&new, format!("{record}\n"))?;
    fs::rename(new, directory.join(FILE))
}

/// Reads the record in a directory.
pub(crate) fn read(directory: &Path) -> Found {
    let text = match fs::read_to_string(directory.join(FILE)) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Missing,
        Err(error) => return Found::Unreadable(error),
    };
    let parsed = || {
        let record: Value = serde_json::from_str(&text).ok()?;
        let text = |name: &str| record[name].as_str().filter(|text| !text.is_empty());
        Some(Record {
            key: VolumeKey {
                driver: text("driverName")?.to_owned(),
                handle: text("volumeHandle")?.to_owned(),
                device: None,
            },
            is_persistent: text("volumeLifecycleMode") != Some("Ephemeral"),
        })
    };
    match parsed() {
        Some(record) => Found::Record(record),
        None => Found::Unreadable(io::Error::new(
            io::ErrorKind::InvalidData,
            "no driver or volume handle",
        )),
    }
}

/// Removes the files of a mount point without a mount: the mount point, the record and their directory. Fails if a directory is
/// not empty.
pub(crate) fn remove(mount_point: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_dir(mount_point))?;
    remove_record(parent(mount_point))
}

/// Removes a record and its directory.
pub(crate) fn remove_record(directory: &Path) -> io::Result<()> {
    ignore_not_found(fs::remove_file(directory.join(FILE)))?;
    ignore_not_found(fs::remove_file(directory.join(format!(".{FILE}.new"))))?;
    ignore_not_found(fs::remove_dir(directory))
}

/// Treats a missing file as removed.
pub(crate) fn ignore_not_found(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

/// The directories of a pod that have, or may have, CSI volumes.
pub(crate) fn of_pod(pod_dir: &Path) -> io::Result<Vec<PathBuf>> {
    directories(&volumes_of_pod(pod_dir))
}

/// The directories of all pods.
pub(crate) fn pods(root: &Path) -> io::Result<Vec<PathBuf>> {
    directories(&root.join("pods"))
}

/// The directories of volumes that are, or may be, staged.
pub(crate) fn staged(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut all = Vec::new();
    for driver in directories(&root.join(STAGING))? {
        all.extend(directories(&driver)?);
    }
    Ok(all)
}

/// The entries of a directory; none if it does not exist.
pub(crate) fn directories(path: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        // A file in place of a directory has no entries.
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut found = entries
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<io::Result<Vec<PathBuf>>>()?;
    found.sort();
    Ok(found)
}

fn parent(path: &Path) -> &Path {
    path.parent().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn key() -> VolumeKey {
        VolumeKey { driver: "d".to_owned(), handle: "h".to_owned(), device: None }
    }

    #[test]
    fn record_of_a_kubelet_is_read() {
        let root = tempfile::tempdir().unwrap();
        let text = r#"{"attachmentID":"csi-1","driverName":"d","nodeName":"n","specVolID":"pv","volumeHandle":"h","volumeLifecycleMode":"Persistent"}"#;
        fs::write(root.path().join(FILE), text).unwrap();
        let expected = Record { key: key(), is_persistent: true };
        assert!(matches!(read(root.path()), Found::Record(found) if found == expected));
        fs::write(root.path().join(FILE), text.replace("Persistent", "Ephemeral")).unwrap();
        let expected = Record { key: key(), is_persistent: false };
        assert!(matches!(read(root.path()), Found::Record(found) if found == expected));
    }

    #[test]
    fn record_is_written_atomically_and_removed_with_its_directory() {
        let root = tempfile::tempdir().unwrap();
        let staging = key().staging(root.path());
        fs::create_dir_all(&staging).unwrap();
        assert!(matches!(read(staging.parent().unwrap()), Found::Missing));
        write_staged(&key(), &staging).unwrap();
        let [directory] = &staged(root.path()).unwrap()[..] else { panic!("one is staged") };
        assert!(matches!(read(directory), Found::Record(found) if found.key == key()));
        fs::write(staging.join("data"), "kept").unwrap();
        assert!(remove(&staging).is_err());
        assert!(matches!(read(directory), Found::Record(_)));
        fs::remove_file(staging.join("data")).unwrap();
        remove(&staging).unwrap();
        assert!(!directory.exists());
        remove(&staging).unwrap();
    }

    #[test]
    fn damaged_record_is_unreadable() {
        let root = tempfile::tempdir().unwrap();
        for text in
            ["", "{", "{}", r#"{"driverName": "d"}"#, r#"{"driverName": "", "volumeHandle": "h"}"#]
        {
            fs::write(root.path().join(FILE), text).unwrap();
            assert!(matches!(read(root.path()), Found::Unreadable(_)), "{text:?}");
        }
    }
}
