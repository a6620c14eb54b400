//! Assembles a container's root file system from detached mounts in a mount namespace of its own. The namespace removes
//! them when its last process exits, so nothing has to be unmounted.
//!
//! Targets are looked up with `openat2(RESOLVE_IN_ROOT)`: a link in an image never leads outside it.

pub(crate) mod accounts;
pub(crate) mod cgroups;
pub(crate) mod devices;
mod host;
pub(crate) mod idmap;
pub(crate) mod overlay;
pub(crate) mod volumes;

use std::{
    os::fd::{AsFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{AtFlags, FileType},
    io::Errno,
    mount::{MountAttrFlags, MountPropagationFlags, mount_change},
};

use accounts::Accounts;
use idmap::IdMapper;

use crate::contract::plan::{IsolationMode, LaunchPlan, Pids, RootPlan};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount::{
    QUIET, attach, clone_mount, clone_null, clone_private, labelled, new_mount, new_proc, open_dir,
    pivot,
};
use crate::kernel::secure_join::Root;
use crate::kernel::sys;
use crate::setup::lsm;
use crate::setup::pod::Pod;
use crate::setup::shared::Shared;
use crate::setup::userns::UserNamespace;

/// Parts of a root that only a process outside the container's namespaces can open.
pub(crate) struct ExternalMounts {
    /// One for each mount of the plan.
    sources: Vec<volumes::Source>,
    /// The directory of shared memory.
    shm: Option<OwnedFd>,
    /// The `/proc` of a process namespace that this process is not in yet.
    proc: Option<OwnedFd>,
    /// The mounts that the root consists of, relative to it.
    parts: Vec<PathBuf>,
}

/// Makes the root that `plan` describes, and enters it. The process must be in a new mount namespace; `host` is the
/// daemon's. Returns the image's users.
pub(crate) fn enter(
    plan: &LaunchPlan,
    pod: &Pod,
    shared: Option<&Shared>,
    host: Option<BorrowedFd<'_>>,
) -> Step<Accounts> {
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).context("separate the container's mounts from the host's")?;
    let outside = outside(plan, pod.shm.as_deref(), shared, host, None)?;
    let (root, accounts) = assemble(plan, &plan.directory.join("rootfs"), outside)?;
    pivot(root.fd())?;
    Ok(accounts)
}

/// [`enter`] for criu, without entering: returns the root's path. `shm` is the pod's shared memory directory, a mount
/// of the keeper.
pub(crate) fn make(
    plan: &LaunchPlan,
    shm: Option<&Path>,
    host: Option<BorrowedFd<'_>>,
) -> Step<PathBuf> {
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).context("separate the container's mounts from the host's")?;
    let outside = outside(plan, shm, None, host, None)?;
    let at = plan.directory.join("rootfs");
    assemble(plan, &at, outside)?;
    Ok(at)
}

/// [`enter`] for a process in the pod's own user namespace, with the mounts that [`idmap::prepare`] sends.
pub(crate) fn enter_mapped(plan: &LaunchPlan, from: &OwnedFd) -> Step<Accounts> {
    let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
    mount_change("/", propagation).context("separate the container's mounts from the host's")?;
    let (at, outside) = idmap::receive(plan, from)?;
    // From here on it has only the privileges of root in a user namespace.
    let plan = LaunchPlan { isolation: IsolationMode::Rootless, ..plan.clone() };
    let (root, accounts) = assemble(&plan, &at, outside)?;
    pivot(root.fd())?;
    Ok(accounts)
}

/// Opens the parts that come from outside, and mounts them in the container's directory.
fn outside(
    plan: &LaunchPlan,
    shm: Option<&Path>,
    shared: Option<&Shared>,
    host: Option<BorrowedFd<'_>>,
    ids: Option<&IdMapper<'_>>,
) -> Step<ExternalMounts> {
    let sources = volumes::open(plan.isolation, &plan.mounts, label(plan), host)?;
    for (mount, source) in plan.mounts.iter().zip(&sources) {
        if let (Some(maps), Some(tree)) = (&mount.ids, source.tree()) {
            let namespace = UserNamespace::make(maps)?;
            idmap::map(tree.as_fd(), &namespace, &mount.destination)?;
        }
    }
    let shm = match shm {
        Some(path) => Some(clone_private(path, false).context("share the pod's /dev/shm")?),
        None if plan.host_ipc => {
            Some(clone_private(Path::new("/dev/shm"), false).context("share the host's /dev/shm")?)
        }
        None => None,
    };
    let proc = match shared {
        Some(shared) => shared.proc()?,
        None => None,
    };
    let parts = make_root(plan, &plan.directory.join("rootfs"), ids)?;
    Ok(ExternalMounts { sources, shm, proc, parts })
}

