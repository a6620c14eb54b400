//! What a daemon and its keepers exchange: plans, messages and their frames, descriptors and locks. No process is made here.

pub mod criu;
pub mod frame;
pub mod host;
pub mod host_devices;
pub mod liveness;
pub mod open_files;
pub mod orphan;
pub mod plan;
pub mod protocol;
