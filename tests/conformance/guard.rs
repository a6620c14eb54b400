//! What containers, images and clients must not be able to do.

pub(crate) mod authority;
pub(crate) mod confinement;
pub(crate) mod file_permissions;
pub(crate) mod hostile_input;
pub(crate) mod inheritance;
pub(crate) mod malformed;
pub(crate) mod robustness;
pub(crate) mod seccomp;
pub(crate) mod security;
pub(crate) mod security_modules;
pub(crate) mod shared_pids;
pub(crate) mod socket_access;
pub(crate) mod string_validation;
pub(crate) mod userns;
