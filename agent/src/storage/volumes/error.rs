//! Errors of volumes and of a pod's directories.

use std::io;
use std::path::{Path, PathBuf};

use super::content::ContentError;
use crate::storage::claim_directories::DirectoryError;
use crate::storage::drivers::DriverError;
use api::claims::{ClaimName, Unbound};

/// An error of a volume or pod directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VolumeError {
    /// An I/O error.
    #[error("failed to {action} {path}")]
    Io {
        /// The failed operation.
        action: &'static str,
        /// The path.
        path: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The path does not match the volume's type.
    #[error("hostPath type check failed: {path} is not {expected}")]
    WrongType {
        /// Its path.
        path: String,
        /// The expected type.
        expected: &'static str,
    },
    /// The volume's type is unknown.
    #[error("{kind:?} is an invalid volume type")]
    UnknownType {
        /// The type.
        kind: String,
    },
    /// The volume's files are unknown.
    #[error(transparent)]
    Content(#[from] ContentError),
    /// A claim has no volume.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The directory of a claim.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Neither the runtime nor the agent supports volumes in memory.
    #[error(
        "this runtime cannot keep an emptyDir in memory (medium Memory), and the agent has no tmpfs that the pod can mount: leave medium out, or use crib runtime"
    )]
    Memory,
    /// The agent does not mount huge pages.
    #[error("volumes of huge pages are not supported: use medium Memory, or leave it out")]
    HugePages,
    /// The medium of an emptyDir is unknown.
    #[error("unknown storage medium {medium:?}")]
    UnknownMedium {
        /// The medium.
        medium: String,
    },
    /// `fsGroup` is not a valid group id.
    #[error("fsGroup {group} is not the id of a group")]
    Group {
        /// The id.
        group: i64,
    },
    /// Files cannot be given to an id outside the agent's user namespace.
    #[error(
        "{field} {id} is not mapped into the user namespace: give the user subordinate ids (/etc/subuid, /etc/subgid, newuidmap), or leave {field} out"
    )]
    UnmappedId {
        /// The field of the manifest.
        field: &'static str,
        /// The id.
        id: u32,
    },
    /// The volume is only available on other nodes.
    #[error("no matching NodeSelectorTerms")]
    NodeAffinity {
        /// The PersistentVolume.
        volume: String,
    },
    /// The agent does not support this kind of volume.
    #[error("this kind of volume is not supported")]
    Unsupported,
    /// The agent has no drivers.
    #[error(
        "CSI volumes need a node of a cluster (crib agent --kubeconfig, as root): use another kind of volume"
    )]
    NoDrivers,
    /// A driver failed.
    #[error(transparent)]
    Driver(#[from] DriverError),
    /// A directory is not removed, because something is mounted in it.
    #[error(
        "{} has a mount at {}: unmount it, so that the directory can be removed", directory.display(), mount.display()
    )]
    StillMounted {
        /// The directory.
        directory: PathBuf,
        /// The first mount in it.
        mount: PathBuf,
    },
}

/// Why a claim has no volume: part of the message of a `FailedMount` event.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClaimError {
    /// The claim does not exist.
    #[error(
        "error processing PVC {claim}: failed to fetch PVC from API server: persistentvolumeclaims {:?} not found",
        .claim.name
    )]
    NotFound {
        /// The claim.
        claim: ClaimName,
    },
    /// The claim is not bound.
    #[error("error processing PVC {name}: PVC is not bound: {reason}")]
    Unbound {
        /// The claim.
        name: ClaimName,
        /// The reason.
        reason: Unbound,
    },
    /// The API server has not bound it, or not to a volume that can be used.
    #[error("error processing PVC {claim}: {reason}")]
    Unusable {
        /// The claim.
        claim: ClaimName,
        /// The reason, as a kubelet's message.
        reason: String,
    },
    /// A block device is used as a file system, or a file system as a block device.
    #[error("volume {volume} has volumeMode {mode}, but is specified in {list}")]
    Mode {
        /// The volume's name in the pod.
        volume: String,
        /// Its volumeMode.
        mode: &'static str,
        /// The containers' field that refers to it.
        list: &'static str,
    },
    /// Another pod uses the claim, which only one pod may use. Kubernetes 1.36, pkg/volume/util/operationexecutor.
    #[error("volume uses the ReadWriteOncePod access mode and is already in use by another pod")]
    OfAnotherPod,
    /// A claim with an ephemeral volume's name does not belong to its pod.
    #[error(
        "error processing PVC {name}: PVC {name} was not created for pod {pod} (pod is not owner)"
    )]
    NotOfPod {
        /// The claim.
        name: ClaimName,
        /// The pod.
        pod: String,
    },
}

impl VolumeError {
    /// True if every retry fails with this manifest.
    pub(crate) fn is_of_manifest(&self) -> bool {
        match self {
            Self::UnknownType { .. }
            | Self::Group { .. }
            | Self::UnmappedId { .. }
            | Self::Memory
            | Self::HugePages
            | Self::UnknownMedium { .. }
            | Self::NoDrivers
            | Self::Unsupported => true,
            Self::Content(error) => error.is_of_manifest(),
            Self::Io { .. }
            | Self::WrongType { .. }
            | Self::Claim(_)
            | Self::NodeAffinity { .. }
            | Self::Directory(_)
            | Self::Driver(_)
            | Self::StillMounted { .. } => false,
        }
    }

    /// Whether the node cannot attach another volume of a driver.
    pub(crate) fn is_exhausted(&self) -> bool {
        matches!(self, Self::Driver(error) if error.is_exhausted)
    }
}

/// Adds the operation and its path to an I/O error.
pub(super) fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> VolumeError {
    let path = path.display().to_string();
    move |source| VolumeError::Io { action, path, source }
}
