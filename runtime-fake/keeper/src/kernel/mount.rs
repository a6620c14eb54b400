//! Detached mounts, and attaching them.

use std::{
    fs, io,
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{CWD, Mode, OFlags},
    io::Errno,
    mount::{
        FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
        fsconfig_create, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen, move_mount,
        open_tree, unmount,
    },
    thread::{LinkNameSpaceType, UnshareFlags},
};

use crate::kernel::failure::{Context as _, Step};
use crate::kernel::secure_join::Root;
use crate::kernel::sys::{add_attributes, set_propagation, unshare};

/// Makes an empty root for this process, which must be in a new mount namespace.
pub(crate) fn enter_nothing() -> Step {
    let what = "make an empty root";
    let flags = QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY;
    let empty = new_mount("tmpfs", &[("mode", "0555"), ("size", "4096")], flags).context(what)?;
    attach(empty.as_fd(), open_dir(Path::new("/")).context(what)?.as_fd()).context(what)?;
    pivot(empty.as_fd())
}

/// A detached `/proc` of this process's own process namespace.
pub(crate) fn new_proc() -> Result<OwnedFd, Errno> {
    new_mount("proc", &[], QUIET)
}

/// A detached clone of the `/proc` in this process's root, if it belongs to the process namespace `name`.
pub(crate) fn own_proc(name: &Path) -> Option<OwnedFd> {
    let at = Root::own().ok()?.existing(Path::new("/proc")).ok()??;
    let tree = clone_mount(at.as_fd(), false).ok()?;
    let first = rustix::fs::readlinkat(&tree, "1/ns/pid", Vec::new()).ok()?;
    (is_proc(&tree) && first.as_bytes() == name.as_os_str().as_encoded_bytes()).then_some(tree)
}

pub(crate) fn open_dir(path: &Path) -> Result<OwnedFd, Errno> {
    rustix::fs::open(path, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

pub(crate) fn clone_tree(path: &Path, recursive: bool) -> Result<OwnedFd, Errno> {
    let recursive = if recursive { OpenTreeFlags::AT_RECURSIVE } else { OpenTreeFlags::empty() };
    open_tree(
        CWD,
        path,
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | recursive,
    )
}

/// [`clone_tree`] without propagation. Otherwise later mounts of the host would appear in the container, and would be writable
/// even below a clone that was made read-only.
pub(crate) fn clone_private(path: &Path, recursive: bool) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(path, recursive)?;
    set_propagation(tree.as_fd(), libc::MS_PRIVATE).map_err(errno)?;
    Ok(tree)
}

/// A read-only clone of a device of the host, without propagation. Writes still reach the device, but nobody can change its mode or
/// owner through this mount: root of a container may be the owner of the host's file.
pub(crate) fn clone_device(path: &Path) -> Result<OwnedFd, Errno> {
    let tree = clone_tree(path, false)?;
    add_attributes(tree.as_fd(), libc::MOUNT_ATTR_RDONLY, libc::MS_PRIVATE).map_err(errno)?;
    Ok(tree)
}

/// [`clone_device`] of `/dev/null`.
pub(crate) fn clone_null() -> Result<OwnedFd, Errno> {
    clone_device(Path::new("/dev/null"))
}

fn errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

/// [`clone_tree`] of an open mount.
pub(crate) fn clone_mount(mount: BorrowedFd<'_>, recursive: bool) -> Result<OwnedFd, Errno> {
    let mut flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    flags.set(OpenTreeFlags::AT_RECURSIVE, recursive);
    open_tree(mount, "", flags)
}

/// The options of a file system, with its SELinux label if there is one.
pub(crate) fn labelled<'a>(
    options: &[(&'a str, &'a str)],
    label: Option<&'a str>,
) -> Vec<(&'a str, &'a str)> {
    let label = label.map(|label| ("context", label));
    options.iter().copied().chain(label).collect()
}

/// A new detached file system.
pub(crate) fn new_mount(
    kind: &str,
    options: &[(&str, &str)],
    flags: MountAttrFlags,
) -> Result<OwnedFd, Errno> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    for (name, value) in options {
        if value.is_empty() {
            fsconfig_set_flag(context.as_fd(), *name)?;
        } else {
            fsconfig_set_string(context.as_fd(), *name, *value)?;
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

pub(crate) fn attach(tree: BorrowedFd<'_>, target: BorrowedFd<'_>) -> Result<(), Errno> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    move_mount(tree, "", target, "", flags)
}

pub(crate) const QUIET: MountAttrFlags = MountAttrFlags::MOUNT_ATTR_NOSUID
    .union(MountAttrFlags::MOUNT_ATTR_NODEV)
    .union(MountAttrFlags::MOUNT_ATTR_NOEXEC);

pub(crate) fn pivot(root: BorrowedFd<'_>) -> Step {
    let what = "enter the container's root";
    rustix::process::fchdir(root).context(what)?;
    // The old root is now on top of the new one, at the same place; unmount it there.
    rustix::process::pivot_root(".", ".").context(what)?;
    unmount(".", UnmountFlags::DETACH).context("leave the host's root")?;
    rustix::process::chdir("/").context(what)
}

/// Runs `work` in another mount namespace, and returns to its own.
pub(crate) fn in_namespace<T>(
    namespace: BorrowedFd<'_>,
    work: impl FnOnce() -> Step<T>,
) -> Step<T> {
    let what = "look at the host's mounts";
    let own = fs::File::open("/proc/self/ns/mnt").context(what)?;
    // The kernel requires root and working directory to be unshared first.
    unshare(UnshareFlags::FS).context(what)?;
    let enter = |namespace| {
        rustix::thread::move_into_link_name_space(namespace, Some(LinkNameSpaceType::Mount))
    };
    enter(namespace).context(what)?;
    let done = work();
    enter(own.as_fd()).context(what)?;
    done
}

pub(crate) fn is_proc(at: &OwnedFd) -> bool {
    /// The file system type of procfs in fstatfs(2).
    const PROC: u64 = 0x9fa0;
    rustix::fs::fstatfs(at).is_ok_and(|stat| u64::try_from(stat.f_type) == Ok(PROC))
}
