//! Commands that add and remove images.

pub(crate) mod load;
pub(crate) mod pull;
pub(crate) mod rmi;
