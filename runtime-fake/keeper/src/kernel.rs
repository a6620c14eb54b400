//! Adapters of the kernel: system calls, mounts, cgroups, seccomp, paths below a root. They know neither pods nor plans.

pub mod capability;
pub mod cgroup;
pub mod failure;
pub(crate) mod interpreter;
pub(crate) mod mount;
pub mod seccomp;
pub(crate) mod secure_join;
pub(crate) mod sys;
pub(crate) mod unshare;
