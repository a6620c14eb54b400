//! The mounts of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::contract::plan::IdMappings;

/// A mount in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// The source.
    pub source: MountSource,
    /// The absolute path in the container; links are resolved in the container's root.
    #[serde(rename = "target")]
    pub destination: PathBuf,
    /// The mount is read-only.
    pub read_only: bool,
    /// The mounts below it are read-only too.
    pub recursive_read_only: bool,
    /// The propagation of later mounts.
    pub propagation: Propagation,
    /// Further mount flags.
    #[serde(rename = "forbidden")]
    pub flags: Vec<MountFlag>,
    /// The id mappings of its files, if they are mapped.
    #[serde(default)]
    pub ids: Option<IdMappings>,
    /// Its files get the container's SELinux label, if it has one.
    #[serde(default)]
    pub relabel: bool,
}

/// The source of a mount.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A file or directory of the host; a missing one is created as a directory.
    Host(PathBuf),
    /// A part of a volume of the host. It exists, and its path contains no symbolic links; the keeper follows none.
    SubPath {
        /// The absolute path of the volume.
        volume: PathBuf,
        /// Relative to it; empty means all of it.
        sub_path: PathBuf,
    },
    /// A path in an image.
    Image {
        /// Unpacked layers, topmost first.
        layers: Vec<PathBuf>,
        /// Relative to the image's root; empty means all of it.
        sub_path: PathBuf,
        /// The mount point for the layers, in the container's directory; a copy if overlayfs does not work.
        at: PathBuf,
    },
    /// A volume of the pod in memory, which the keeper has mounted.
    Memory {
        /// Its mount point, in the sandbox's directory.
        at: PathBuf,
        /// Relative to it; missing parts are created as directories.
        sub_path: PathBuf,
    },
    /// The same path in the container's own root: it stays writable when the root is read-only.
    Own,
}

/// A volume of a pod in memory. All its containers share it, and it ends with the pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryVolume {
    /// The host path by which the client names it.
    pub path: PathBuf,
    /// Its mount point, in the sandbox's directory.
    pub at: PathBuf,
    /// Its size in bytes.
    pub size: u64,
    /// The group of its files.
    pub group: Option<u32>,
}

/// Whether later mounts propagate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// In neither direction.
    Private,
    /// From the host to the container.
    #[serde(rename = "from_host")]
    Slave,
    /// In both directions.
    #[serde(rename = "both")]
    Shared,
}

/// A mount flag, as in `mount_setattr`. Plans keep the older names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountFlag {
    /// Programs in it cannot be executed.
    #[serde(rename = "programs")]
    NoExec,
    /// Set-user-ID and set-group-ID bits have no effect.
    #[serde(rename = "set_uid")]
    NoSuid,
    /// Devices in it cannot be opened.
    #[serde(rename = "devices")]
    NoDev,
    /// Access times are not updated.
    #[serde(rename = "access_times")]
    NoAtime,
    /// Access times of directories are not updated.
    #[serde(rename = "directory_access_times")]
    NoDirAtime,
    /// Symbolic links in it are not followed.
    #[serde(rename = "links")]
    NoSymfollow,
}
