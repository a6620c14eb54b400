//! Tests of the `crib` command from a user's perspective: arguments, output, exit codes, and that nothing is left.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod browser;
mod clients;
mod cluster;
mod command;
mod nodes;
mod runs;
mod tmux;
mod tools;
mod workloads;
