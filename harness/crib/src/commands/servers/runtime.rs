//! `crib runtime`: serves the Container Runtime Interface on a unix socket.

use std::io::{Read as _, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use agent::cri::grpc::{ConnectError, connect};
use clap::Args;
use crib_base::args::UnixEndpoint;
use crib_base::dirs::{default_dir, temp_dir};
use crib_base::exit::Exit;
use crib_base::limits::{self, ensure_threads};
use crib_base::live;
use crib_base::logging::{self, LogArgs};
use crib_base::report::{
    error_to_exit, event_loop, io_error_to_exit, message_to_exit, print_error,
};
use crib_run::{REMOVING, RunLock, remove_root};
use image::NamedScript;
use nix::unistd::Gid;
use runtime_fake::{Config, Deadlines, EnteredIsolation, Isolation, IsolationRequest};
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::config::NetworkArgs;
use crate::config::{File, MirrorFlag, stream_address};
use crate::endpoint::{default_listen, listen};
use crate::shutdown;

/// Serve the Container Runtime Interface on a unix socket
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  crib runtime
  crib runtime --listen unix:///tmp/crib.sock --state-dir /tmp/crib
  crictl --runtime-endpoint unix:///run/crib/crib.sock pods

SIGTERM or SIGINT shuts the runtime down. Containers keep running after a shutdown, and the next runtime with the same \
state directory recovers the containers. With --ephemeral or --until-stdin-closes, a shutdown removes all pods. Even if \
calls hang, a shutdown takes at most 10 s, or 30 s if the runtime removes pods. A second signal ends the runtime \
immediately.")]
pub(crate) struct RuntimeArgs {
    /// Socket to listen on [default: unix:///run/crib/crib.sock for root, unix://$XDG_RUNTIME_DIR/crib/crib.sock for other users]
    #[arg(long, value_name = "unix:///PATH")]
    listen: Option<UnixEndpoint>,
    /// Directory for state and images [default: /var/lib/crib for root, $XDG_DATA_HOME/crib for other users]
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,
    /// Isolation mode: root (namespaces created by root), rootless (namespaces in a user namespace), process (no namespaces) or
    /// auto (the strongest mode that the machine supports)
    #[arg(long, default_value_t = IsolationRequest::Auto)]
    isolation: IsolationRequest,
    /// Add the images of this docker or OCI archive, OCI layout, or directory of archives and layouts; repeatable
    #[arg(long, value_name = "PATH")]
    image_archive: Vec<PathBuf>,
    /// Add an image whose containers execute a behaviour script (docs/testing.md) instead of a program, for tests of clients;
    /// repeatable
    #[arg(long, value_name = "IMAGE=SCRIPT")]
    behave: Vec<NamedScript>,
    #[command(flatten)]
    network: NetworkArgs,
    /// Configuration file; see examples/runtime.yaml
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Mirror to try before the registry HOST; *=URL sets a mirror for all registries; repeatable
    #[arg(long, value_name = "HOST=URL")]
    registry_mirror: Vec<MirrorFlag>,
    /// Exit when standard input is closed; implies --ephemeral
    #[arg(long)]
    until_stdin_closes: bool,
    /// Remove all pods when the runtime exits
    #[arg(long)]
    ephemeral: bool,
    /// Name or number of the group whose members may connect to the --listen socket
    #[arg(long, value_name = "GROUP")]
    socket_group: Option<String>,
    /// Address of the stream server for exec, attach and port-forward; port 0 selects a free port [default: 127.0.0.1:0]
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = stream_address)]
    stream_address: Option<SocketAddr>,
    /// Start a new session, so that a hang-up of the terminal does not end the runtime
    #[arg(long, hide = true)]
    own_session: bool,
    /// Directory to remove after everything else
    #[arg(long, hide = true)]
    remove_at_end: Option<PathBuf>,
    /// Directory in which to register this runtime while it runs
    #[arg(long, hide = true)]
    live_dir: Option<PathBuf>,
    /// For tests: timeout of calls to a keeper
    #[arg(long, hide = true, value_name = "SECONDS")]
    keeper_deadline: Option<u64>,
    /// For tests: directory of the files of the kernel's security modules
    #[arg(long, hide = true)]
    kernel_files: Option<PathBuf>,
    #[command(flatten)]
    log: LogArgs,
}

/// The number of threads and processes of a runtime without pods.
const THREADS: usize = 16;

