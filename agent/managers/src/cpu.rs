//! Processors: which containers have some for themselves.

mod checkpoint;
mod distribute;
pub(crate) mod layout;
pub(crate) mod manager;
pub(crate) mod options;
pub(crate) mod policy;
pub(crate) mod set;
mod take;
