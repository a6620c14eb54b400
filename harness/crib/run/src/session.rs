//! One `crib run`: creates its directory, starts its runtime and the event loop, and ends all of them.

use std::path::PathBuf;
use std::time::Instant;

use api::manifest::Workload;
use api::pod::Pod;
use crib_base::exit::Exit;
use crib_base::live::{NameError, ReservedName, RunName};
use crib_base::report::{chain, error_to_exit, io_error_to_exit, print_error, print_stderr};
use crib_base::signals::Signals;
use crib_base::{logging, run_socket};
use tokio::sync::mpsc;

use crate::args::RunArgs;
use crate::capabilities::{IdMapper, RuntimeCapabilities};
use crate::endpoint;
use crate::event_loop::{Loop, Outside};
use crate::input::inputs::Inputs;
use crate::processes::background::Background;
use crate::processes::clean_up;
use crate::processes::daemon::{Daemon, Launch};
use crate::processes::dead_runs::{self, RunLock};
use crate::processes::orphans;
use crate::processes::root::{self, Root, RootError};
use crate::requests::{self, PendingRequest};

/// Runs the pods until they end, then cleans up. `started` is the start time of the command.
pub(crate) async fn session(
    args: &RunArgs,
    inputs: Inputs,
    image_archives: Vec<PathBuf>,
    background: Option<Background>,
    started: Instant,
) -> Result<Exit, Exit> {
    // Before any resource exists that needs cleaning up.
    let signals = Signals::listen().and_then(Signals::and_hang_up);
    let mut signals = io_error_to_exit("listen for signals", signals)?;
    orphans::adopt();
    clean_up::remove_dead_runs(&args.live_dir).await;
    let made = Root::make().and_then(|root| {
        let path = root.path().to_owned();
        let lock = RunLock::make(&path).map_err(|source| RootError::Lock { path, source })?;
        Ok((root, lock))
    });
    let (root, _lock) = error_to_exit(made, Exit::NoRuntime)?;
    let (requests, _name) = match open_to_commands(args, &root) {
        Ok(opened) => opened,
        Err((problem, exit)) => {
            print_stderr(&problem);
            if let Err(error) = root::remove(root.path()) {
                print_error(&error);
            }
            return Err(exit);
        }
    };
    let outside = Outside { requests, background };
    let launch = Launch {
        state_dir: args.state_dir.clone().unwrap_or_else(|| root.state()),
        root,
        isolation: args.isolation.to_string(),
        image_archives,
        keep: args.keep,
        live_dir: args.live_dir.clone(),
    };
    let (exit, kept) = with_root(args, inputs, &launch, outside, started, &mut signals).await;
    if !kept && let Err(error) = root::remove(launch.root.path()) {
        print_error(&error);
    }
    Ok(exit)
}

/// Listens for requests of other commands, and registers the run's name. The socket exists before the name is registered.
fn open_to_commands(
    args: &RunArgs,
    root: &Root,
) -> Result<(mpsc::UnboundedReceiver<PendingRequest>, Option<ReservedName>), (String, Exit)> {
    let requests = requests::serve(root.path()).map_err(|error| {
        let socket = run_socket::path(root.path());
        let socket = socket.display();
        (format!("failed to listen on {socket}: {error}"), Exit::NoRuntime)
    })?;
    let Some(name) = &args.name else {
        return Ok((requests, None));
    };
    let taken = ReservedName::take(&args.live_dir, name, root.path()).map_err(|error| {
        let exit = match error {
            NameError::InUse { .. } => Exit::BadInput,
            NameError::Io { .. } => Exit::NoRuntime,
        };
        (chain(&error), exit)
    })?;
    dead_runs::write_name(root.path(), name).map_err(|error| {
        let path = root.path().display();
        let problem = format!("failed to write the name of the run in {path}: {error}");
        (problem, Exit::NoRuntime)
    })?;
    Ok((requests, Some(taken)))
}

