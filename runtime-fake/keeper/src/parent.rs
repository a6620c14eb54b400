//! The keeper's own side: calls of the daemon, children from the fork to the exit, their output and logs, records of their exits,
//! host ports, and the zygote that keepers are forked from.

pub(crate) mod cgroups;
pub(crate) mod connection;
pub(crate) mod container;
pub(crate) mod dispatch;
pub(crate) mod dump;
pub(crate) mod exec;
pub(crate) mod exec_processes;
pub(crate) mod exit;
pub(crate) mod forward;
pub(crate) mod limit;
pub mod log;
pub(crate) mod output;
pub(crate) mod record;
pub(crate) mod tickets;
pub(crate) mod watchers;
pub(crate) mod zygote;
