//! Commands that serve: the runtime, the agent, a registry and the proxy.

pub(crate) mod agent;
pub(crate) mod proxy;
pub(crate) mod registry;
pub(crate) mod runtime;