/// Serves until a signal or, with --until-stdin-closes, the end of standard input. Must be called while the process has a single
/// thread.
pub(crate) fn run(args: RuntimeArgs) -> Result<Exit, Exit> {
    // Inherited descriptors must not leak into plugins, helpers and containers.
    runtime_fake::set_close_on_exec();
    if args.own_session {
        // setsid fails only for a process group leader, which already has its own group.
        let _ = nix::unistd::setsid();
    }
    logging::to_stderr(args.log);
    let file = args.config.as_deref().map_or_else(|| Ok(File::default()), File::read);
    let file = error_to_exit(file, Exit::BadInput)?;
    error_to_exit(runtime_fake::ensure_host_files(), Exit::NoRuntime)?;
    error_to_exit(runtime_fake::raise_open_files(), Exit::NoRuntime)?;
    let root = nix::unistd::geteuid().is_root();
    let state_dir = args.state_dir.clone().map_or_else(|| default_dir("crib"), Ok);
    let remedy = |problem| format!("{problem}: set a directory for state with --state-dir");
    let state_dir = message_to_exit(state_dir.map_err(remedy), Exit::BadInput)?;
    // Keepers change their working directory, and receive paths below this one.
    let state_dir = std::path::absolute(&state_dir).unwrap_or(state_dir);
    let endpoint = args.listen.clone().unwrap_or_else(|| {
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let uid = nix::unistd::geteuid().as_raw();
        default_listen(root, runtime_dir.as_deref(), &temp_dir(), uid)
    });
    let entered = runtime_fake::enter(args.isolation, Some(&state_dir));
    let EnteredIsolation { isolation, reason } = error_to_exit(entered, Exit::NoRuntime)?;
    // Held until the end, so that no other process removes the directory first.
    let _lock = args.remove_at_end.as_deref().and_then(|dir| RunLock::share(dir).ok());
    let group = args.socket_group.as_deref().map(|name| group_here(group_of(name)?, isolation));
    let group = message_to_exit(group.transpose(), Exit::BadInput)?;
    let ephemeral = args.ephemeral || args.until_stdin_closes;
    let bound = runtime_fake::max_shutdown_duration(ephemeral);
    message_to_exit(ensure_threads(THREADS), Exit::NoRuntime)?;
    let shutdown = io_error_to_exit("listen for signals", shutdown::on_signal(bound))?;
    if args.until_stdin_closes {
        stop_at_end_of_stdin(&shutdown, bound);
    }
    let mut tokio = Builder::new_multi_thread();
    tokio.worker_threads(2).on_thread_start(runtime_fake::take_short_turns);
    let tokio = event_loop(&mut tokio, 0)?;
    // Bound as late as possible: after this, only serving can fail, which removes the socket.
    let listener = error_to_exit(listen(endpoint.path(), group), Exit::NoRuntime)?;
    let entry = match &args.live_dir {
        Some(directory) => live::Entry::add(directory, &endpoint)
            .inspect_err(|error| {
                tracing::warn!(directory = %directory.display(), %error, "other commands cannot find this runtime");
            })
            .ok(),
        None => None,
    };
    let mut config = Config::new(state_dir, isolation);
    config.isolation_reason = reason;
    config.image_archives.clone_from(&args.image_archive);
    config.scripts.clone_from(&args.behave);
    config.ephemeral = ephemeral;
    config.socket_group = args.socket_group.is_some();
    config.socket = Some(endpoint.path().to_owned());
    file.apply(&mut config);
    args.network.apply(&mut config);
    MirrorFlag::apply(&args.registry_mirror, &mut config.registries);
    if let Some(directory) = &args.kernel_files {
        config.kernel_files.clone_from(directory);
    }
    if let Some(seconds) = args.keeper_deadline {
        config.deadlines = Deadlines::all(Duration::from_secs(seconds));
    }
    if let Some(address) = args.stream_address {
        config.streams.address = address;
    }
    let state_dir = config.state_dir.clone();
    limits::serve_on();
    let ended = tokio.block_on(serve(config, listener, &endpoint, shutdown));
    drop(entry);
    tokio.shutdown_background();
    // Another server could use the path only if the socket was removed by hand.
    let _ = std::fs::remove_file(endpoint.path());
    if args.remove_at_end.is_some() {
        shutdown::while_it_removes();
        // Removal may take long; the parent extends its timeout. Standard output may be closed.
        let _ = writeln!(std::io::stdout(), "{REMOVING}");
    }
    if ephemeral && let Err(error) = runtime_fake::delete_trash(&state_dir) {
        print_error(&error);
    }
    if let Some(dir) = &args.remove_at_end
        && let Err(error) = remove_root(dir)
    {
        print_error(&error);
    }
    ended
}

