//! The devices of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A device in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its absolute path in the container.
    pub path: PathBuf,
    /// Its path on the host, to be mounted where no node can be made.
    pub host: PathBuf,
    /// What the node is.
    pub node: DeviceNode,
    /// What may be done with it, as cgroups write it: some of `r`, `w` and `m`.
    pub access: String,
}

/// A device's node, as it is on the host or as a specification wants it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Its owner and mode.
    #[serde(rename = "mode")]
    pub file_mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// Character or block devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DeviceKind {
    /// Bytes, one after the other.
    Character,
    /// Blocks, in any order.
    Block,
}

/// A device that was found on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path below what was asked for; empty for the very device.
    pub below: PathBuf,
    /// Where it is on the host.
    pub host: PathBuf,
    /// What it is.
    pub node: DeviceNode,
}
