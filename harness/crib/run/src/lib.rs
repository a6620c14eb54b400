//! `crib run`: runs pods from manifests until they end, in one command.
//!
//! Reading order: `args` (command line), `input::inputs` (manifests, or all errors in them), `session` (the directory and the
//! runtime, from start to end), `event_loop` (signals, the agent, controllers, log files), `lifecycle` ◆ (event to next step).
//!
//! | module | content |
//! |---|---|
//! | `input` | manifests, and checks against this machine |
//! | `manifest_watch` | `--watch`: reloads manifests when files change |
//! | `hub` | the objects of the run in one store (package `cluster`, which binds claims), shared by manifests, controllers and the agent |
//! | `store_cluster` | the store as the agent's cluster: the agent runs its pods and writes back their statuses |
//! | `event_loop` | drives the controllers and `lifecycle`, and executes their decisions; `requests` answers other commands |
//! | `output` | `printer` writes; `lines`, `view`, `rows`, `marks`, `notes`, `json` ◆ format; `screen` is the live view |
//! | `output::tail` | follows the log files of containers |
//! | `processes::daemon`, `processes::root` | the runtime as a child, and the run's temporary directory |
//! | `processes::{detach, background}` | `--name`: the command at the terminal, and the process in the background |
//! | `started` ◆ | the condition for the command at the terminal to end |
//! | `processes::{dead_runs, clean_up, orphans}` | cleaning up after killed runs |
//! | `requests`, `history`, `endpoint` | queries of other commands over `run.sock` (`run_socket`, `live::names` of `crib-base`) |
//! | `services`, `node_ports` | the Services stream to the runtime, and a check that node ports are free |
//! | `capabilities` | the isolation of the pods, and the limits that the runtime cannot apply |
//! | `ending`, `reports`, `snapshot` ◆ | reasons for ending pods, the agent's latest reports, the view of pods |
//!
//! A pod that fails in the same way on every retry (`CriError::is_refusal` of the agent, `is_refused` in `reports`) counts as
//! failed and is not retried.
//!
//! The run and its runtime lock the run's directory; no other command removes it while it is locked. The runtime is a child
//! process: this package starts `crib runtime` and never serves calls itself.
//!
//! | task | owns | receives | sends |
//! |---|---|---|---|
//! | session | lifecycle, daemon, agent, controllers | signals, timer, reports, transitions, requests | printer, tail, responses |
//! | requests | the socket `run.sock` | other commands | session |
//! | tail | log files, inotify | session: directories to follow | printer: lines |
//! | printer (thread) | standard output, standard error | session, tail | session: standard output was closed |

use std::time::Instant;

use crib_base::exit::Exit;
use crib_base::pull_secrets;
use crib_base::report::{
    error_to_exit, event_loop, io_error_to_exit, message_to_exit, print_stderr,
};
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
mod reports;
mod requests;
mod services;
mod session;
mod snapshot;
mod started;
mod store_cluster;

pub use args::RunArgs;
pub use input::claims::bindings;
pub use input::inputs::{Inputs, ManifestArgs, full_names, load};
pub use processes::clean_up::remove_dead_run;
pub use processes::daemon::REMOVING;
pub use processes::dead_runs::{RunLock, is_kept, with_names};
pub use processes::orphans::adopt as adopt_orphans;
pub use processes::root::{RootError, remove as remove_root};

use processes::background::Background;

/// The number of threads and processes of a run with one pod, its runtime and the pod included.
const THREADS: usize = 32;

/// Runs the pods. Must be called while the process has a single thread.
pub fn run(args: &RunArgs) -> Result<Exit, Exit> {
    let started = Instant::now();
    error_to_exit(runtime_fake::ensure_host_files(), Exit::NoRuntime)?;
    // The runtime needs as many open files.
    error_to_exit(runtime_fake::ensure_open_files(), Exit::NoRuntime)?;
    // Checked before the run's directory is created, because removing it needs openat2.
    error_to_exit(runtime_fake::ensure_openat2(), Exit::NoRuntime)?;
    if args.watch && args.manifests().iter().any(|path| path.as_os_str() == "-") {
        print_stderr("--watch: standard input cannot be watched: give files or directories");
        return Err(Exit::BadInput);
    }
    if let Some(name) = args.name.as_ref().filter(|_| !args.detached) {
        return Ok(processes::detach::start(args, name));
    }
    let watched = args.watch.then(|| input::watched::watch(&args.manifests()));
    let inputs = input::inputs::load(&args.manifests(), args.how);
    let mut inputs = inputs.map_err(|problems| {
        problems.iter().for_each(|problem| print_stderr(problem));
        Exit::BadInput
    })?;
    if let Some(file) = &args.pull_secrets {
        inputs.pull_secrets = message_to_exit(pull_secrets::read(file), Exit::BadInput)?;
    }
    let archives = message_to_exit(input::inputs::archives(&args.image_archive), Exit::BadInput)?;
    match args.volumes.directory() {
        Ok(directory) => inputs.volumes_dir = directory,
        // A change of the manifests may add claims.
        Err(problem) if !inputs.claims.is_empty() || args.watch => {
            print_stderr(&problem);
            return Err(Exit::BadInput);
        }
        // Without claims, nothing is stored there.
        Err(_) => {}
    }
    if !inputs.claims.is_empty()
        && let Err(error) = file_tree::directory::make(&inputs.volumes_dir, 0o777)
    {
        let directory = inputs.volumes_dir.display();
        print_stderr(&format!(
            "failed to create {directory}: {error}: set a directory for PersistentVolumeClaim volumes with --volumes-dir"
        ));
        return Err(Exit::BadInput);
    }
    inputs.watched = io_error_to_exit("watch the manifests", watched.transpose())?;
    inputs.volumes_in_memory = Some(volumes_in_memory::maker());
    inputs.seccomp_profile_root = args.seccomp_profiles.directory();
    let background = args.detached.then(Background::enter).transpose();
    let background = io_error_to_exit("detach from the terminal", background)?;
    // Only inside the pods' user namespace can a user other than root remove files that pods created with other user ids. Root
    // needs no user namespace, and the runtime detects the machine's capabilities itself.
    if !nix::unistd::geteuid().is_root() {
        let entered = runtime_fake::enter(args.isolation, args.state_dir.as_deref());
        error_to_exit(entered, Exit::NoRuntime)?;
    }
    let tokio = event_loop(Builder::new_multi_thread().worker_threads(2), THREADS)?;
    let ended = tokio.block_on(session::session(args, inputs, archives, background, started));
    // A blocking task that hangs must not delay the end of the command.
    tokio.shutdown_background();
    ended
}