fn group_of(name: &str) -> Result<Gid, String> {
    if let Ok(number) = name.parse() {
        return Ok(Gid::from_raw(number));
    }
    match nix::unistd::Group::from_name(name) {
        Ok(Some(group)) => Ok(group.gid),
        Ok(None) => Err(format!("unknown group {name}: use a name from /etc/group or a number")),
        Err(error) => Err(format!("failed to look up the group {name}: {error}")),
    }
}

/// The group id inside the daemon's user namespace, if it entered one.
fn group_here(group: Gid, isolation: Isolation) -> Result<Gid, String> {
    if !matches!(isolation, Isolation::Rootless { .. }) {
        return Ok(group);
    }
    let map = std::fs::read_to_string("/proc/self/gid_map")
        .map_err(|error| format!("failed to read /proc/self/gid_map: {error}"))?;
    let inside = map.lines().find_map(|line| {
        let mut numbers = line.split_whitespace().map(str::parse::<u32>);
        let mut next = || numbers.next()?.ok();
        let (inside, outside, count) = (next()?, next()?, next()?);
        let offset = group.as_raw().checked_sub(outside)?;
        (offset < count).then(|| inside + offset)
    });
    inside.map(Gid::from_raw).ok_or_else(|| {
        format!(
            "cannot give the socket to group {group}: without root it must be your primary group or a subordinate one"
        )
    })
}

/// Waits until this daemon answers its own call. A daemon that recovers many pods, or starts on a slow machine, may take longer than
/// clients wait.
async fn first_answer<T>(
    mut connect: impl AsyncFnMut() -> Result<T, ConnectError>,
) -> Result<(), ConnectError> {
    loop {
        match connect().await {
            Err(ConnectError::Silent { .. }) => tracing::info!("still starting"),
            answer => return answer.map(drop),
        }
    }
}

async fn serve(
    config: Config,
    listener: std::os::unix::net::UnixListener,
    endpoint: &UnixEndpoint,
    shutdown: CancellationToken,
) -> Result<Exit, Exit> {
    let listener = tokio::net::UnixListener::from_std(listener);
    let listener = io_error_to_exit(&format!("listen on {endpoint}"), listener)?;
    let (state_dir, isolation) = (config.state_dir.display(), config.isolation);
    tracing::info!(version = env!("CARGO_PKG_VERSION"), socket = %endpoint, %state_dir, %isolation, "starting");
    let serving = runtime_fake::serve(listener, config, shutdown.clone());
    tokio::pin!(serving);
    // The parent waits for this line, so it is printed only after the first call has succeeded.
    let socket = endpoint.to_string();
    let ended = tokio::select! {
        ended = &mut serving => ended,
        answer = first_answer(|| connect(&socket)) => match answer {
            Ok(()) => {
                if writeln!(std::io::stdout(), "listening on {endpoint}").is_err() {
                    tracing::warn!("failed to write to standard output");
                }
                serving.await
            }
            // The runtime was asked to end before it could answer; it still has to clean up.
            Err(_) if shutdown.is_cancelled() => serving.await,
            Err(error) => {
                print_error(&error);
                shutdown.cancel();
                let _ = serving.await;
                return Err(Exit::NoRuntime);
            }
        },
    };
    error_to_exit(ended, Exit::NoRuntime).map(|()| Exit::Success)
}

/// Uses a separate thread, because a blocking read of standard input cannot be cancelled; it ends with the process.
fn stop_at_end_of_stdin(shutdown: &CancellationToken, bound: Duration) {
    let token = shutdown.clone();
    std::thread::spawn(move || {
        let mut buffer = [0; 512];
        let mut stdin = std::io::stdin().lock();
        while stdin.read(&mut buffer).is_ok_and(|length| length > 0) {}
        shutdown::within(bound);
        token.cancel();
        tracing::info!(cause = "standard input was closed", "ending");
    });
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[tokio::test]
    async fn slow_start_is_awaited() {
        let silent = || ConnectError::Silent { path: "/s".to_owned(), waited: Duration::ZERO };
        let mut answers = vec![Ok(()), Err(silent()), Err(silent())];
        first_answer(async || answers.pop().unwrap()).await.unwrap();
        assert!(answers.is_empty());
    }

    #[tokio::test]
    async fn failed_start_is_an_error() {
        let refused = async || connect("unix:///nothing/listens").await;
        let error = first_answer(refused).await.unwrap_err();
        assert!(matches!(error, ConnectError::NotReachable { .. }), "{error}");
    }
}
