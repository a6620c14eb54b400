//! A process namespace that a container shares with others: its pod's or another container's.

use std::{
    fs::{self, File},
    os::fd::{AsFd as _, OwnedFd},
    path::{Path, PathBuf},
};

use crate::kernel::failure::{Context as _, Failure, FailureKind, Step};
use crate::kernel::mount;
use crate::setup::pause::Pause;

/// A process namespace to fork into. A process outside it cannot mount its `/proc`, so a source of its `/proc` is kept.
pub(crate) struct Shared {
    pub(crate) namespace: OwnedFd,
    proc: Source,
}

/// The source of the namespace's `/proc`.
enum Source {
    /// Its mount point, if there is one.
    Mounted(Option<PathBuf>),
    /// The mount namespace of the container that owns the process namespace `name`.
    Of { mounts: OwnedFd, name: PathBuf },
}

impl Shared {
    /// The pod's own process namespace.
    pub(crate) fn of_pod(pause: &Pause) -> Step<Self> {
        let namespace = File::open(format!("/proc/{}/ns/pid", pause.pid));
        let namespace = namespace.context("find the pod's process namespace")?;
        Ok(Self { namespace: namespace.into(), proc: Source::Mounted(pause.proc.clone()) })
    }

    /// The process namespace of the container whose first process is `pid`; none if it is the keeper's own, the host's.
    pub(crate) fn of_container(pid: i32) -> Step<Option<Self>> {
        let what = "find the process namespace of the target container";
        let Some(namespace) = namespace(pid).context(what)? else {
            return Ok(None);
        };
        let mounts = File::open(format!("/proc/{pid}/ns/mnt")).context(what)?;
        let name = fs::read_link(format!("/proc/{pid}/ns/pid")).context(what)?;
        let mounts = mounts.into();
        Ok(Some(Self { namespace, proc: Source::Of { mounts, name } }))
    }

    /// The descriptors that a fork of the keeper has to keep open.
    pub(crate) fn descriptors(&self) -> [Option<&OwnedFd>; 2] {
        let mounts = match &self.proc {
            Source::Mounted(_) => None,
            Source::Of { mounts, .. } => Some(mounts),
        };
        [Some(&self.namespace), mounts]
    }

    /// A detached `/proc` of the namespace; none if there is no source.
    pub(crate) fn proc(&self) -> Step<Option<OwnedFd>> {
        match &self.proc {
            Source::Mounted(None) => Ok(None),
            Source::Mounted(Some(path)) => {
                mount::clone_tree(path, false).map(Some).context("share the pod's /proc")
            }
            Source::Of { mounts, name } => {
                let found = mount::in_namespace(mounts.as_fd(), || Ok(mount::own_proc(name)));
                found?.map(Some).ok_or_else(|| {
                    let message = "failed to share the target container's processes: its /proc is not the one that it was given";
                    Failure::new(FailureKind::WrongState, message)
                })
            }
        }
    }
}

/// The process namespace of `pid`; none if it is this process's own.
pub(crate) fn namespace(pid: i32) -> std::io::Result<Option<OwnedFd>> {
    let path = format!("/proc/{pid}/ns/pid");
    if fs::read_link(Path::new("/proc/self/ns/pid_for_children"))? == fs::read_link(&path)? {
        return Ok(None);
    }
    Ok(Some(File::open(path)?.into()))
}
