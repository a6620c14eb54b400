//! Files and mounts of containers.

pub(crate) mod accounts;
pub(crate) mod propagation;
pub(crate) mod tree_removal;
pub(crate) mod volumes;
