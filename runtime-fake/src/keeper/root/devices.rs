//! A container's own `/dev`.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use rustix::fs::{FileType, Mode};

use super::{attach, clone_tree, inside::Root};
use crate::{
    keeper::step::{Doing as _, Step},
    launch::Rung,
};

/// What a container's own `/dev` has.
const DEVICES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];
const DEVICE_LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];
/// Makes the usual devices, links and directories in a new `/dev`.
pub(super) fn fill(rung: Rung, dev: BorrowedFd<'_>) -> Step {
    for (name, major, minor) in DEVICES {
        let made = if rung == Rung::Rootless {
            // A user namespace makes no devices: an empty file to mount the host's on.
            rustix::fs::mknodat(
                dev,
                name,
                FileType::RegularFile,
                Mode::from_raw_mode(0o666),
                0,
            )
        } else {
            rustix::fs::mknodat(
                dev,
                name,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o666),
                rustix::fs::makedev(major, minor),
            )
        };
        made.doing(format_args!("make /dev/{name}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, dev, name).doing(format_args!("make /dev/{name}"))?;
    }
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(dev, name, Mode::from_raw_mode(0o755))
            .doing(format_args!("make /dev/{name}"))?;
    }
    Ok(())
}

/// The host's devices besides the usual ones; what the box does not let us make is left out.
pub(super) fn fill_privileged(dev: BorrowedFd<'_>) -> Step {
    let entries = std::fs::read_dir("/dev").doing("list the host's devices")?;
    for entry in entries.flatten() {
        use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
        let Ok(meta) = entry.metadata() else { continue };
        let kind = if meta.file_type().is_char_device() {
            FileType::CharacterDevice
        } else if meta.file_type().is_block_device() {
            FileType::BlockDevice
        } else {
            continue;
        };
        let name = entry.file_name();
        if DEVICES.iter().any(|(known, ..)| name == *known) || name == "ptmx" || name == "console" {
            continue;
        }
        let _ = rustix::fs::mknodat(
            dev,
            name.as_os_str(),
            kind,
            Mode::from_raw_mode(meta.mode() & 0o777),
            meta.rdev(),
        );
    }
    Ok(())
}

/// Puts the host's devices over the empty files that [`fill`] made for them.
pub(super) fn bind(root: &Root) -> Step {
    for (name, ..) in DEVICES {
        let path = Path::new("/dev").join(name);
        let tree =
            clone_tree(&path, false).doing(format_args!("share the host's {}", path.display()))?;
        attach(tree.as_fd(), root.file(&path)?.as_fd())
            .doing(format_args!("mount {}", path.display()))?;
    }
    Ok(())
}
