//! The `crib` command as its users see it: arguments in; lines, exit codes and nothing left behind out.
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