/// Completes the root at `at`. It reads the image's users before anything is mounted over them.
fn assemble(plan: &LaunchPlan, at: &Path, outside: ExternalMounts) -> Step<(Root, Accounts)> {
    let what = "open the container's root";
    let root = open_dir(at).context(what)?;
    // Open them before anything is mounted over them.
    let parts = outside.parts.iter().map(|part| open_dir(&at.join(part)));
    let parts = parts.collect::<Result<Vec<_>, _>>().context(what)?;
    let root = Root::new(root);
    let of_host = matches!(plan.root, RootPlan::Host);
    let accounts = match plan.restore {
        Some(_) => Accounts::default(),
        None => accounts::read(&root, of_host)?,
    };
    if of_host {
        hide_state(&plan.directory, &root)?;
    }
    system_mounts(plan, &root, outside.shm, outside.proc)?;
    for (mount, source) in plan.mounts.iter().zip(outside.sources) {
        volumes::place(&root, mount, source)?;
    }
    devices::add(plan.isolation, &root, &plan.devices)?;
    if !plan.privileged {
        protect(plan, &root)?;
    }
    let cwd = Path::new(&plan.process.cwd);
    if cwd.is_absolute() && matches!(root.existing(cwd), Ok(None)) {
        // Created while the root is writable; the process reports an error when it enters the directory.
        let _ = root.directory(cwd);
    }
    if plan.readonly_root {
        // Only the mounts that the root consists of; the plan decides whether the mounts over them are read-only.
        for part in parts.iter().map(OwnedFd::as_fd).chain([root.fd()]) {
            sys::set_read_only(part, false).context("make the container's root read-only")?;
        }
    }
    Ok((root, accounts))
}

/// Hides the runtime's state, which the host's root contains: the records of all pods, and the keepers' sockets.
fn hide_state(container: &Path, root: &Root) -> Step {
    let what = "hide the runtime's state";
    // STATE/sandboxes/ID/containers/ID
    let Some(state) = container.ancestors().nth(4) else {
        return Ok(());
    };
    let Some(target) = root.existing(state).context(what)? else {
        return Ok(());
    };
    let empty = [("mode", "0555"), ("size", "4096")];
    let empty = new_mount("tmpfs", &empty, MountAttrFlags::MOUNT_ATTR_RDONLY).context(what)?;
    attach(empty.as_fd(), target.as_fd()).context(what)
}

/// The SELinux label of a container's files, if it has one.
fn label(plan: &LaunchPlan) -> Option<&str> {
    plan.process.confinement.mount_label.as_deref()
}

/// Returns the mounts below `at` that the root consists of, relative to it. `ids` are the container's own, if any.
fn make_root(plan: &LaunchPlan, at: &Path, ids: Option<&IdMapper<'_>>) -> Step<Vec<PathBuf>> {
    let layer = plan.directory.join("layer");
    match &plan.root {
        RootPlan::Host => return host::make(plan.isolation, &layer, at, ids, label(plan)),
        RootPlan::Layers(lower) => {
            let mapped = ids.map(|ids| ids.layers(lower)).transpose()?;
            if let Some(ids) = ids {
                ids.own(&layer.join("upper")).context("make the container's writable layer")?;
            }
            overlay::writable(
                plan.isolation,
                mapped.as_ref().unwrap_or(lower),
                &layer,
                at,
                label(plan),
            )
            .map_err(|error| overlay::failure(lower.len(), error))
        }
        RootPlan::Copied => {
            // pivot_root(2) needs a mount point.
            let what = "mount the copy of the image";
            if let Some(label) = label(plan) {
                lsm::relabel(at, label).context("label the copy of the image")?;
            }
            let tree = clone_private(at, false).context(what)?;
            attach(tree.as_fd(), open_dir(at).context(what)?.as_fd()).context(what)
        }
    }?;
    Ok(Vec::new())
}

