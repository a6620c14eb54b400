//! Properties of the host: its kernel, and its devices.

use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::{fs, io};

use crate::contract::plan::{DeviceKind, DeviceNode, HostDevice};

/// The running kernel's major and minor version, which seccomp profiles refer to.
pub fn kernel() -> (u32, u32) {
    let name = rustix::system::uname();
    let release = name.release().to_string_lossy();
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

/// Whether user namespaces can use images without a copy: overlayfs supports idmapped layers since Linux 5.19.
pub fn maps_images() -> bool {
    kernel() >= (5, 19)
}

/// Directories of `/dev` that hold no host devices (containerd and runc leave them out).
const NOT_DEVICES: [&str; 7] = ["pts", "shm", "fd", "mqueue", ".lxc", ".lxd-mounts", ".udev"];

/// The devices below a directory.
pub fn devices_below(top: &Path) -> io::Result<Vec<HostDevice>> {
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
                && let Some(node) = device_node(&meta)
            {
                found.push(HostDevice { host: top.join(&here), below: here, node });
            }
        }
    }
    Ok(found)
}

/// A device node of the host; none if the file is not a device.
pub fn device_node(meta: &fs::Metadata) -> Option<DeviceNode> {
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
