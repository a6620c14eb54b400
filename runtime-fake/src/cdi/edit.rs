//! ◆ Applies the edits of a container's CDI devices to its launch plan. Pure.

use cri::v1::Mount;
use keeper::contract::plan::{DevicePlan, LaunchPlan, ProcessPlan};
use serde::{Deserialize, Serialize};

use crate::launch::{Invalid, devices, mounts};

/// The edits, with the device nodes as they are on the host.
#[derive(Debug, Default)]
pub(crate) struct PlanEdits {
    /// The edits to its processes.
    pub(crate) process: ProcessEdits,
    /// The device nodes to add.
    pub(crate) devices: Vec<DevicePlan>,
    /// The mounts to add.
    pub(crate) mounts: Vec<Mount>,
}

/// The edits to each process of a container: stored with it, for later execs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessEdits {
    /// `NAME=value`.
    pub(crate) env: Vec<String>,
    /// Additional groups.
    pub(crate) additional_gids: Vec<u32>,
}

impl PlanEdits {
    /// Applies the edits to `plan`: a node or a mount replaces the plan's one at the same path. The mounts are sorted again, so
    /// that none hides another one below it (CDI 1.0, SPEC.md, "containerEdits", and its Go library).
    pub(crate) fn apply(&self, plan: &mut LaunchPlan) -> Result<(), Invalid> {
        self.process.apply(&mut plan.process);
        for device in devices::for_isolation(plan.isolation, self.devices.clone())? {
            plan.devices.retain(|old| old.path != device.path);
            plan.devices.push(device);
        }
        for mount in mounts::of_devices(&self.mounts, plan.isolation)? {
            plan.mounts.retain(|old| old.destination != mount.destination);
            plan.mounts.push(mount);
        }
        if !self.mounts.is_empty() {
            mounts::sort(&mut plan.mounts);
        }
        Ok(())
    }
}

impl ProcessEdits {
    /// Applies the edits to `process`: a variable replaces the one of the same name.
    pub(crate) fn apply(&self, process: &mut ProcessPlan) {
        for variable in &self.env {
            let name = |pair: &str| pair.split('=').next().map(str::to_owned);
            process.env.retain(|old| name(old) != name(variable));
            process.env.push(variable.clone());
        }
        let groups = &mut process.user.additional_gids;
        for gid in &self.additional_gids {
            if !groups.contains(gid) {
                groups.push(*gid);
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
