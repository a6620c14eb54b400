//! The mounts of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::IdMappings;

/// Something to be seen in a container besides its root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// What is mounted.
    pub source: MountSource,
    /// The absolute path in the container; links are followed inside the container's root only.
    #[serde(rename = "target")]
    pub destination: PathBuf,
    /// No write through this mount.
    pub read_only: bool,
    /// ... nor through the mounts below it.
    pub recursive_read_only: bool,
    /// Whether later mounts show on the other side.
    pub propagation: Propagation,
    /// Further flags of the mount.
    #[serde(rename = "forbidden")]
    pub flags: Vec<MountFlag>,
    /// How the ids of the files are mapped, if they are.
    #[serde(default)]
    pub ids: Option<IdMappings>,
    /// The files get the container's SELinux label, if it has one.
    #[serde(default)]
    pub relabel: bool,
}

/// What is mounted.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountSource {
    /// A file or directory of the host; a directory is made where there is nothing.
    Host(PathBuf),
    /// What an image has at a path.
    Image {
        /// Unpacked layers, topmost first.
        layers: Vec<PathBuf>,
        /// Relative to the image's root; empty is all of it.
        sub_path: PathBuf,
        /// Where the layers can be put together, in the container's directory; a copy where overlayfs does not work.
        at: PathBuf,
    },
    /// What the container's own root has there: it stays writable when the root is not.
    Own,
}

/// Whether mounts that are made later show on the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Propagation {
    /// Neither way.
    Private,
    /// The host's show in the container.
    #[serde(rename = "from_host")]
    Slave,
    /// Both ways.
    #[serde(rename = "both")]
    Shared,
}

/// A flag of a mount, as `mount_setattr` has it. Plans keep the older names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MountFlag {
    /// No program runs from it.
    #[serde(rename = "programs")]
    NoExec,
    /// No program from it gains another user's rights.
    #[serde(rename = "set_uid")]
    NoSuid,
    /// No device in it can be opened.
    #[serde(rename = "devices")]
    NoDev,
    /// Reading leaves no access time.
    #[serde(rename = "access_times")]
    NoAtime,
    /// ... on directories.
    #[serde(rename = "directory_access_times")]
    NoDirAtime,
    /// No symbolic link in it is followed.
    #[serde(rename = "links")]
    NoSymfollow,
}
