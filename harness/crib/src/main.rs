//! The `crib` command: runs pods, or serves the runtime and the agent separately.
//!
//! The order in `main` matters. The keeper comes first, because there is one keeper process per pod, which must not pay for
//! anything else. The command line is parsed while the process has a single thread, because entering a user namespace requires it;
//! the subcommands do so before they start tokio.
//!
//! | module | content |
//! |---|---|
//! | `cli` | the subcommands and their help |
//! | `commands` | the subcommands, grouped into folders; `crib run` is the package `crib-run` |
//! | `commands::runs::get::printers` ◆ | the columns of `crib get` |
//! | `client` | shared by commands that call a runtime: `settings` (selects the runtime), `find` (selects a pod or container) |
//! | `client::{status, document, output}` | statuses, JSON and YAML, tables |
//! | `client::run_objects` | the objects of runs, and watches |
//! | `objects` ◆ | kinds, names, selectors and JSONPath as in kubectl |
//! | `template` ◆ | `-o go-template` |
//! | `stream`, `terminal` | the local end of exec and attach; the protocols are in `harness::streaming` |
//! | `config`, `endpoint` | the file and the flags of `crib runtime`, and its socket |
//! | `shutdown` | signals of `crib runtime` and `crib agent`: a thread cancels a token, and ends the process after a timeout |
//! | `reported` | the files that reports are written to |
//!
//! Exit codes, messages and finding runs are in the package `crib-base`. No package depends on this one.

use std::process::ExitCode;

use crib_base::exit::Exit;
use crib_base::limits;
use crib_base::report::{error_to_exit, print_stderr};

mod cli;
mod client;
mod commands;
mod config;
mod endpoint;
mod heap;
#[cfg(all(test, target_env = "gnu"))]
mod heap_tests;
mod objects;
mod reported;
mod shutdown;
mod stream;
mod template;
mod terminal;

fn main() -> ExitCode {
    match std::env::args_os().nth(1) {
        Some(word) if word == "__keeper" => runtime_fake::keeper_main(),
        Some(word) if word == runtime_fake::EGRESS_COMMAND => {
            runtime_fake::serve_egress();
            return ExitCode::SUCCESS;
        }
        // A helper of `crib bench`, which measures processes with a single thread.
        Some(word) if word == bench::FLOOR_COMMAND => {
            let second = std::env::args_os().nth(2);
            let network = second.is_some_and(|word| word == bench::FLOOR_NETWORK);
            return match bench::serve_floor(network) {
                Ok(()) => ExitCode::SUCCESS,
                Err(_) => ExitCode::FAILURE,
            };
        }
        Some(_) | None => {}
    }
    // Before the command line is parsed, which needs more stack than some limits allow.
    match error_to_exit(limits::prepare(print_stderr), Exit::NoRuntime) {
        Ok(()) => cli::dispatch(cli::Cli::read()).into(),
        Err(exit) => exit.into(),
    }
}
