//! The group of a volume's files (`fsGroup`).
//!
//! Source: Kubernetes 1.36, pkg/volume/volume_linux.go. The policy `OnRootMismatch` counts for persistent volumes only: what the
//! agent makes itself is changed whenever it is made, as in a kubelet.

use std::fs;
use std::io;
use std::os::unix::fs::{PermissionsExt as _, lchown};
use std::path::{Path, PathBuf};

/// The set-group-id bit of a directory: new files get its group.
const SET_GROUP: u32 = 0o2000;

/// Gives a volume to a group: the group may read it and, unless it is read-only, write to it. The tree must be the agent's own,
/// made just before.
pub(super) fn give_to_group(volume: &Path, group: u32, readonly: bool) -> io::Result<()> {
    let mut found = vec![volume.to_owned()];
    let mut open: Vec<PathBuf> = vec![volume.to_owned()];
    while let Some(directory) = open.pop() {
        for entry in fs::read_dir(&directory)? {
            let entry = entry?;
            found.push(entry.path());
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            }
        }
    }
    // A directory after what is in it.
    for path in found.iter().rev() {
        lchown(path, None, Some(group))?;
        let metadata = fs::symlink_metadata(path)?;
        if !metadata.is_symlink() {
            let mode = metadata.permissions().mode() | added_mode(metadata.is_dir(), readonly);
            fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
        }
    }
    Ok(())
}

fn added_mode(directory: bool, readonly: bool) -> u32 {
    let files = if readonly { 0o440 } else { 0o660 };
    if directory {
        files | 0o110 | SET_GROUP
    } else {
        files
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::os::unix::fs::{MetadataExt as _, symlink};

    use super::*;

    #[test]
    fn group_may_read_and_write() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir_all(volume.join("d")).unwrap();
        fs::write(volume.join("d/f"), "").unwrap();
        symlink("/nowhere", volume.join("l")).unwrap();
        for (path, mode) in [("", 0o700), ("d", 0o755), ("d/f", 0o600)] {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(volume.join(path), mode).unwrap();
        }
        // A group that every user may give to its own files.
        let group = volume.metadata().unwrap().gid();
        give_to_group(&volume, group, true).unwrap();
        let mode = |path: &str| volume.join(path).metadata().unwrap().mode() & 0o7777;
        assert_eq!((mode(""), mode("d"), mode("d/f")), (0o2750, 0o2755, 0o640));
        give_to_group(&volume, group, false).unwrap();
        assert_eq!((mode(""), mode("d"), mode("d/f")), (0o2770, 0o2775, 0o660));
    }

    #[test]
    fn links_get_the_group_too() {
        let root = tempfile::tempdir().unwrap();
        let volume = root.path().join("v");
        fs::create_dir(&volume).unwrap();
        symlink("/nowhere", volume.join("l")).unwrap();
        match give_to_group(&volume, 4242, true) {
            Ok(()) => {
                let group = |path: &Path| fs::symlink_metadata(path).unwrap().gid();
                assert_eq!((group(&volume), group(&volume.join("l"))), (4242, 4242));
            }
            // Only root may give files to any group.
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::PermissionDenied),
        }
    }
}
