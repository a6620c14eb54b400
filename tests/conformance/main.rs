//! What is crib's own in a Container Runtime Interface server, tested through its socket. What clients see of any runtime is
//! in the rules of `crib check`, which `runtime_keeps_every_rule` runs.
//!
//! Each test starts its own runtime, so tests run in parallel. Each test is also a leak test: dropping a runtime checks for
//! leftovers.
#![allow(clippy::unwrap_used)]

mod create;
mod files;
mod guard;
mod images;
mod needs;
mod networking;
mod processes;
mod protocol;
mod proxy;
mod resources;
mod restarts;
mod sandbox;
mod support;
