//! What the agent asks of the drivers that mount volumes (Container Storage Interface). The agent makes no mount itself: a package
//! beside it speaks to the drivers, and finds on the disk what an earlier agent has had mounted.

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

/// The directory of such volumes in `<pod>/volumes`, which has one directory for each, and in `<pod>/volumeDevices`, which has a link
/// for each block device.
pub const DIRECTORY: &str = "kubernetes.io~csi";

/// A volume of a pod that a driver mounts.
#[derive(Clone, Debug, PartialEq)]
pub struct DriverVolume {
    /// Its name in the pod.
    pub name: String,
    /// The name of the PersistentVolume, or else its name in the pod.
    pub spec_name: String,
    /// What is mounted.
    pub source: DriverSource,
    /// The pod may not write to it.
    pub readonly: bool,
}

impl DriverVolume {
    /// The name that a kubelet's metrics have for volumes of its driver.
    pub(crate) fn plugin(&self) -> String {
        match &self.source {
            DriverSource::Inline(source) => plugin::of_driver(&source.driver),
            DriverSource::Persistent(volume) => plugin::of_persistent(volume),
        }
    }
}

/// What a driver mounts.
#[derive(Clone, Debug, PartialEq)]
pub enum DriverSource {
    /// A volume that is made for the pod, and ends with it.
    Inline(Box<CSIVolumeSource>),
    /// A PersistentVolume with `spec.csi`.
    Persistent(Arc<PersistentVolume>),
}

/// A volume that is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountedVolume {
    /// Where; of a block device, a link to it.
    pub path: PathBuf,
    /// It is a block device, and not a directory.
    pub is_device: bool,
    /// The agent has to give its files to the pod's `fsGroup`, if there is one.
    pub takes_group: bool,
    /// What became of it if its PersistentVolume is larger than its claim.
    pub expansion: Expansion,
}

/// What became of a volume that was to be expanded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expansion {
    /// It has the size that it is to have, or the node has nothing to do now.
    Unchanged,
    /// Its driver has expanded it.
    Expanded,
    /// It is not expanded for a pod that may not write to it.
    ReadOnly,
}

/// What a volume has of something, as its driver says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Amount {
    /// What pods can still use.
    pub available: u64,
    /// All of it.
    pub total: u64,
    /// What is used.
    pub used: u64,
}

/// What a driver says of the state of a volume.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverCondition {
    /// The volume cannot be used as it should.
    pub is_abnormal: bool,
    /// Why.
    pub message: String,
}

/// What a driver measures of a volume. What it does not say is `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverUsage {
    /// Its space.
    pub bytes: Option<Amount>,
    /// Its files and directories.
    pub inodes: Option<Amount>,
    /// Its state.
    pub condition: Option<DriverCondition>,
}

/// How many seconds calls of drivers took.
pub type DriverCalls = Map<DriverCall, Histogram>;

/// A call of a driver.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DriverCall {
    /// The driver's name.
    pub driver: String,
    /// The path of the call: its service and method.
    pub path: &'static str,
    /// The code of the response, as Go names it: `OK`.
    pub code: &'static str,
}

/// The step that failed, as events of a kubelet begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverStep {
    /// The volume is prepared for the node.
    MountDevice,
    /// It is mounted for the pod.
    SetUp,
    /// It is expanded when it has been mounted for the pod.
    ExpandMounted,
    /// It is expanded while the pod uses it.
    Expand,
    /// It is unmounted.
    TearDown,
    /// A block device is prepared for the node.
    SetUpDevice,
    /// It is given to the pod.
    MapDevice,
    /// It is expanded when it has been given to the pod.
    ExpandMapped,
    /// It is taken from the pod.
    UnmapDevice,
}

impl DriverStep {
    /// Whether it is a step of giving a block device to a pod, of which events have another reason.
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

/// Why a volume is not mounted or not unmounted. It is tried again.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct DriverError {
    /// What failed.
    pub step: DriverStep,
    /// The volume, by [`DriverVolume::spec_name`].
    pub volume: String,
    /// The cause, in a kubelet's words.
    pub message: String,
    /// Nothing failed: the cluster has not attached the volume to the node yet. A kubelet records no event.
    pub waits: bool,
}

/// The drivers of a node. A call that is dropped may have done its work.
#[async_trait]
pub trait VolumeDrivers: Send + Sync {
    /// Mounts a volume for the pod that has this directory. A repeated call finds it mounted.
    ///
    /// # Errors
    /// The driver is not registered or refuses, or the cluster does not say how.
    async fn mount(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<MountedVolume, DriverError>;

    /// Mounts a volume again that is mounted, if its driver asks for that, so that its files are brought up to date.
    ///
    /// # Errors
    /// As [`VolumeDrivers::mount`]. The volume stays as it is.
    async fn renew(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<(), DriverError>;

    /// Has a volume expanded that the pod uses, if its PersistentVolume has become larger and the cluster leaves it to the node.
    ///
    /// # Errors
    /// As [`VolumeDrivers::mount`]. The volume stays as it is.
    async fn expand(
        &self,
        pod: &Pod,
        pod_dir: &Path,
        volume: &DriverVolume,
    ) -> Result<Expansion, DriverError>;

    /// How often [`VolumeDrivers::renew`] is to be called.
    fn renewal_period(&self) -> Duration;

    /// Unmounts all volumes of the pod that has this directory, also those of an earlier agent.
    ///
    /// # Errors
    /// A volume is still mounted, or may be. The others are not.
    async fn unmount(&self, pod_dir: &Path) -> Result<(), DriverError>;

    /// Has a volume measured, by its [`DriverVolume::spec_name`], of the pod that has this directory. `None`: its driver does not
    /// measure volumes, or the pod does not have it.
    ///
    /// # Errors
    /// The driver is not registered or refuses, in words.
    async fn usage(&self, pod_dir: &Path, spec_name: &str) -> Result<Option<DriverUsage>, String>;

    /// How long the calls of drivers took until now.
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

/// Removes a directory with what is in it, but for other file systems. One that does not exist is removed.
///
/// # Errors
/// Something cannot be removed.
pub fn remove_tree(directory: &Path) -> io::Result<()> {
    Ok(file_tree::remove(directory)?)
}
