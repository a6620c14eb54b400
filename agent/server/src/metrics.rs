//! Metrics of the agent, its node and its pods, with the kubelet's and cAdvisor's names.

pub(crate) mod cadvisor;
pub(crate) mod claims;
pub(crate) mod counts;
pub(crate) mod http;
pub(crate) mod kubelet;
pub(crate) mod process;
pub(crate) mod resizes;
pub(crate) mod resource;
pub(crate) mod slis;
pub(crate) mod starts;
pub(crate) mod text;
pub(crate) mod work;
