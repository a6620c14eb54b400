//! The node's object and its lease: registration, status and heartbeats.

pub(crate) mod addresses;
pub(crate) mod csi_node;
pub(crate) mod declared;
pub(crate) mod facts;
pub(crate) mod heartbeat;
pub(crate) mod lease;
pub(crate) mod limits;
pub(crate) mod machine;
pub(crate) mod pod_cidr;
pub(crate) mod registration;
pub(crate) mod startup;
pub(crate) mod status;
pub(crate) mod volumes_in_use;

#[cfg(test)]
mod tests;
