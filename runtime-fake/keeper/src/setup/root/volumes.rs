//! Mounts over a container's root: opens the sources on the host, and attaches them in the container.
//!
//! With root privileges, sources are opened in the daemon's mount namespace, not in the pod's. The pod's is a copy from
//! its creation, in which later mounts of the host appear only if the host shares them.

use std::{
    fs::{self, DirBuilder},
    os::{
        fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::DirBuilderExt as _,
    },
    path::{Path, PathBuf},
};

use file_tree::{
    mountinfo::mounts,
    part::{self, Part},
};
use rustix::{
    fs::{FileType, Mode, OFlags},
    io::Errno,
    mount::{OpenTreeFlags, open_tree},
};

use crate::contract::plan::{IsolationMode, MountFlag, MountPlan, MountSource, Propagation};
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step, plain};
use crate::kernel::mount::{attach, clone_mount, clone_tree, open_dir};
use crate::kernel::mount::{in_namespace, is_proc};
use crate::kernel::secure_join::Root;
use crate::kernel::sys;
use crate::setup::lsm;
use crate::setup::root::overlay;

/// The files of `/proc` that a client may mount over, as in runc: programs read a container's resources there.
const COVERABLE: [&str; 11] = [
    "/proc/cpuinfo",
    "/proc/diskstats",
    "/proc/loadavg",
    "/proc/meminfo",
    "/proc/net/dev",
    "/proc/slabinfo",
    "/proc/stat",
    "/proc/swaps",
    "/proc/sys/crypto/fips_enabled",
    "/proc/sys/kernel/ns_last_pid",
    "/proc/uptime",
];

/// A detached mount; none if the container's own root is the source.
pub(crate) struct Source(Option<OwnedFd>);

impl Source {
    /// The container's own root.
    pub(crate) fn none() -> Self {
        Self(None)
    }

    pub(crate) fn of(tree: OwnedFd) -> Self {
        Self(Some(tree))
    }

    pub(crate) fn tree(&self) -> Option<&OwnedFd> {
        self.0.as_ref()
    }
}

/// Opens the sources of `mounts` before anything is mounted, so that they are the host's.
pub(crate) fn open(
    isolation: IsolationMode,
    mounts: &[MountPlan],
    label: Option<&str>,
    host: Option<BorrowedFd<'_>>,
) -> Step<Vec<Source>> {
    let of_host = |mount: &MountPlan| match &mount.source {
        MountSource::Host(path) => open_host(mount, path, label).map(Some),
        MountSource::SubPath { volume, sub_path } => {
            open_sub_path(mount, volume, sub_path, label).map(Some)
        }
        MountSource::Image { .. } | MountSource::Memory { .. } | MountSource::Own => Ok(None),
    };
    let all = || mounts.iter().map(of_host).collect::<Step<Vec<_>>>();
    let mut sources = match host {
        Some(host) => in_namespace(host, all)?,
        None => all()?,
    };
    for (mount, source) in mounts.iter().zip(&mut sources) {
        if let MountSource::Image { layers, sub_path, at } = &mount.source {
            *source = Some(open_image(isolation, mount, layers, sub_path, at, label)?);
        }
        // It is mounted in the pod's mount namespace, not in the host's.
        if let MountSource::Memory { at, sub_path } = &mount.source {
            *source = Some(open_memory(mount, at, sub_path)?);
        }
    }
    Ok(sources.into_iter().map(Source).collect())
}

fn open_host(mount: &MountPlan, path: &Path, label: Option<&str>) -> Step<OwnedFd> {
    make_missing(mount, path)?;
    if let Some(label) = label.filter(|_| mount.relabel) {
        relabelled(lsm::relabel(path, label), path, label)?;
    }
    let what = format!("mount {} of the host at {}", path.display(), mount.destination.display());
    let tree = clone_tree(path, true).context(&what)?;
    let sharing = || {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        sharing(&rustix::fs::open(path, flags, Mode::empty())?)
    };
    prepare_host(mount, &tree, path, sharing, &what)?;
    Ok(tree)
}

/// A part of a volume. A container that mounts the volume may replace the part by a link at any time. So the part is opened once,
/// without following links, and the opened file or directory is mounted.
fn open_sub_path(
    mount: &MountPlan,
    volume: &Path,
    sub_path: &Path,
    label: Option<&str>,
) -> Step<OwnedFd> {
    let what = what(mount);
    let part = Part { tree: volume.to_owned(), path: sub_path.to_owned() };
    let opened = part::open_part(&part).context(&what)?;
    let path = part.full_path();
    if let Some(label) = label.filter(|_| mount.relabel) {
        relabelled(lsm::relabel_open(opened.as_fd(), label), &path, label)?;
    }
    let tree = clone_mount(opened.as_fd(), true).context(&what)?;
    prepare_host(mount, &tree, &path, || sharing(&opened), &what)?;
    Ok(tree)
}

