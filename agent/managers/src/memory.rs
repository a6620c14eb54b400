//! Memory nodes: which containers have memory of which.

mod checkpoint;
pub(crate) mod manager;
pub(crate) mod policy;
pub(crate) mod state;
