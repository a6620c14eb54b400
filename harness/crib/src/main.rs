//! The `crib` command: run pods, or serve the two halves (runtime and agent) by themselves.
//!
//! The order here matters. The keeper comes first, because it is one process a pod and must pay for nothing else. The command
//! line is read while the process has one thread, because entering a user namespace needs that; the subcommands do so before
//! they start tokio.

use std::process::ExitCode;

use clap::Parser as _;

mod args;
mod cli;
mod client;
mod commands;
mod config;
mod dirs;
mod endpoint;
mod exit;
mod live;
mod logging;
mod network;
mod report;
mod shutdown;
mod signals;
mod stream;
mod template;
mod terminal;

fn main() -> ExitCode {
    if std::env::args_os()
        .nth(1)
        .is_some_and(|word| word == "__keeper")
    {
        runtime_fake::keeper_main();
    }
    cli::dispatch(cli::Cli::parse()).into()
}
