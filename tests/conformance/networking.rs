//! Networks of pods.

pub(crate) mod cni;
pub(crate) mod egress;
pub(crate) mod host_ports;
pub(crate) mod network;
pub(crate) mod packet_rules;
