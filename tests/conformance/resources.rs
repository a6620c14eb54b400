//! Cgroups, devices, memory and full disks.

pub(crate) mod cgroup_lifecycle;
pub(crate) mod cgroups;
pub(crate) mod devices;
pub(crate) mod full_disk;
pub(crate) mod memory_volumes;
pub(crate) mod metrics;