/// Gives a mount that was cloned from a path of the host its propagation and its flags.
fn prepare_host(
    mount: &MountPlan,
    tree: &OwnedFd,
    path: &Path,
    sharing: impl Fn() -> Result<Sharing, std::io::Error>,
    what: &str,
) -> Step {
    let propagation = match mount.propagation {
        Propagation::Private => libc::MS_PRIVATE,
        Propagation::Slave => {
            let shared = sharing().context(what)?;
            must_share(mount, path, shared.shared || shared.slave, "shared or slave")?;
            libc::MS_SLAVE
        }
        Propagation::Shared => {
            must_share(mount, path, sharing().context(what)?.shared, "shared")?;
            libc::MS_SHARED
        }
    };
    sys::set_propagation(tree.as_fd(), propagation).context(what)?;
    forbid(mount, tree)
}

fn relabelled(done: std::io::Result<()>, path: &Path, label: &str) -> Step {
    done.map_err(|error| {
        let refused = error.kind() == std::io::ErrorKind::InvalidInput;
        let kind = if refused { FailureKind::Invalid } else { FailureKind::System };
        let reason = plain(&error);
        Failure::new(
            kind,
            format!(
                "failed to give {} of the host the SELinux label {label}: {reason}",
                path.display()
            ),
        )
    })
}

/// Applies the client's mount flags.
fn forbid(mount: &MountPlan, tree: &OwnedFd) -> Step {
    let target = mount.destination.display();
    if mount.read_only {
        sys::set_read_only(tree.as_fd(), mount.recursive_read_only)
            .context(format_args!("make the mount at {target} read-only"))?;
    }
    let attributes = mount.flags.iter().fold(0, |all, option| {
        all | match option {
            MountFlag::NoExec => libc::MOUNT_ATTR_NOEXEC,
            MountFlag::NoSuid => libc::MOUNT_ATTR_NOSUID,
            MountFlag::NoDev => libc::MOUNT_ATTR_NODEV,
            MountFlag::NoAtime => libc::MOUNT_ATTR_NOATIME,
            MountFlag::NoDirAtime => libc::MOUNT_ATTR_NODIRATIME,
            MountFlag::NoSymfollow => libc::MOUNT_ATTR_NOSYMFOLLOW,
        }
    });
    if attributes == 0 {
        return Ok(());
    }
    let what = format!("give the mount at {target} its mount_options");
    sys::add_attributes(tree.as_fd(), attributes, 0).context(what)
}

/// Creates a missing host path as a directory (as containerd does).
fn make_missing(mount: &MountPlan, path: &Path) -> Step {
    match fs::metadata(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Ok(_) | Err(_) => return Ok(()),
    }
    let made = DirBuilder::new().recursive(true).mode(0o755).create(path);
    made.map_err(|error| {
        Failure::new(
            missing_kind(error.kind()),
            format!(
                "failed to mount {} of the host at {}: it is not there, and no directory can be made in its place: {}",
                path.display(),
                mount.destination.display(),
                plain(&error)
            ),
        )
    })
}

/// The kind of a failure to create a missing host path. Another pod may later make the target of a dangling link.
fn missing_kind(error: std::io::ErrorKind) -> FailureKind {
    let may_change = error == std::io::ErrorKind::AlreadyExists;
    if may_change { FailureKind::NotInstalled } else { FailureKind::Invalid }
}

struct Sharing {
    shared: bool,
    slave: bool,
}

/// Whether the mount of an opened file has peers, or a master.
fn sharing(at: &OwnedFd) -> Result<Sharing, std::io::Error> {
    let info = fs::read_to_string(format!("/proc/self/fdinfo/{}", at.as_raw_fd()))?;
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:")).map_or("", str::trim);
    let table = fs::read_to_string("/proc/self/mountinfo")?;
    let mount = mounts(&table).find(|mount| mount.id == id);
    let tags = mount.map(|mount| mount.propagation).unwrap_or_default();
    let has = |tag: &str| tags.iter().any(|field| field.starts_with(tag));
    Ok(Sharing { shared: has("shared:"), slave: has("master:") })
}

fn must_share(mount: &MountPlan, path: &Path, shares: bool, wanted: &str) -> Step {
    if shares {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Invalid,
        format!(
            "failed to set the propagation of the mount at {}: {} of the host is not on a {wanted} mount; see mount(8), --make-shared",
            mount.destination.display(),
            path.display()
        ),
    ))
}

