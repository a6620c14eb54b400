//! A container's own `/dev`.

use std::{
    os::fd::{AsFd as _, BorrowedFd},
    path::Path,
};

use rustix::{
    fs::{Access, AtFlags, FileType, Gid, Mode, Uid},
    io::Errno,
};

use crate::contract::host;
use crate::contract::plan::{DeviceKind, DevicePlan, IsolationMode};
use crate::kernel::failure::{Context as _, Step};
use crate::kernel::mount::{attach, clone_device};
use crate::kernel::secure_join::Root;

/// The default devices of a container.
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
/// Makes the default devices, links and directories in a new `/dev`.
pub(crate) fn fill(isolation: IsolationMode, dev: BorrowedFd<'_>) -> Step {
    for (name, major, minor) in DEVICES {
        let made = if isolation == IsolationMode::Rootless {
            // A process in a user namespace cannot make device nodes: make an empty file to mount the host's device on.
            rustix::fs::mknodat(dev, name, FileType::RegularFile, Mode::from_raw_mode(0o666), 0)
        } else {
            rustix::fs::mknodat(
                dev,
                name,
                FileType::CharacterDevice,
                Mode::from_raw_mode(0o666),
                rustix::fs::makedev(major, minor),
            )
        };
        made.context(format_args!("make /dev/{name}"))?;
    }
    for (name, target) in DEVICE_LINKS {
        rustix::fs::symlinkat(target, dev, name).context(format_args!("make /dev/{name}"))?;
    }
    for name in ["pts", "shm", "mqueue"] {
        rustix::fs::mkdirat(dev, name, Mode::from_raw_mode(0o755))
            .context(format_args!("make /dev/{name}"))?;
    }
    Ok(())
}

/// Mounts the host's devices on the empty files that [`fill`] made. Of the devices that the host lacks, containers need
/// `/dev/null` only: the others are left out.
pub(crate) fn bind(root: &Root) -> Step {
    for (name, ..) in DEVICES {
        let path = Path::new("/dev").join(name);
        let tree = match clone_device(&path) {
            Err(Errno::NOENT) if name != "null" => {
                let dev = root.directory(Path::new("/dev"))?;
                rustix::fs::unlinkat(&dev, name, AtFlags::empty())
                    .context(format_args!("leave out {}", path.display()))?;
                continue;
            }
            tree => tree.context(format_args!("share the host's {}", path.display()))?,
        };
        attach(tree.as_fd(), root.file(&path)?.as_fd())
            .context(format_args!("mount {}", path.display()))?;
    }
    Ok(())
}

/// Makes the devices that the container requests. If mknod(2) is not allowed, it mounts the host's.
pub(crate) fn add(isolation: IsolationMode, root: &Root, devices: &[DevicePlan]) -> Step {
    devices.iter().try_for_each(|device| make(isolation, root, device))
}

/// Adds all other devices of the host, except the ones that the host does not let us use.
pub(crate) fn add_all(isolation: IsolationMode, root: &Root) -> Step {
    for device in host::devices_below(Path::new("/dev")).context("list the host's devices")? {
        let usual = DEVICES.iter().map(|(name, ..)| *name).chain(["ptmx"]);
        if usual.into_iter().any(|name| device.below == Path::new(name)) {
            continue;
        }
        // Do not mount devices that the container could not open.
        if isolation == IsolationMode::Rootless
            && rustix::fs::access(&device.host, Access::READ_OK).is_err()
        {
            continue;
        }
        let plan = DevicePlan {
            path: Path::new("/dev").join(&device.below),
            host: device.host,
            node: device.node,
            access: String::new(),
        };
        let _ = make(isolation, root, &plan);
    }
    Ok(())
}

fn make(isolation: IsolationMode, root: &Root, device: &DevicePlan) -> Step {
    let what = || format!("make the device {}", device.path.display());
    if isolation == IsolationMode::Rootless {
        return mount(root, device);
    }
    let (Some(parent), Some(name)) = (device.path.parent(), device.path.file_name()) else {
        return Err(Errno::INVAL).context(what());
    };
    let parent = root.directory(parent)?;
    let node = &device.node;
    let kind = match node.kind {
        DeviceKind::Character => FileType::CharacterDevice,
        DeviceKind::Block => FileType::BlockDevice,
    };
    let (mode, number) =
        (Mode::from_raw_mode(node.file_mode), rustix::fs::makedev(node.major, node.minor));
    match rustix::fs::mknodat(&parent, name, kind, mode, number) {
        Ok(()) => {}
        // An existing node stays: it may be the host's. A host that denies mknod(2) may still have the device.
        Err(Errno::EXIST | Errno::PERM) => return mount(root, device),
        Err(error) => return Err(error).context(what()),
    }
    let owner = (Uid::from_raw(node.uid), Gid::from_raw(node.gid));
    rustix::fs::chownat(&parent, name, Some(owner.0), Some(owner.1), AtFlags::SYMLINK_NOFOLLOW)
        .context(what())
}

fn mount(root: &Root, device: &DevicePlan) -> Step {
    let tree = clone_device(&device.host)
        .context(format_args!("share the host's {}", device.host.display()))?;
    attach(tree.as_fd(), root.file(&device.path)?.as_fd())
        .context(format_args!("mount {}", device.path.display()))
}
