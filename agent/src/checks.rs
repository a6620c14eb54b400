//! Probes, and the connections that probes and hooks make.

pub mod dialer;
pub mod http_action;
pub mod http_client;
pub mod probe;