fn open_image(
    isolation: IsolationMode,
    mount: &MountPlan,
    layers: &[PathBuf],
    sub_path: &Path,
    at: &Path,
    label: Option<&str>,
) -> Step<OwnedFd> {
    let what = format!("mount an image at {}", mount.destination.display());
    let whole = match (layers, label) {
        ([only], None) => open_dir(only).context(&what)?,
        _ => {
            let mut layers = layers.to_vec();
            if let [_] = layers[..] {
                // An overlay needs at least two layers, and only an overlay can have the label.
                let empty = at.join("empty");
                rustix::fs::mkdir(&empty, rustix::fs::Mode::from_raw_mode(0o755)).context(&what)?;
                layers.push(empty);
            }
            overlay::read_only(isolation, &layers, at, label)
                .map_err(|error| overlay::failure(layers.len(), error))?;
            open_dir(at).context(&what)?
        }
    };
    let found = if sub_path.as_os_str().is_empty() {
        Some(whole)
    } else {
        Root::new(whole).existing(sub_path).context(&what)?
    };
    let Some(found) = found else {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to {what}: the image has no {}: image_sub_path names what is there",
                sub_path.display()
            ),
        ));
    };
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(&found, "", flags).context(&what)?;
    sys::set_propagation(tree.as_fd(), libc::MS_PRIVATE).context(&what)?;
    forbid(mount, &tree)?;
    Ok(tree)
}

/// A volume of the pod in memory, or a part of one.
fn open_memory(mount: &MountPlan, at: &Path, sub_path: &Path) -> Step<OwnedFd> {
    let what = format!("mount a volume in memory at {}", mount.destination.display());
    if mount.propagation != Propagation::Private {
        let message = format!("failed to {what}: its propagation has to be private");
        return Err(Failure::new(FailureKind::Invalid, message));
    }
    let volume = Root::new(open_dir(at).context(&what)?);
    let sub_path = match sub_path.as_os_str().is_empty() {
        true => Path::new("."),
        false => sub_path,
    };
    let found = match volume.existing(sub_path).context(&what)? {
        Some(found) => found,
        None => {
            part::make_directories(at, sub_path).context(&what)?;
            let made = volume.existing(sub_path).context(&what)?;
            made.ok_or(Errno::NOENT).context(&what)?
        }
    };
    let tree = clone_mount(found.as_fd(), false).context(&what)?;
    sys::set_propagation(tree.as_fd(), libc::MS_PRIVATE).context(&what)?;
    forbid(mount, &tree)?;
    Ok(tree)
}

/// Attaches `source` at the destination in `plan`.
pub(crate) fn place(root: &Root, plan: &MountPlan, source: Source) -> Step {
    let Some(source) = source.0 else {
        return keep_writable(root, &plan.destination);
    };
    let kind = kind_of(&source).context(format_args!("look at {}", named(plan)))?;
    if let Some(there) = root.existing(&plan.destination).context(what(plan))? {
        fits(plan, kind, kind_of(&there).context(what(plan))?)?;
    }
    let target = if kind == FileType::Directory {
        root.directory(&plan.destination)?
    } else {
        root.file(&plan.destination)?
    };
    let resolved = root.path_of(&target).context(what(plan))?;
    if resolved.starts_with("/proc") && !may_cover(&resolved, &source) {
        return Err(Failure::new(
            FailureKind::Invalid,
            format!(
                "nothing can be mounted at {}, which is inside /proc, but over {}",
                plan.destination.display(),
                COVERABLE.join(", ")
            ),
        ));
    }
    attach(source.as_fd(), target.as_fd()).context(what(plan))
}

fn what(plan: &MountPlan) -> String {
    format!("mount {} at {}", named(plan), plan.destination.display())
}

fn named(plan: &MountPlan) -> String {
    match &plan.source {
        MountSource::Host(path) => path.display().to_string(),
        MountSource::SubPath { volume, sub_path } => {
            format!("{} of the volume {}", sub_path.display(), volume.display())
        }
        MountSource::Image { .. } => "an image".to_owned(),
        MountSource::Memory { .. } => "a volume in memory".to_owned(),
        MountSource::Own => "a volume of the image".to_owned(),
    }
}

fn kind_of(fd: &OwnedFd) -> Result<FileType, Errno> {
    Ok(FileType::from_raw_mode(rustix::fs::fstat(fd)?.st_mode))
}

/// Checks that the type of a volume's source fits the mount point. The agent matches the message and retries: another container
/// may replace the mount point.
fn fits(plan: &MountPlan, source: FileType, there: FileType) -> Step {
    let (source, there) = (source == FileType::Directory, there == FileType::Directory);
    let words = |directory| if directory { "a directory" } else { "a file" };
    if source == there {
        return Ok(());
    }
    Err(Failure::new(
        FailureKind::Invalid,
        format!(
            "failed to {}: the one is {}, the other {}",
            what(plan),
            words(source),
            words(there)
        ),
    ))
}

fn may_cover(resolved: &Path, source: &OwnedFd) -> bool {
    COVERABLE.iter().any(|path| resolved == Path::new(path))
        || (resolved == Path::new("/proc") && is_proc(source))
}

/// Mounts a directory of the root over itself, so that a read-only root does not affect it.
fn keep_writable(root: &Root, path: &Path) -> Step {
    let target = root.directory(path)?;
    let what = format!("make the volume {} of the image", path.display());
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_EMPTY_PATH;
    let tree = open_tree(&target, "", flags).context(&what)?;
    attach(tree.as_fd(), target.as_fd()).context(&what)
}