/// The part of the session that needs the directory. Returns whether the directory is still needed.
async fn with_root(
    args: &RunArgs,
    inputs: Inputs,
    launch: &Launch,
    outside: Outside,
    started: Instant,
    signals: &mut Signals,
) -> (Exit, bool) {
    let log = match (launch.root.log_file("runtime.log"), launch.root.log_file("agent.log")) {
        (Ok(runtime), Ok(agent)) => {
            logging::to_file(agent);
            runtime
        }
        (Err(error), _) | (_, Err(error)) => {
            print_error(&error);
            return (Exit::NoRuntime, false);
        }
    };
    let mut daemon = match Daemon::spawn(launch, log) {
        Ok(daemon) => daemon,
        Err(error) => {
            print_error(&error);
            return (Exit::NoRuntime, false);
        }
    };
    tokio::select! {
        ready = daemon.ready() => if let Err(error) = ready {
            print_error(&error);
            orphans::end().await;
            return (Exit::NoRuntime, false);
        },
        _ = signals.next() => {
            stop(daemon, launch, signals).await;
            return (Exit::Interrupted, false);
        }
    }
    let capabilities = match announce(args, &inputs, &launch.root).await {
        Ok(capabilities) => capabilities,
        Err(problem) => {
            print_stderr(&problem);
            stop(daemon, launch, signals).await;
            return (Exit::NoRuntime, false);
        }
    };
    endpoint::announce(args, &launch.root);
    let exit = match Loop::start(args, inputs, &capabilities, &launch.root, outside, started).await
    {
        Ok(running) => running.run(&mut daemon, signals).await,
        Err(problem) => {
            print_stderr(&problem);
            Exit::NoRuntime
        }
    };
    if launch.root.is_full() {
        let path = launch.root.path().display();
        print_stderr(&format!(
            "the disk of {path} is full, and output of containers may be missing: free some space, or set TMPDIR to a directory on another file system"
        ));
    }
    if args.keep && exit != Exit::NoRuntime {
        for line in keep_hints(&launch.root, daemon.pid()) {
            print_stderr(&line);
        }
        return (exit, true);
    }
    stop(daemon, launch, signals).await;
    (exit, false)
}

/// Prints the isolation of the pods, and warns about unsupported features; with `--strict`, these are errors.
async fn announce(
    args: &RunArgs,
    inputs: &Inputs,
    root: &Root,
) -> Result<RuntimeCapabilities, String> {
    let capabilities = RuntimeCapabilities::of_runtime(&root.socket())
        .await
        .map_err(|status| format!("failed to get the runtime's status: {}", status.message()))?;
    if !args.quiet {
        print_stderr(&format!("isolation: {}", capabilities.isolation));
        if let Some(reason) = &capabilities.isolation_reason {
            print_stderr(&format!("stronger isolation is unavailable: {reason}"));
        }
        if let Some(remedy) = capabilities.single_id(IdMapper::of_process()) {
            print_stderr(remedy);
        }
        if let Some(reason) = &capabilities.no_egress {
            print_stderr(&format!("pods cannot reach other hosts: {reason}"));
        }
    }
    if !args.quiet && !inputs.claims.is_empty() {
        let directory = inputs.volumes_dir.display();
        print_stderr(&format!(
            "PersistentVolumeClaim volumes are kept in {directory}: list and remove them with crib volume"
        ));
    }
    for warning in &inputs.warnings {
        print_stderr(&format!("warning: {warning}"));
    }
    let examples = inputs.workloads.iter().map(Workload::example);
    let pods: Vec<Pod> = inputs.pods.iter().cloned().chain(examples).collect();
    let has_services = !inputs.objects.all_services().is_empty();
    let beside = capabilities.beside_services(&pods, has_services);
    for missing in capabilities.dropped_limits(&pods).into_iter().chain(beside) {
        if args.how.strict {
            return Err(format!("--strict: {missing}"));
        }
        print_stderr(&format!("warning: {missing}"));
    }
    Ok(capabilities)
}

/// Ends the runtime, and cleans up after it if it exited unexpectedly. One more signal kills it.
async fn stop(daemon: Daemon, launch: &Launch, signals: &mut Signals) {
    let mut orderly = daemon.pid().is_some();
    let signal = async {
        signals.next().await;
    };
    if orderly && let Err(error) = daemon.stop(signal).await {
        print_error(&error);
        orderly = false;
    }
    orphans::end().await;
    // A runtime that exited cleanly has removed the directory.
    orderly |= !launch.root.path().exists();
    if !orderly && let Err(problem) = clean_up::clear(launch).await {
        print_stderr(&format!("failed to clean up after the runtime: {problem}"));
    }
}

/// The closing message of `--keep`.
fn keep_hints(root: &Root, pid: Option<u32>) -> Vec<String> {
    let (path, socket) = (root.path().display(), root.socket());
    let Some(pid) = pid else {
        return vec![format!("the runtime has ended; remove {path}")];
    };
    let name: Result<RunName, _> = format!("kept-{pid}").parse();
    let kept = name.map_err(std::io::Error::other);
    let kept = kept.and_then(|name| dead_runs::write_kept(root.path(), &name).map(|()| name));
    vec![
        format!("the pods keep running, with their runtime at unix://{}", socket.display()),
        "inspect them: crib pods, crib ps, crib logs POD, crib exec -it POD sh".to_owned(),
        match kept {
            Ok(name) => format!("end them:     crib down {name}"),
            Err(error) => format!(
                "end them:     kill {pid} (failed to register a name for `crib down`: {error})"
            ),
        },
    ]
}
