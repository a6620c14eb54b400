//! The mounts of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::plan::IdMaps;

/// Something to be seen in a container besides its root.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountPlan {
    /// What is mounted.
    pub source: MountSource,
    /// The absolute path in the container; links are followed inside the container's root only.
    pub target: PathBuf,
    /// No write through this mount.
    pub read_only: bool,
    /// ... nor through the mounts below it.
    pub recursive_read_only: bool,
    /// Whether later mounts show on the other side.
    pub propagation: Propagation,
    /// What else is forbidden.
    pub forbidden: Vec<Forbidden>,
    /// How the ids of the files are mapped, if they are.
    #[serde(default)]
    pub ids: Option<IdMaps>,
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
    FromHost,
    /// Both ways.
    Both,
}

/// What a mount forbids or does without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Forbidden {
    /// No program runs from it.
    Programs,
    /// No program from it gains another user's rights.
    SetUid,
    /// No device in it can be opened.
    Devices,
    /// Reading leaves no access time.
    AccessTimes,
    /// ... on directories.
    DirectoryAccessTimes,
    /// No symbolic link in it is followed.
    Links,
}
