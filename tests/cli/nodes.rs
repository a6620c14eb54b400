//! `crib agent`, `crib kubelet` and `crib runtime` as servers.

pub(crate) mod agent_cgroups;
pub(crate) mod agent_flags;
pub(crate) mod agent_swap;
pub(crate) mod agents;
pub(crate) mod devices;
pub(crate) mod kubelet;
pub(crate) mod process_limits;
pub(crate) mod read_only;
pub(crate) mod servers;
pub(crate) mod socket_access;
pub(crate) mod static_pods;
