//! From a pod's specification to what the runtime is asked for: environment, names, resources, users, and whether the node takes it.

pub mod admission;
pub mod dns;
pub mod env;
pub mod hosts;
pub(crate) mod huge_pages;
pub mod priority_class;
pub mod references;
pub mod runtime_class;
pub mod spec;
pub(crate) mod trust_bundles;
pub(crate) mod user_namespaces;
