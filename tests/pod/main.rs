//! The agent and the runtime together, as separate processes: manifests become running containers, and either process
//! may be killed at any time. `tests/cli` tests the output of `crib run`.
#![allow(clippy::unwrap_used)]

mod client;
mod crash;
mod killed;
mod library;
mod life;
mod probes;
mod resize;
mod support;
mod volumes;
