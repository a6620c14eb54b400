//! The interface to drivers that mount volumes (Container Storage Interface). The agent itself makes no mounts: another package
//! calls the drivers, and finds mounts of an earlier agent on the disk.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use async_trait::async_trait;
use compact::Map;
use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume};

use super::volumes::plugin;
use crate::histogram::Histogram;

/// The directory in `<pod>/volumes` with one directory for each such volume, and in `<pod>/volumeDevices` with a link for each
/// block device.
pub const DIRECTORY: &str = "kubernetes.io~csi";

/// A volume of a pod that a driver mounts.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverVolume {
    /// Its name in the pod.
    pub name: String,
    /// The name of the PersistentVolume, or else its name in the pod.
    pub spec_name: String,
    /// The source of the volume.
    pub source: DriverSource,
    /// Whether the pod must not write to it.
    pub readonly: bool,
}

impl DriverVolume {
    /// A kubelet's name in metrics for volumes of this driver.
    pub(crate) fn plugin(&self) -> String {
        match &self.source {
            DriverSource::Inline(source) => plugin::of_driver(&source.driver),
            DriverSource::Persistent(volume) => plugin::of_persistent(volume),
        }
    }
}

/// The source of a driver's volume.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverSource {
    /// A volume that is created for the pod, and ends with it.
    Inline(Box<CSIVolumeSource>),
    /// A PersistentVolume with `spec.csi`.
    Persistent(Arc<PersistentVolume>),
}

/// A mounted volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// The mount point; for a block device, a link to it.
    pub path: PathBuf,
    /// Whether it is a block device instead of a directory.
    pub is_device: bool,
    /// Whether it was published for the pod only now.
    pub is_new: bool,
    /// Whether the agent must give its files to the pod's `fsGroup`, if there is one.
    pub takes_group: bool,
    /// The result of its expansion, if its PersistentVolume is larger than its claim.
    pub expansion: Expansion,
}

/// The result of a volume's expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    /// The volume has the requested size, or the node has nothing to do now.
    Unchanged,
    /// Its driver expanded it.
    Expanded,
    /// It is not expanded, because the pod must not write to it.
    ReadOnly,
}

/// A volume's usage of a resource, as reported by its driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// The available amount.
    pub available: u64,
    /// The total amount.
    pub total: u64,
    /// The used amount.
    pub used: u64,
}

/// The condition of a volume, as reported by its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCondition {
    /// Whether the volume is unhealthy.
    pub is_abnormal: bool,
    /// The reason.
    pub message: String,
}

/// A driver's measurements of a volume. Values that it does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverUsage {
    /// Its space.
    pub bytes: Option<Amount>,
    /// Its files and directories.
    pub inodes: Option<Amount>,
    /// Its state.
    pub condition: Option<DriverCondition>,
}

/// The durations of calls of drivers in seconds.
pub type DriverCalls = Map<DriverCall, Histogram>;

/// A call of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverCall {
    /// The driver's name.
    pub driver: String,
    /// The path of the call: its service and method.
    pub path: &'static str,
    /// The code of the response, by Go's name: `OK`.
    pub code: &'static str,
}

/// The failed step, with which a kubelet's messages begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverStep {
    /// Preparing the volume for the node.
    MountDevice,
    /// Mounting it for the pod.
    SetUp,
    /// Expanding it after it was mounted for the pod.
    ExpandMounted,
    /// Expanding it while the pod uses it.
    Expand,
    /// Unmounting it.
    TearDown,
    /// Preparing a block device for the node.
    SetUpDevice,
    /// Mapping it for the pod.
    MapDevice,
    /// Expanding it after it was mapped for the pod.
    ExpandMapped,
    /// Unmapping it from the pod.
    UnmapDevice,
}

impl DriverStep {
    /// Whether it is a step of mapping a block device, whose events have another reason.
    #[must_use]
    pub fn maps_device(self) -> bool {
        matches!(self, Self::SetUpDevice | Self::MapDevice | Self::ExpandMapped)
    }
}

impl fmt::Display for DriverStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::MountDevice => "MountVolume.MountDevice failed",
            Self::SetUp => "MountVolume.SetUp failed",
            Self::ExpandMounted => "MountVolume.Setup failed while expanding volume",
            Self::Expand => "NodeExpandVolume.NodeExpandVolume failed",
            Self::TearDown => "UnmountVolume.TearDown failed",
            Self::SetUpDevice => "MapVolume.SetUpDevice failed",
            Self::MapDevice => "MapVolume.MapPodDevice failed",
            Self::ExpandMapped => "MapVolume.MarkVolumeAsMounted failed while expanding volume",
            Self::UnmapDevice => "UnmapVolume.UnmapPodDevice failed",
        })
    }
}

/// Why a volume is not mounted or not unmounted. The operation is retried.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DriverError {
    /// The failed step.
    pub step: DriverStep,
    /// The volume, by [`DriverVolume::spec_name`].
    pub volume: String,
    /// The cause, as a kubelet's message.
    pub message: String,
    /// Whether nothing failed: the cluster has not attached the volume to the node yet. A kubelet records no event.
    pub waits: bool,
    /// Whether the node cannot attach another volume of the driver, so that the pod will be rejected.
    pub is_exhausted: bool,
}

/// The drivers of a node. A dropped call may have completed.
#[async_trait]
pub trait VolumeDrivers: Send + Sync {
    /// Mounts a volume for the pod with this directory. If it is already mounted, the call does nothing.
    ///
    /// # Errors
    /// If the driver is not registered or fails, or the cluster does not provide the required data.
    async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<MountedVolume, DriverError>;

    /// Remounts a mounted volume, if its driver requires it, so that its files are updated.
    ///
    /// # Errors
    /// As [`VolumeDrivers::mount`]. The volume stays as it is.
    async fn renew(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<(), DriverError>;

    /// Expands a volume that the pod uses, if its PersistentVolume has grown and the cluster leaves the expansion to the node.
    ///
    /// # Errors
    /// As [`VolumeDrivers::mount`]. The volume stays as it is.
    async fn expand(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<Expansion, DriverError>;

    /// The period for calls of [`VolumeDrivers::renew`].
    fn renewal_period(&self) -> Duration;

    /// Unmounts all volumes of the pod with this directory, including those of an earlier agent.
    ///
    /// # Errors
    /// If a volume is, or may be, still mounted. The others are unmounted.
    async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError>;

    /// Measures a volume, by its [`DriverVolume::spec_name`], of the pod with this directory. `None`: its driver does not measure
    /// volumes, or the pod does not have it.
    ///
    /// # Errors
    /// The message, if the driver is not registered or fails.
    async fn usage(&self, pod_dir: &Path, spec_name: &str) -> Result<Option<DriverUsage>, String>;

    /// The durations of calls of drivers so far.
    fn call_durations(&self) -> DriverCalls {
        DriverCalls::new()
    }
}

/// Whether the pod with this directory has, or may have, volumes that drivers have mounted. It blocks.
#[must_use]
pub fn has_volumes(pod_dir: &Path) -> bool {
    ["volumes", "volumeDevices"].iter().any(|kind| {
        let directory = pod_dir.join(kind).join(DIRECTORY);
        std::fs::read_dir(directory).is_ok_and(|mut entries| entries.next().is_some())
    })
}

/// Removes a directory with its content, except other file systems. A directory that does not exist counts as removed.
///
/// # Errors
/// If a part cannot be removed.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    Ok(file_tree::remove(directory)?)
}
