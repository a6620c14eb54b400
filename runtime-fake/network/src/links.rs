//! Interfaces and network namespaces, through netlink.

pub(crate) mod deletion;
pub(crate) mod link_query;
pub(crate) mod namespace;
pub(crate) mod netlink;
pub(crate) mod pod_netns;
pub(crate) mod requests;
