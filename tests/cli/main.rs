//! The `crib` command as its users see it: arguments in; lines, exit codes and nothing left behind out.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod agent_flags;
mod agents;
mod calls;
mod check;
mod command;
mod controllers;
mod crictl;
mod dead_runs;
mod ends;
mod events;
mod examples;
mod explain_run;
mod interpreters;
mod kinds;
mod lifecycle;
mod limits;
mod live;
mod no_namespaces;
mod output;
mod pull_secrets;
mod readme;
mod reference;
mod registry;
mod run;
mod servers;
mod services;
mod socket_access;
mod streams;
mod temporary;
mod terminal;
mod tmux;
mod told;
mod usage;
mod volumes;
mod watch;
