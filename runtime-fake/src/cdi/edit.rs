//! What the devices of a container change about its plan, as the specification of the Container Device Interface has it:
//! pure.

use cri::v1::Mount;
use keeper::plan::{DevicePlan, LaunchPlan, ProcessPlan};
use serde::{Deserialize, Serialize};

use crate::launch::{Invalid, devices, mounts};

/// The changes, with the nodes as they are on the host.
#[derive(Debug, Default)]
pub(crate) struct PlanEdits {
    /// What its processes get.
    pub(crate) process: ProcessEdits,
    /// The nodes that it gets.
    pub(crate) devices: Vec<DevicePlan>,
    /// The files and directories of the host that it gets.
    pub(crate) mounts: Vec<Mount>,
}

/// The changes to each process of a container: kept with it, for those that are run in it later.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProcessEdits {
    /// `NAME=value`.
    pub(crate) env: Vec<String>,
    /// Further groups.
    pub(crate) additional_gids: Vec<u32>,
}

impl PlanEdits {
    /// Changes `plan`: a node or a mount takes the place of the one that the plan has at its path, and mounts are sorted
    /// again, so that none hides one below it (CDI 1.0, SPEC.md, "containerEdits", and its Go library).
    pub(crate) fn apply(&self, plan: &mut LaunchPlan) -> Result<(), Invalid> {
        self.process.apply(&mut plan.process);
        for device in devices::for_isolation(plan.isolation, self.devices.clone())? {
            plan.devices.retain(|old| old.path != device.path);
            plan.devices.push(device);
        }
        for mount in mounts::of_devices(&self.mounts, plan.isolation)? {
            plan.mounts
                .retain(|old| old.destination != mount.destination);
            plan.mounts.push(mount);
        }
        if !self.mounts.is_empty() {
            mounts::sort(&mut plan.mounts);
        }
        Ok(())
    }
}

impl ProcessEdits {
    /// Changes `process`: a variable takes the place of the one of its name.
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
mod tests;
