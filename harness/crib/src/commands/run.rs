//! `crib run`: pods from manifests to the end, in one command.
//!
//! Reading order: `args` (what can be typed), `inputs` (manifests, or every problem with them), `session` (the directory, the
//! runtime, the end of both), `event_loop` (signals, the agent, the controllers of Jobs and their kind, the log files), `lifecycle` (event to next step),
//! `manifest_watch` and `apply` (`--watch`: changed manifests, and what that does to their pods), `daemon` (the runtime as a child),
//! `reach` (how other commands find it), `services` (their stream), `means` (what it can do here), `orphans` (its keepers, when it was killed), `root`
//! (the temporary directory), `dead_runs` and
//! `clean_up` (what killed ones left), `detach`, `background` and `started` (`--name`: the command at the terminal, the one in the
//! background, and when the first one ends), `questions` and `history` (what other commands ask), `tail` (log files to lines), `printer` (the only writer of
//! the two outputs) with `view`, `rows`, `marks`, `lines`, `notes` and `json`, which only make text.
//!
//! | task | owns | receives | sends |
//! |---|---|---|---|
//! | session | lifecycle, daemon, agent, controllers | signals, timer, agent's reports and transitions, questions | printer, tail, answers |
//! | questions | the socket `run.sock` | other commands | session |
//! | tail | log files, inotify | session: directories to follow | printer: lines |
//! | printer (thread) | standard output, standard error | session, tail | session: standard output was closed |

use std::time::Instant;

use self::args::RunArgs;
use crate::commands::pull_secrets;
use crate::exit::Exit;
use crate::report::{complain, say};

mod apply;
mod archived_images;
pub(crate) mod args;
mod background;
mod claims;
mod clean_up;
mod colour;
mod daemon;
mod dead_runs;
mod detach;
mod ending;
mod event_loop;
mod extended_resources;
mod fractional_bytes;
mod history;
mod immutable;
mod inputs;
mod json;
mod label;
mod lifecycle;
mod lines;
mod made_twice;
mod manifest_watch;
mod marks;
mod means;
mod named_pods;
mod node_fields;
mod node_ports;
mod notes;
mod of_cluster;
mod orphans;
mod printer;
mod questions;
mod reach;
mod reports;
mod root;
mod rows;
mod screen;
mod services;
mod session;
mod skipped;
mod started;
mod storage_limits;
mod tail;
mod taken_names;
mod view;

use self::background::Background;
pub(crate) use self::claims::bindings;
pub(crate) use self::clean_up::remove_dead_run;
pub(crate) use self::daemon::REMOVING;
pub(crate) use self::dead_runs::{RunLock, with_names};
pub(crate) use self::inputs::{Inputs, load};
pub(crate) use self::named_pods::named_pods;
pub(crate) use self::orphans::adopt as adopt_orphans;
pub(crate) use self::root::remove as remove_root;

/// Runs the pods. Called while the process has one thread.
pub(crate) fn run(args: &RunArgs) -> Exit {
    let started = Instant::now();
    if args.watch && args.manifests().iter().any(|path| path.as_os_str() == "-") {
        say("--watch: standard input cannot be watched: give files or directories");
        return Exit::BadInput;
    }
    if let Some(name) = args.name.as_ref().filter(|_| !args.detached) {
        return detach::start(args, name);
    }
    let mut inputs = match inputs::load(&args.manifests(), args.lenient, args.strict) {
        Ok(inputs) => inputs,
        Err(problems) => {
            for problem in &problems {
                say(problem);
            }
            return Exit::BadInput;
        }
    };
    if let Some(file) = &args.pull_secrets {
        inputs.pull_secrets = match pull_secrets::read(file) {
            Ok(secrets) => secrets,
            Err(problem) => {
                say(&problem);
                return Exit::BadInput;
            }
        };
    }
    let archives = match inputs::archives(&args.image_archive) {
        Ok(archives) => archives,
        Err(problem) => {
            say(&problem);
            return Exit::BadInput;
        }
    };
    match args.volumes.directory() {
        Ok(directory) => inputs.volumes_dir = directory,
        // A change of the manifests may add claims.
        Err(problem) if !inputs.claims.is_empty() || args.watch => {
            say(&problem);
            return Exit::BadInput;
        }
        // Nothing is kept there.
        Err(_) => {}
    }
    if !inputs.claims.is_empty()
        && let Err(error) = std::fs::create_dir_all(&inputs.volumes_dir)
    {
        let directory = inputs.volumes_dir.display();
        say(&format!(
            "failed to make {directory}: {error}: say where to keep the volumes of claims with --volumes-dir"
        ));
        return Exit::BadInput;
    }
    let background = match args.detached.then(Background::enter).transpose() {
        Ok(background) => background,
        Err(error) => {
            say(&format!("failed to leave the terminal: {error}"));
            return Exit::NoRuntime;
        }
    };
    // Only in the user namespace of its pods can an ordinary user remove what they wrote as other users. Root needs no
    // help, and the runtime finds out by itself what the box allows.
    if !nix::unistd::geteuid().is_root()
        && let Err(error) = runtime_fake::enter(args.isolation, args.state_dir.as_deref())
    {
        complain(&error);
        return Exit::NoRuntime;
    }
    let tokio = match tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
    {
        Ok(tokio) => tokio,
        Err(error) => {
            say(&format!("failed to start the event loop: {error}"));
            return Exit::NoRuntime;
        }
    };
    let exit = tokio.block_on(session::session(
        args, inputs, archives, background, started,
    ));
    // A blocking task that hangs must not keep the command from ending.
    tokio.shutdown_background();
    exit
}
