//! A pod's network namespace, held open.
//!
//! The kernel may reuse a process id before `/proc/PID` is opened: then the namespace is another pod's, or the host's. So the
//! namespace is opened once, and then the keeper's pidfd, which never refers to another process, confirms that the keeper still
//! had its id. The open descriptor cannot change.

use std::{
    fs::{self, File, Metadata},
    io,
    os::{
        fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    sync::{Mutex, PoisonError},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde::{Deserialize, Serialize};

use crate::NetError;
use crate::links;
use crate::links::link_query;
use crate::links::netlink::Netlink;

/// Identifies a namespace while it exists (`namespaces(7)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(file: &Metadata) -> Self {
        Self { device: file.dev(), inode: file.ino() }
    }
}

/// A pod's network namespace, and the keeper that it belongs to.
#[derive(Debug)]
pub struct PodNetns {
    namespace: OwnedFd,
    identity: Identity,
    /// The keeper's pidfd; `None` if the namespace is created before its keeper.
    keeper: Option<OwnedFd>,
    /// A socket in the namespace, so that no thread has to enter the namespace for one.
    netlink: Mutex<Option<Netlink>>,
}

impl PodNetns {
    /// Creates a network namespace for a keeper to enter.
    pub fn make() -> io::Result<Self> {
        let (namespace, netlink) = links::make_namespace_with(|| Ok(Netlink::open().ok()))?;
        let namespace = File::from(namespace);
        Ok(Self {
            identity: Identity::of(&namespace.metadata()?),
            namespace: namespace.into(),
            keeper: None,
            netlink: Mutex::new(netlink),
        })
    }

    /// Opens the network namespace of the keeper, whose process id is, or was, `pid`. Returns `None` if the keeper
    /// has ended, or has no network namespace of its own: the daemon's own is never a pod's.
    pub fn open(pid: i32, keeper: OwnedFd) -> io::Result<Option<Self>> {
        let opened = File::open(format!("/proc/{pid}/ns/net"));
        // If the keeper still runs, `pid` was its id: the kernel reuses an id only after its process has ended.
        if has_ended(&keeper)? {
            return Ok(None);
        }
        let opened = opened?;
        let identity = Identity::of(&opened.metadata()?);
        let own = Identity::of(&fs::metadata("/proc/self/ns/net")?);
        Ok((identity != own).then(|| Self {
            namespace: opened.into(),
            identity,
            keeper: Some(keeper),
            netlink: Mutex::default(),
        }))
    }

    /// Takes the socket in the namespace; `None` from the second call on.
    pub(crate) fn netlink(&self) -> Option<Netlink> {
        self.netlink.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn identity(&self) -> Identity {
        self.identity
    }

    /// A path to the namespace for other processes, valid as long as this value. It leads through this process and
    /// not the keeper, which may end at any time.
    pub(crate) fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.namespace.as_raw_fd())
    }

    /// Whether the pod's keeper has ended.
    pub fn has_ended(&self) -> io::Result<bool> {
        self.keeper.as_ref().map_or(Ok(false), has_ended)
    }

    /// Whether the namespace has an interface of this name.
    pub(crate) fn has_interface(&self, name: &str) -> Result<bool, NetError> {
        let link =
            links::within(Some(self.as_fd()), || link_query::link(&mut Netlink::open()?, name));
        let link = link.map_err(|source| NetError::Namespace {
            doing: "entering the pod's network namespace",
            source,
        })?;
        Ok(link?.is_some())
    }
}

impl AsFd for PodNetns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.namespace.as_fd()
    }
}

/// Whether the process of a pidfd has ended: the pidfd is then readable (`pidfd_open(2)`).
pub fn has_ended(process: &OwnedFd) -> io::Result<bool> {
    let mut ended = [PollFd::new(process.as_fd(), PollFlags::POLLIN)];
    Ok(poll(&mut ended, PollTimeout::ZERO)? > 0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;

    fn open(child: &Child) -> (i32, OwnedFd) {
        let pid = Pid::from_child(child);
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        (pid.as_raw_pid(), pidfd)
    }

    #[test]
    fn open_rejects_own_namespace() {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let (pid, keeper) = open(&child);
        let opened = PodNetns::open(pid, keeper);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(opened.unwrap().is_none());
    }

    /// The id may have been reused: here it is this process's, which runs.
    #[test]
    fn open_rejects_namespace_of_reused_pid() {
        let mut child = Command::new("true").spawn().unwrap();
        let (_, keeper) = open(&child);
        child.wait().unwrap();
        let own = i32::try_from(std::process::id()).unwrap();
        assert!(PodNetns::open(own, keeper).unwrap().is_none());
    }
}
