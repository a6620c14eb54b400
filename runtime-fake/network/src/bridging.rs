//! The bridge of a runtime: its subnets and addresses, the ports of pods, and what pods may send through them.

pub(crate) mod bridge;
pub(crate) mod bridge_config;
pub(crate) mod bridge_setup;
pub(crate) mod further;
pub(crate) mod ipam;
pub(crate) mod names;
pub(crate) mod orphans;
pub(crate) mod segments;
pub(crate) mod spoofing;
pub(crate) mod subnet;
pub(crate) mod subnet6;
pub(crate) mod subnet_lock;
