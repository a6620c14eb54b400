//! The `crib` command as its users see it: arguments in; lines, exit codes and nothing left behind out.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod calls;
mod command;
mod crictl;
mod dead_runs;
mod ends;
mod events;
mod lifecycle;
mod limits;
mod live;
mod output;
mod reference;
mod registry;
mod run;
mod servers;
mod streams;
mod temporary;
mod terminal;
mod tmux;
mod usage;
