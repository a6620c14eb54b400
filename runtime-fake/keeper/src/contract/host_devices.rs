//! Finds the host's devices.

use std::{
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::contract::plan::{DeviceKind, DeviceNode, Found};

/// Directories of `/dev` that hold no host devices (containerd and runc leave them out).
const NOT_DEVICES: [&str; 7] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];

/// The devices below a directory.
pub fn below(top: &Path) -> io::Result<Vec<Found>> {
    let (mut found, mut left) = (Vec::new(), vec![PathBuf::new()]);
    while let Some(below) = left.pop() {
        for entry in fs::read_dir(top.join(&below))? {
            let entry = entry?;
            let (name, here) = (entry.file_name(), below.join(entry.file_name()));
            if entry.file_type()?.is_dir() {
                if !NOT_DEVICES.iter().any(|other| name == *other) {
                    left.push(here);
                }
            } else if let Ok(meta) = entry.metadata()
                && name != "console"
                && let Some(node) = node(&meta)
            {
                found.push(Found { host: top.join(&here), below: here, node });
            }
        }
    }
    Ok(found)
}

/// A device node of the host; none if the file is not a device.
pub fn node(meta: &fs::Metadata) -> Option<DeviceNode> {
    let kind = if meta.file_type().is_char_device() {
        DeviceKind::Character
    } else if meta.file_type().is_block_device() {
        DeviceKind::Block
    } else {
        return None;
    };
    Some(DeviceNode {
        kind,
        major: rustix::fs::major(meta.rdev()),
        minor: rustix::fs::minor(meta.rdev()),
        file_mode: meta.mode() & 0o777,
        uid: meta.uid(),
        gid: meta.gid(),
    })
}
