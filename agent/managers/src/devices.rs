//! Devices, which plugins offer: programs of the devices' vendors on sockets in the agent's directory.

pub(crate) mod affinity;
mod checkpoint;
pub(crate) mod inventory;
pub(crate) mod manager;
mod plugin;
pub(crate) mod registration;
mod wire;
