//! The agent and the runtime together, as processes of their own: manifests go in, processes come out, and either may be
//! killed at any time. What `crib run` shows of it is tested in `tests/cli`.
#![allow(clippy::unwrap_used)]

mod crash;
mod library;
mod life;
mod support;
mod trees;
