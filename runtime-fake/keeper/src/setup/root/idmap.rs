//! Idmapped mounts, for pods with a user namespace of their own.
//!
//! Such a root is assembled outside the user namespace, by a process that still has the keeper's privileges. It sends the
//! detached mounts over a socket to the process that will enter the root.

use std::{
    cell::Cell,
    io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Gid, Mode, Uid},
    mount::{MountAttrFlags, MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};
use serde::{Deserialize, Serialize};

use crate::contract::frame;
use crate::contract::plan::LaunchPlan;
use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount::{attach, clone_tree, new_mount, open_dir};
use crate::kernel::sys;
use crate::kernel::sys::unshare;
use crate::setup::pod::Pod;
use crate::setup::root::{ExternalMounts, volumes};
use crate::setup::shared::Shared;
use crate::setup::userns::UserNamespace;

/// Makes idmapped mounts for a user namespace.
pub(crate) struct IdMapper<'a> {
    namespace: &'a UserNamespace,
    place: PathBuf,
    count: Cell<usize>,
}

impl<'a> IdMapper<'a> {
    /// `place` is an unused path in the container's directory.
    pub(crate) fn new(namespace: &'a UserNamespace, place: PathBuf) -> Step<Self> {
        let what = "prepare the mapping of ids";
        match rustix::fs::mkdir(&place, Mode::from_raw_mode(0o700)) {
            Ok(()) | Err(rustix::io::Errno::EXIST) => {}
            Err(error) => return Err(error).context(what),
        }
        let tmpfs =
            new_mount("tmpfs", &[("mode", "0700")], MountAttrFlags::empty()).context(what)?;
        attach(tmpfs.as_fd(), open_dir(&place).context(what)?.as_fd()).context(what)?;
        Ok(Self { namespace, place, count: Cell::new(0) })
    }

    /// The path of an idmapped mount of the directory `path`.
    pub(crate) fn path(&self, path: &Path) -> io::Result<PathBuf> {
        let tree = clone_tree(path, false)?;
        sys::set_id_map(tree.as_fd(), self.namespace.fd())?;
        let at = self.place.join(self.count.replace(self.count.get() + 1).to_string());
        rustix::fs::mkdir(&at, Mode::from_raw_mode(0o700))?;
        attach(tree.as_fd(), open_dir(&at)?.as_fd())?;
        Ok(at)
    }

    /// Maps the layers of an image. If the file system does not support that, the daemon copies them.
    pub(crate) fn layers(&self, layers: &[PathBuf]) -> Step<Vec<PathBuf>> {
        layers.iter().map(|layer| self.path(layer)).collect::<io::Result<Vec<_>>>().map_err(
            |error| {
                Failure::new(
                    FailureKind::NoIdMap,
                    format!("failed to map the ids of the image's files: {error}"),
                )
            },
        )
    }

    /// Makes the container's root user the owner of a file.
    pub(crate) fn own(&self, path: &Path) -> Result<(), rustix::io::Errno> {
        let (uid, gid) = self.namespace.maps.root();
        rustix::fs::chown(path, Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)))
    }
}

/// Maps the ids of a mount's files, as the client requested.
pub(crate) fn map(tree: BorrowedFd<'_>, namespace: &UserNamespace, target: &Path) -> Step {
    sys::set_id_map(tree, namespace.fd()).map_err(|error| match error.raw_os_error() {
        Some(libc::EINVAL | libc::EPERM) => Failure::new(
            FailureKind::Invalid,
            format!(
                "failed to map the ids of the files at {}: their file system, or this kernel, has no idmapped mounts",
                target.display()
            ),
        ),
        _ => Failure::new(
            FailureKind::System,
            format!("failed to map the ids of the files at {}: {error}", target.display()),
        ),
    })
}

/// One frame on the socket; all except the last carry a descriptor.
#[derive(Debug, Serialize, Deserialize)]
enum RootMessage {
    Root,
    SharedMemory,
    Proc,
    Source(usize),
    Done { parts: Vec<PathBuf> },
    Failed(Failure),
}

