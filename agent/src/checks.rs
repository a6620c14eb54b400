//! Probes, and the connections that probes and hooks make.
//!
//! `probe::machine` ◆ decides what a probe records, `probe::ticker` ◆ when it runs, `probe::check` makes one check; one task,
//! `probe::prober`, owns the state of all probes. [`http_action`] ◆ builds the request of an `httpGet` action and [`http_client`] sends it.

pub mod dialer;
pub mod http_action;
pub mod http_client;
pub mod probe;
