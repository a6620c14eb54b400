//! Adapters of the kernel: system calls, mounts, cgroups, seccomp, paths below a root. They know neither pods nor plans.
//!
//! - `cgroup`: `limits` ◆ checks what a client may request, `plan` ◆ decides which files are written, `device` ◆ which devices a
//!   container may use, `path` ◆ where a cgroup is; `directory` makes cgroups, `cleanup` counts OOM kills and removes cgroups. No pid is
//!   written into `cgroup.procs`: that waits for an RCU grace period, 7 to 22 ms.
//! - `secure_join` looks up paths in a container's root with `openat2(RESOLVE_IN_ROOT)`.
//! - `mount` makes detached mounts. They belong to the mount namespace that they are attached in, and are never unmounted.
//! - `seccomp` compiles profiles to filters. The daemon compiles; a keeper only loads.
//! - `sys` and `cgroup::program` have the system calls without a safe wrapper: the only unsafe code of this package.
//! - `failure` is the error of a keeper's call, with the operation that failed.

pub mod capability;
pub mod cgroup;
pub mod failure;
pub(crate) mod interpreter;
pub(crate) mod mount;
pub mod seccomp;
pub(crate) mod secure_join;
pub(crate) mod sys;
