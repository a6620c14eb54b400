//! Processes of containers: starts, ends, streams and logs.

pub(crate) mod behave;
pub(crate) mod exec;
pub(crate) mod interrupted_calls;
pub(crate) mod logs;
pub(crate) mod namespaces;
pub(crate) mod process_streams;
pub(crate) mod state_machine;
pub(crate) mod stop;
pub(crate) mod streaming;
pub(crate) mod terminal;
pub(crate) mod unresponsive_keepers;
pub(crate) mod zygote;
