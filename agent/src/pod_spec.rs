//! Converts a pod's specification into requests to the runtime: environment, names, resources, users; and admission.
//!
//! - [`admission`] ◆: whether the node admits a pod, given the sums in `admission::admitted`; which pods are preempted
//!   (`admission::preemption`).
//! - [`spec`] ◆: sandboxes and containers for the runtime: `spec::cgroup` requests weights of pods and QoS classes, `spec::memory`
//!   volumes in memory.
//! - `env`, [`dns`], [`hosts`]: environment variables, `resolv.conf`, host name and hosts file.
//! - [`nested_mounts`] ◆: mounts below read-only ones.
//! - [`priority_class`], [`runtime_class`] ◆: the effects of PriorityClasses and RuntimeClasses on pods.
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
