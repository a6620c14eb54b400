//! The node itself: its address, memory, configuration, what pods may take of it, and pressure.

pub mod agent_id;
pub mod allocatable;
pub mod eviction;
pub mod kubelet_config;
pub mod node_address;
pub(crate) mod node_memory;