/// Runs the process that prepares a root outside the pod's user namespace, and exits.
pub(crate) fn prepare(plan: &LaunchPlan, pod: &Pod, shared: Option<&Shared>, to: &OwnedFd) -> ! {
    let namespace = pod.user_namespace.as_ref();
    let mut keep = vec![to.as_raw_fd()];
    let of_shared = shared.map(Shared::descriptors).into_iter().flatten();
    keep.extend(of_shared.flatten().map(|fd| fd.as_raw_fd()));
    keep.extend(pod.host_mounts.as_ref().map(|fd| fd.as_raw_fd()));
    keep.extend(namespace.map(|namespace| namespace.fd().as_raw_fd()));
    sys::close_others(&mut keep);
    let work = || -> Step {
        sys::die_with_parent().context("be ended with the keeper")?;
        rustix::process::umask(Mode::empty());
        unshare(UnshareFlags::NEWNS).context("make a mount namespace")?;
        let propagation = MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC;
        mount_change("/", propagation)
            .context("separate the container's mounts from the host's")?;
        let ids = namespace
            .map(|namespace| IdMapper::new(namespace, plan.directory.join("mapped")))
            .transpose()?;
        let host = pod.host_mounts.as_ref().map(|fd| fd.as_fd());
        let outside = super::outside(plan, pod.shm.as_deref(), shared, host, ids.as_ref())?;
        let root = clone_tree(&plan.directory.join("rootfs"), true)
            .context("hand over the container's root")?;
        let send = |message: &RootMessage, fd: Option<&OwnedFd>| send(to, message, fd);
        send(&RootMessage::Root, Some(&root))?;
        if let Some(shm) = &outside.shm {
            send(&RootMessage::SharedMemory, Some(shm))?;
        }
        if let Some(proc) = &outside.proc {
            send(&RootMessage::Proc, Some(proc))?;
        }
        for (index, source) in outside.sources.iter().enumerate() {
            if let Some(tree) = source.tree() {
                send(&RootMessage::Source(index), Some(tree))?;
            }
        }
        let parts = outside.parts;
        send(&RootMessage::Done { parts }, None)
    };
    if let Err(failure) = work() {
        // The receiver may have exited.
        let _ = send(to, &RootMessage::Failed(failure), None);
    }
    std::process::exit(0)
}

fn send(to: &OwnedFd, message: &RootMessage, descriptor: Option<&OwnedFd>) -> Step {
    let what = "hand over the container's root";
    let document = serde_json::to_vec(message).map_err(io::Error::from).context(what)?;
    let mut frame =
        frame::Outgoing::new(document, descriptor.into_iter().collect()).context(what)?;
    while !frame.send(to).context(what)? {}
    Ok(())
}

/// Receives the mounts that [`prepare`] sends, and attaches them in this process's own mount namespace, at a path that it may
/// access: the container's directory is not accessible to it. Returns the root's path.
pub(crate) fn receive(plan: &LaunchPlan, from: &OwnedFd) -> Step<(PathBuf, ExternalMounts)> {
    let what = "take over the container's root";
    let mut outside = ExternalMounts {
        sources: plan.mounts.iter().map(|_| volumes::Source::none()).collect(),
        shm: None,
        proc: None,
        parts: Vec::new(),
    };
    let (mut receiver, mut root) = (frame::Receiver::default(), None);
    loop {
        let Some(document) = receiver.next_document().context(what)? else {
            if receiver.fill(from).context(what)? == 0 {
                let message = "the process that prepares the container's root ended early";
                return Err(Failure::new(FailureKind::System, message));
            }
            continue;
        };
        let message = serde_json::from_slice(&document).map_err(io::Error::from);
        let mut take = || receiver.take_descriptors(1).map(|mut all| all.pop());
        match message.context(what)? {
            RootMessage::Root => root = take().context(what)?,
            RootMessage::SharedMemory => outside.shm = take().context(what)?,
            RootMessage::Proc => outside.proc = take().context(what)?,
            RootMessage::Source(index) => {
                let tree = take().context(what)?;
                if let (Some(source), Some(tree)) = (outside.sources.get_mut(index), tree) {
                    *source = volumes::Source::of(tree);
                }
            }
            RootMessage::Failed(failure) => return Err(failure),
            RootMessage::Done { parts } => {
                outside.parts = parts;
                break;
            }
        }
    }
    let Some(root) = root else {
        return Err(io::Error::from(io::ErrorKind::InvalidData)).context(what);
    };
    // The host's contents of these directories are no longer needed.
    for place in ["/tmp", "/mnt", "/etc", "/usr"] {
        if let Ok(target) = open_dir(Path::new(place)) {
            attach(root.as_fd(), target.as_fd()).context(what)?;
            return Ok((PathBuf::from(place), outside));
        }
    }
    Err(io::Error::from(io::ErrorKind::NotFound)).context(what)
}
