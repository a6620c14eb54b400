//! `crib run`: pods from manifests to the end, in one command.
//!
//! Reading order: `args` (command line), `input::inputs` (manifests, or every problem with them), `session` (the directory, the
//! runtime, the end of both), `event_loop` (signals, the agent, controllers, log files), `lifecycle` ◆ (event to next step).
//!
//! | module | what |
//! |---|---|
//! | `input` | manifests, checked beside this machine |
//! | `manifest_watch` | `--watch`: loads manifests again when files change |
//! | `hub` | the objects of the run in one store (package `cluster`, which also binds claims), where manifests, controllers and the agent meet |
//! | `store_cluster` | that store as the agent's cluster: the agent runs its pods, and their statuses are written back |
//! | `event_loop` | the clock of the controllers; it executes what they and `lifecycle` decide; `questions` answers other commands |
//! | `output` | `printer` writes; `lines`, `view`, `rows`, `marks`, `notes`, `json` ◆ format; `screen` is the live view |
//! | `output::tail` | follows the log files of containers |
//! | `processes::daemon`, `processes::root` | the runtime as a child, and the run's temporary directory |
//! | `processes::{detach, background}` | `--name`: the command at the terminal, and the one in the background |
//! | `started` ◆ | when the command at the terminal ends |
//! | `processes::{dead_runs, clean_up, orphans}` | what killed runs left, and who removes it |
//! | `questions`, `history`, `endpoint` | other commands ask over `run.sock` (`run_socket` of `crib-base`; names: `live::names` there) |
//! | `services`, `node_ports` | the stream of Services to the runtime, and whether node ports are free |
//! | `capabilities` | the isolation of the pods here, and which limits cannot be applied |
//! | `ending`, `reports`, `shown` ◆ | why pods end, the agent's last reports, what is shown of pods |
//!
//! A pod whose failure every retry repeats (`CriError::is_refusal` of the agent, `is_refused` in `reports`) is failed, not retried.
//!
//! No directory of a run is removed by another command while the run or its runtime holds its lock. The runtime is a child process:
//! this package starts `crib runtime` and never serves calls itself.
//!
//! | task | owns | receives | sends |
//! |---|---|---|---|
//! | session | lifecycle, daemon, agent, controllers | signals, timer, reports, transitions, questions | printer, tail, answers |
//! | questions | the socket `run.sock` | other commands | session |
//! | tail | log files, inotify | session: directories to follow | printer: lines |
//! | printer (thread) | standard output, standard error | session, tail | session: standard output was closed |

use std::time::Instant;

use crib_base::exit::Exit;
use crib_base::pull_secrets;
use crib_base::report::{event_loop, or_complain, or_failed, or_say, say};
use crib_base::volumes_in_memory;
use tokio::runtime::Builder;

mod args;
mod capabilities;
mod ending;
mod endpoint;
mod event_loop;
mod history;
mod hub;
mod input;
mod lifecycle;
mod manifest_watch;
mod node_ports;
mod output;
mod processes;
mod questions;
mod reports;
mod services;
mod session;
mod shown;
mod started;
mod store_cluster;

pub use args::RunArgs;
pub use input::claims::bindings;
pub use input::inputs::{Inputs, ManifestArgs, load};
pub use processes::clean_up::remove_dead_run;
pub use processes::daemon::REMOVING;
pub use processes::dead_runs::{RunLock, is_kept, with_names};
pub use processes::orphans::adopt as adopt_orphans;
pub use processes::root::{RootError, remove as remove_root};

use processes::background::Background;

/// Threads and processes of a run with one pod: those of this process, of its runtime, and of the pod.
const THREADS: usize = 32;

/// Runs the pods. Called while the process has one thread.
pub fn run(args: &RunArgs) -> Result<Exit, Exit> {
    let started = Instant::now();
    or_complain(runtime_fake::ensure_host_files(), Exit::NoRuntime)?;
    // Its runtime needs as many.
    or_complain(runtime_fake::ensure_open_files(), Exit::NoRuntime)?;
    // Before its directory is made, which it could not remove.
    or_complain(runtime_fake::ensure_openat2(), Exit::NoRuntime)?;
    if args.watch && args.manifests().iter().any(|path| path.as_os_str() == "-") {
        say("--watch: standard input cannot be watched: give files or directories");
        return Err(Exit::BadInput);
    }
    if let Some(name) = args.name.as_ref().filter(|_| !args.detached) {
        return Ok(processes::detach::start(args, name));
    }
    let watched = args.watch.then(|| input::watched::watch(&args.manifests()));
    let inputs = input::inputs::load(&args.manifests(), args.how);
    let mut inputs = inputs.map_err(|problems| {
        problems.iter().for_each(|problem| say(problem));
        Exit::BadInput
    })?;
    if let Some(file) = &args.pull_secrets {
        inputs.pull_secrets = or_say(pull_secrets::read(file), Exit::BadInput)?;
    }
    let archives = or_say(input::inputs::archives(&args.image_archive), Exit::BadInput)?;
    match args.volumes.directory() {
        Ok(directory) => inputs.volumes_dir = directory,
        // A change of the manifests may add claims.
        Err(problem) if !inputs.claims.is_empty() || args.watch => {
            say(&problem);
            return Err(Exit::BadInput);
        }
        // Nothing is kept there.
        Err(_) => {}
    }
    if !inputs.claims.is_empty()
        && let Err(error) = file_tree::directory::make(&inputs.volumes_dir, 0o777)
    {
        let directory = inputs.volumes_dir.display();
        say(&format!(
            "failed to create {directory}: {error}: set a directory for PersistentVolumeClaim volumes with --volumes-dir"
        ));
        return Err(Exit::BadInput);
    }
    inputs.watched = or_failed("watch the manifests", watched.transpose())?;
    inputs.volumes_in_memory = Some(volumes_in_memory::maker());
    inputs.seccomp_profile_root = args.seccomp_profiles.directory();
    let background = args.detached.then(Background::enter).transpose();
    let background = or_failed("detach from the terminal", background)?;
    // Only in the user namespace of its pods can an ordinary user remove what they wrote as other users. Root needs no
    // help, and the runtime finds out by itself what the box allows.
    if !nix::unistd::geteuid().is_root() {
        let entered = runtime_fake::enter(args.isolation, args.state_dir.as_deref());
        or_complain(entered, Exit::NoRuntime)?;
    }
    let tokio = event_loop(Builder::new_multi_thread().worker_threads(2), THREADS)?;
    let ended = tokio.block_on(session::session(args, inputs, archives, background, started));
    // A blocking task that hangs must not keep the command from ending.
    tokio.shutdown_background();
    ended
}
