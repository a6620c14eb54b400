//! The node itself: its address, memory, configuration, what pods may take of it, and pressure.
//!
//! - [`allocatable`] ◆, `node_memory`: what pods may request. [`node_address`]: the address that they see.
//! - [`kubelet_config`] ◆: which settings of a kubelet's configuration file have an effect.
//! - [`eviction`] ◆: when pods are evicted for node pressure, and which first; no task acts on it yet. `eviction::local_storage`
//!   decides when a pod is evicted for its own limits of storage; `worker::storage` measures and acts.

pub mod agent_id;
pub mod allocatable;
pub mod eviction;
pub mod kubelet_config;
pub mod node_address;
pub(crate) mod node_memory;
