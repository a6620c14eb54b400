//! Compares the agent's decisions with those of Kubernetes 1.36.2 for the same input (see `tests/vectors/README.md`).
#![allow(
    clippy::unwrap_used,
    reason = "a malformed vector has to fail the test"
)]

mod actions;
mod backoff;
mod config;
mod inside;
mod kill;
mod restart;
mod status;
mod support;
mod validation;
