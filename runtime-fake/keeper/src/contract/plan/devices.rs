//! The devices of a container.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::kernel::cgroup::device::DeviceKind;

/// A device in a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePlan {
    /// Its absolute path in the container.
    pub path: PathBuf,
    /// Its path on the host, which is mounted if mknod(2) is not allowed.
    pub host: PathBuf,
    /// Its device node.
    pub node: DeviceNode,
    /// The allowed access, in the form of cgroups: some of `r`, `w` and `m`.
    pub access: String,
}

/// A device node, as on the host or in a specification.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceNode {
    /// Its kind.
    pub kind: DeviceKind,
    /// Its major number.
    pub major: u32,
    /// Its minor number.
    pub minor: u32,
    /// Its file mode.
    #[serde(rename = "mode")]
    pub file_mode: u32,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
}

/// A device found on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Its path below the searched path; empty if that is the device itself.
    pub below: PathBuf,
    /// Its path on the host.
    pub host: PathBuf,
    /// Its device node.
    pub node: DeviceNode,
}
