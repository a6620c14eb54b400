//! What is wrong with a pod's specification.

pub(crate) mod container;
pub(crate) mod declared;
pub(crate) mod dns;
pub(crate) mod env;
pub(crate) mod lifecycle;
pub(crate) mod mounts;
pub(crate) mod probe;
pub(crate) mod resources;
pub(crate) mod scheduling;
pub(crate) mod security;
pub(crate) mod volume;
pub(crate) mod windows;
