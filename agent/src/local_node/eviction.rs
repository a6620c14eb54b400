//! ◆ Node-pressure eviction: when a node runs out of a resource, and in which order pods are evicted.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/eviction. These modules only decide; `crate::eviction` acts: [`settings`] has the settings
//! of a kubelet's configuration and [`config`] its thresholds, [`observe`] finds those that are met, `pass` decides which are due,
//! `layout` what the node itself can reclaim, [`rank`] orders the pods, [`message`] composes the reason of an eviction, and
//! `notification` computes the memory usage that the kernel watches.

pub mod config;
pub(crate) mod layout;
pub(crate) mod local_storage;
pub mod message;
pub(crate) mod notification;
pub mod observe;
pub(crate) mod pass;
pub mod rank;
mod requests;
pub mod settings;
pub mod stats;

use std::fmt;

/// A measured value of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Memory that the pods together may still use.
    AllocatableMemoryAvailable,
    /// Bytes free in the file system of containers' writable layers.
    ContainerFsAvailable,
    /// Inodes free in the same file system.
    ContainerFsInodesFree,
    /// Bytes free in the file system of images.
    ImageFsAvailable,
    /// Inodes free in the same file system.
    ImageFsInodesFree,
    /// Memory of the node.
    MemoryAvailable,
    /// Bytes free in the file system of volumes and logs.
    NodeFsAvailable,
    /// Inodes free in the same file system.
    NodeFsInodesFree,
    /// Process ids.
    PidAvailable,
}

impl Signal {
    /// All signals, in the order of their names.
    pub const ALL: [Self; 9] = [
        Self::AllocatableMemoryAvailable,
        Self::ContainerFsAvailable,
        Self::ContainerFsInodesFree,
        Self::ImageFsAvailable,
        Self::ImageFsInodesFree,
        Self::MemoryAvailable,
        Self::NodeFsAvailable,
        Self::NodeFsInodesFree,
        Self::PidAvailable,
    ];

    /// The signal of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|signal| signal.as_str() == name)
    }

    /// Its name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllocatableMemoryAvailable => "allocatableMemory.available",
            Self::ContainerFsAvailable => "containerfs.available",
            Self::ContainerFsInodesFree => "containerfs.inodesFree",
            Self::ImageFsAvailable => "imagefs.available",
            Self::ImageFsInodesFree => "imagefs.inodesFree",
            Self::MemoryAvailable => "memory.available",
            Self::NodeFsAvailable => "nodefs.available",
            Self::NodeFsInodesFree => "nodefs.inodesFree",
            Self::PidAvailable => "pid.available",
        }
    }

    /// The resource that is short when the signal is low.
    #[must_use]
    pub fn resource(self) -> Resource {
        match self {
            Self::AllocatableMemoryAvailable | Self::MemoryAvailable => Resource::Memory,
            Self::ContainerFsAvailable | Self::ImageFsAvailable | Self::NodeFsAvailable => {
                Resource::EphemeralStorage
            }
            Self::ContainerFsInodesFree | Self::ImageFsInodesFree | Self::NodeFsInodesFree => {
                Resource::Inodes
            }
            Self::PidAvailable => Resource::Pids,
        }
    }

    /// The condition of a node whose signal is low.
    #[must_use]
    pub fn node_condition(self) -> &'static str {
        match self.resource() {
            Resource::Memory => "MemoryPressure",
            Resource::EphemeralStorage | Resource::Inodes => "DiskPressure",
            Resource::Pids => "PIDPressure",
        }
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A resource of the node that may be short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory.
    Memory,
    /// Bytes of a local file system.
    EphemeralStorage,
    /// Inodes of a local file system.
    Inodes,
    /// Process ids.
    Pids,
}

impl Resource {
    /// Its name in messages, and in requests where there is one.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::EphemeralStorage => "ephemeral-storage",
            Self::Inodes => "inodes",
            Self::Pids => "pids",
        }
    }
}
