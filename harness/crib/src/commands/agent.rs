//! `crib agent`: keeps the pods of a directory of manifests running on any CRI runtime.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use agent::clock::SystemClock;
use agent::dialer::SystemDialer;
use clap::Args;
use runtime_fake::IsolationRequest;
use tokio_util::sync::CancellationToken;

use crate::args::UnixEndpoint;
use crate::dirs::default_dir;
use crate::exit::Exit;
use crate::logging::{self, LogArgs};
use crate::report::{complain, say};
use crate::shutdown;

/// How long the agent may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

/// Run the pods of a manifest directory on a runtime
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib agent --runtime-endpoint unix:///run/crib/crib.sock --manifests /etc/crib/manifests
  crib agent --runtime-endpoint unix:///run/containerd/containerd.sock --manifests pods/

The agent runs each manifest in the directory, recreates the pod of a changed one and ends the pod of a removed one. \
Pods keep running when the agent exits; the next agent with the same directories adopts them. SIGTERM or \
SIGINT ends it within 10 s, a second signal at once.")]
pub(crate) struct AgentArgs {
    /// The runtime's CRI endpoint
    #[arg(long, value_name = "unix:///PATH", env = "CONTAINER_RUNTIME_ENDPOINT")]
    runtime_endpoint: UnixEndpoint,
    /// Directory of manifests: *.yaml, *.yml and *.json
    #[arg(long, value_name = "DIR")]
    manifests: PathBuf,
    /// Directory for volumes [default: /var/lib/crib-agent for root, $XDG_DATA_HOME/crib-agent for others]
    #[arg(long, value_name = "DIR")]
    root_dir: Option<PathBuf>,
    /// Directory for container logs [default: logs in --root-dir]
    #[arg(long, value_name = "DIR")]
    pod_logs_dir: Option<PathBuf>,
    /// Name of this node [default: the host name]
    #[arg(long, value_name = "NAME")]
    node_name: Option<String>,
    #[command(flatten)]
    log: LogArgs,
}

/// Runs until a signal. Called while the process has one thread.
pub(crate) fn run(args: AgentArgs) -> Exit {
    logging::to_stderr(args.log);
    if !args.manifests.is_dir() {
        say(&format!(
            "{} is not a directory: set --manifests to a directory of manifests",
            args.manifests.display()
        ));
        return Exit::BadInput;
    }
    let root_dir = match args
        .root_dir
        .clone()
        .map_or_else(|| default_dir("crib-agent"), Ok)
    {
        Ok(dir) => dir,
        Err(problem) => {
            say(&format!(
                "{problem}: say where to keep volumes with --root-dir"
            ));
            return Exit::BadInput;
        }
    };
    // Containers own files in volumes, set-user-ID programs too if they like.
    if let Err(error) = file_tree::private::make(&root_dir) {
        complain(&error);
        return Exit::NoRuntime;
    }
    // An ordinary user's containers own files as subordinate ids, which only a user namespace of the same ids can remove.
    if !nix::unistd::geteuid().is_root()
        && let Err(error) = runtime_fake::enter(IsolationRequest::Auto, Some(&root_dir))
    {
        complain(&error);
        return Exit::NoRuntime;
    }
    let shutdown = match shutdown::on_signal(LONGEST_END) {
        Ok(shutdown) => shutdown,
        Err(error) => {
            say(&format!("failed to listen for signals: {error}"));
            return Exit::NoRuntime;
        }
    };
    let tokio = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(tokio) => tokio,
        Err(error) => {
            say(&format!("failed to start the event loop: {error}"));
            return Exit::NoRuntime;
        }
    };
    let exit = tokio.block_on(serve(args, root_dir, shutdown));
    // A blocking task that hangs, in a volume say, must not keep the command from ending.
    tokio.shutdown_background();
    exit
}

async fn serve(args: AgentArgs, root_dir: PathBuf, shutdown: CancellationToken) -> Exit {
    let socket = args.runtime_endpoint.to_string();
    let connecting = agent::cri::grpc::connect(&socket);
    let connected = tokio::select! {
        connected = connecting => connected,
        () = shutdown.cancelled() => return Exit::Interrupted,
    };
    let cri = match connected {
        Ok(cri) => cri,
        Err(error) => {
            complain(&error);
            return Exit::NoRuntime;
        }
    };
    let pod_logs_dir = args.pod_logs_dir.unwrap_or_else(|| root_dir.join("logs"));
    let mut config = agent::Config::new(root_dir, pod_logs_dir);
    config.node_name = args.node_name.unwrap_or_else(super::node_name);
    let parts = agent::Parts {
        cri,
        clock: Arc::new(SystemClock),
        dialer: Arc::new(SystemDialer),
        sources: vec![Box::new(agent::source::directory(args.manifests))],
    };
    tracing::info!(version = env!("CARGO_PKG_VERSION"), runtime = %args.runtime_endpoint, node = config.node_name, "starting");
    let agent = agent::start(config, parts);
    shutdown.cancelled().await;
    tracing::info!("stopping; the pods keep running");
    agent.stop().await;
    Exit::Success
}
