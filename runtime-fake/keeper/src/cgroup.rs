//! Control groups: what limits a container, counts what it uses, and ends all of it.
//!
//! `hierarchy` says what a box has, `limits` what a client may ask for, `path` where a cgroup is and `plan` which
//! files are to be written: all pure. `detect` looks at the box, `directory` makes cgroups and writes their files,
//! `cleanup` tells what the kernel killed for want of memory, kills, and takes away.
//!
//! A pod's cgroup is the client's (`cgroup_parent`) or `/cribXXXXXXXX/SANDBOX`, by the state directory; a container's is one
//! below. Keepers make those of containers, since they fork them: a process enters on v1 by itself, through descriptors that
//! its keeper opened, and on v2 by being born there. Anything else waits for an RCU grace period, 10 ms and more.

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

/// A container's cgroup: what a keeper makes before it forks.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct CgroupPlan {
    /// Where it is in the hierarchies.
    #[serde(rename = "place")]
    pub path: CgroupPath,
    /// Its limits, and its devices on v1.
    pub writes: Vec<Write>,
    /// Its devices on v2; none when nothing restricts them there.
    pub devices: Option<Vec<DeviceRule>>,
}

/// What could not be done to a cgroup.
#[derive(Debug, thiserror::Error)]
#[error("failed to {what}")]
pub struct CgroupError {
    /// Completes "failed to …".
    pub what: String,
    /// Why.
    pub source: io::Error,
}

impl CgroupError {
    /// Whether it is about what the client asked for, not about the box.
    pub fn is_the_clients(&self) -> bool {
        let codes = [libc::EINVAL, libc::ERANGE, libc::EBUSY, libc::EOPNOTSUPP];
        self.source
            .raw_os_error()
            .is_some_and(|code| codes.contains(&code))
    }

    fn to(what: impl fmt::Display) -> impl FnOnce(io::Error) -> Self {
        let what = what.to_string();
        |source| Self { what, source }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