fn system_mounts(
    plan: &LaunchPlan,
    root: &Root,
    shm: Option<OwnedFd>,
    proc: Option<OwnedFd>,
) -> Step {
    let shares = matches!(plan.pids, Pids::Pod | Pids::Target { .. });
    let proc = match proc {
        Some(proc) => Ok(proc),
        None if shares => clone_private(Path::new("/proc"), true),
        None => new_proc().or_else(|_| clone_private(Path::new("/proc"), true)),
    };
    let proc = proc.context("make the container's /proc")?;
    attach(proc.as_fd(), own_directory(root, "proc")?.as_fd()).context("mount /proc")?;

    let dev = new_mount(
        "tmpfs",
        &labelled(&[("mode", "0755"), ("size", "65536k")], label(plan)),
        MountAttrFlags::MOUNT_ATTR_NOSUID,
    )
    .context("make the container's /dev")?;
    devices::fill(plan.isolation, dev.as_fd())?;
    attach(dev.as_fd(), root.directory(Path::new("/dev"))?.as_fd()).context("mount /dev")?;
    if plan.isolation == IsolationMode::Rootless {
        devices::bind(root)?;
    }
    if plan.privileged {
        devices::add_all(plan.isolation, root)?;
    }
    // Group 5 is `tty` on every distribution. If only one id is mapped it does not exist; then use the owner's group.
    let pts_options = [("newinstance", ""), ("ptmxmode", "0666"), ("mode", "0620")];
    let pts_options = labelled(&pts_options, label(plan));
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    let pts = new_mount("devpts", &[&pts_options[..], &[("gid", "5")]].concat(), flags)
        .or_else(|_| new_mount("devpts", &pts_options, flags))
        .context("make the container's terminals")?;
    attach(pts.as_fd(), root.directory(Path::new("/dev/pts"))?.as_fd())
        .context("mount /dev/pts")?;
    if let Some(shm) = shm {
        attach(shm.as_fd(), root.directory(Path::new("/dev/shm"))?.as_fd())
            .context("mount /dev/shm")?;
    }
    if let Ok(queues) = new_mount("mqueue", &[], QUIET) {
        attach(queues.as_fd(), root.directory(Path::new("/dev/mqueue"))?.as_fd())
            .context("mount /dev/mqueue")?;
    }

    let sys_flags = if plan.privileged { QUIET } else { QUIET | MountAttrFlags::MOUNT_ATTR_RDONLY };
    let sysfs =
        if plan.host_network { Err(Errno::PERM) } else { new_mount("sysfs", &[], sys_flags) };
    let sysfs = match sysfs {
        Ok(sysfs) => sysfs,
        // Only the owner of a network namespace may mount a sysfs that shows it.
        Err(_) => {
            let of_host = Path::new("/sys");
            // Without the mounts below it, such as debugfs and tracefs, which only root of the host may read. In a user namespace the
            // kernel does not permit that, and root is an ordinary user of the host.
            let tree = clone_private(of_host, plan.privileged);
            let tree = tree.or_else(|_| clone_private(of_host, true));
            let tree = tree.context("share the host's /sys")?;
            if !plan.privileged {
                sys::set_read_only(tree.as_fd(), true).context("make /sys read-only")?;
            }
            tree
        }
    };
    attach(sysfs.as_fd(), own_directory(root, "sys")?.as_fd()).context("mount /sys")?;
    cgroups::mount(root, plan.cgroup.as_ref().map(|cgroup| &cgroup.path), plan.privileged)
}

/// The mount point of one of the kernel's file systems, directly below the root. A link could lead below a later mount, such as
/// `/dev`: then the paths to mask would lead elsewhere, and the file system would stay unmasked (as in CVE-2019-19921).
fn own_directory(root: &Root, name: &str) -> Step<OwnedFd> {
    let found = rustix::fs::statat(root.fd(), name, AtFlags::SYMLINK_NOFOLLOW);
    if found.is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Symlink) {
        let message = format!(
            "failed to mount /{name}: it is a symbolic link in the image: make it a directory, or leave it out"
        );
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    root.directory(&Path::new("/").join(name))
}

fn protect(plan: &LaunchPlan, root: &Root) -> Step {
    // One mount for all masked directories, and one for all masked files: a clone of it costs a fraction of a new one.
    let (mut nothing, mut null): (Option<OwnedFd>, Option<OwnedFd>) = (None, None);
    for path in &plan.masked_paths {
        let what = format!("mask {path}");
        let Some(target) = root.existing(Path::new(path)).context(&what)? else {
            continue;
        };
        let directory = FileType::from_raw_mode(rustix::fs::fstat(&target).context(&what)?.st_mode)
            == FileType::Directory;
        let first = if directory { &mut nothing } else { &mut null };
        let empty = match &*first {
            Some(first) => clone_mount(first.as_fd(), false),
            None if directory => new_mount(
                "tmpfs",
                &[("mode", "0555"), ("size", "0")],
                MountAttrFlags::MOUNT_ATTR_RDONLY,
            ),
            None => clone_null(),
        };
        let empty = empty.context(&what)?;
        attach(empty.as_fd(), target.as_fd()).context(&what)?;
        first.get_or_insert(empty);
    }
    for path in &plan.readonly_paths {
        let what = format!("make {path} read-only");
        let Some(target) = root.existing(Path::new(path)).context(&what)? else {
            continue;
        };
        let tree = clone_mount(target.as_fd(), true).context(&what)?;
        sys::set_read_only(tree.as_fd(), true).context(&what)?;
        attach(tree.as_fd(), target.as_fd()).context(&what)?;
    }
    Ok(())
}
