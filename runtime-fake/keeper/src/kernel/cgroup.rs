//! Control groups: they limit a container, account for its usage, and kill all of it.
//!
//! `hierarchy` describes the hierarchies of the host, `limits` checks a client's limits, `path` decides where a cgroup
//! is and `plan` which files to write: all pure. `detect` inspects the host, `directory` makes cgroups and writes their
//! files, and `cleanup` counts OOM kills, kills processes and removes cgroups.
//!
//! A pod's cgroup is the client's `cgroup_parent`, or else `/cribXXXXXXXX/SANDBOX` (the digits are a hash of the state
//! directory). A container's cgroup is below its pod's. Keepers make the cgroups of containers, because they fork the containers'
//! processes. On v1 a process moves itself through descriptors that its keeper opened; on v2 it is created inside
//! (CLONE_INTO_CGROUP). Any other way waits for an RCU grace period, 10 ms and more.

pub mod cleanup;
pub mod detect;
pub mod device;
pub mod directory;
pub mod hierarchy;
pub mod limits;
pub mod path;
pub mod plan;
mod program;

use std::{fmt, io};

use serde::{Deserialize, Serialize};

pub use detect::Cgroups;
pub use device::DeviceRule;
pub use limits::{InvalidCgroup, Limits};
pub use path::CgroupPath;
pub use plan::Write;

/// A container's cgroup, which the keeper makes before it forks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CgroupPlan {
    /// Its path in the hierarchies.
    #[serde(rename = "place")]
    pub path: CgroupPath,
    /// Its limits, and on v1 its devices.
    pub writes: Vec<Write>,
    /// Its devices on v2; none if they are not restricted there.
    pub devices: Option<Vec<DeviceRule>>,
}

/// A failed operation on a cgroup.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what}")]
pub struct CgroupError {
    /// Completes "failed to …".
    pub what: String,
    /// The cause.
    pub source: io::Error,
}

impl CgroupError {
    /// Whether the client's request is the cause, not the host.
    pub fn is_the_clients(&self) -> bool {
        let codes = [libc::EINVAL, libc::ERANGE, libc::EBUSY, libc::EOPNOTSUPP];
        self.source.raw_os_error().is_some_and(|code| codes.contains(&code))
    }

    fn to(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        |source| Self { what, source }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
