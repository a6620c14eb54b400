//! From a pod's specification to what the runtime is asked for: environment, names, resources, users, and whether the node takes it.
//!
//! - [`admission`] ◆: whether the node takes a pod, beside the sums in `admission::taken`; which pods give way (`admission::preemption`).
//! - [`spec`] ◆: sandboxes and containers for the runtime: `spec::cgroup` asks for weights of pods and QoS classes, `spec::memory` for
//!   volumes in memory.
//! - `env`, [`dns`], [`hosts`]: environment variables, `resolv.conf`, host name and hosts file.
//! - [`nested_mounts`] ◆: mounts below read-only ones.
//! - [`priority_class`], [`runtime_class`] ◆: what the objects say that pods name.
//! - [`references`]: the ConfigMaps, Secrets, claims and ClusterTrustBundles that a pod refers to.

pub mod admission;
pub mod dns;
pub mod env;
pub mod hosts;
pub(crate) mod huge_pages;
pub mod nested_mounts;
pub mod priority_class;
pub mod references;
pub mod runtime_class;
pub mod spec;
pub(crate) mod user_namespaces;
