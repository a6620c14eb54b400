//! The certificates of a node, which its cluster signs: the first one, and those that replace it.

pub(crate) mod bootstrap;
mod request;
pub(crate) mod rotation;
pub(crate) mod store;
pub(crate) mod validity;
