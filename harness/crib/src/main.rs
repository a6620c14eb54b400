//! The `crib` command: run pods, or serve the two halves (runtime and agent) by themselves.
//!
//! The order here matters. The keeper comes first, because it is one process a pod and must pay for nothing else. The command
//! line is read while the process has one thread, because entering a user namespace needs that; the subcommands do so before
//! they start tokio.

use std::process::ExitCode;

mod args;
mod cli;
mod client;
mod commands;
mod config;
mod dirs;
mod endpoint;
mod exit;
mod heap;
#[cfg(all(test, target_env = "gnu"))]
mod heap_tests;
mod live;
mod logging;
mod network;
mod pod_dialer;
mod report;
mod reported;
mod run_socket;
mod shutdown;
mod signals;
mod stream;
mod template;
mod terminal;
mod volumes_dir;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(word) if word == "__keeper" => runtime_fake::keeper_main(),
        Some(word) if word == runtime_fake::EGRESS_COMMAND => {
            runtime_fake::serve_egress();
            return ExitCode::SUCCESS;
        }
        // A helper of `crib bench`, which measures processes with one thread.
        Some(word) if word == harness::bench::FLOOR_COMMAND => {
            let second = std::env::args_os().nth(2);
            let network = second.is_some_and(|word| word == harness::bench::FLOOR_NETWORK);
            return match harness::bench::serve_floor(network) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Some(_) | None => {}
    }
    cli::dispatch(cli::Cli::read()).into()
}
