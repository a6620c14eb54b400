//! `crib agent`: keeps the pods of manifests or of a cluster running on any CRI runtime.

use std::fs::File;
use std::io;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::clock::SystemClock;
use agent::cri::Cri;
use agent::local_node::agent_id::{self, AgentIdError};
use agent::local_node::kubelet_config::{self, KubeletConfiguration};
use agent::objects::directory::ObjectsDirectory;
use agent::objects::{ObjectMap, ObjectStore};
use clap::Args;
use crib_base::args::{UnixEndpoint, duration};
use crib_base::dirs::{SeccompProfileArgs, VolumesDirArgs, default_dir};
use crib_base::exit::Exit;
use crib_base::logging::{self, LogArgs};
use crib_base::pod_dialer::PodDialer;
use crib_base::report::{event_loop, or_complain, or_failed, or_say};
use crib_base::service_stream::Tables;
use crib_base::{limits, named_text, volumes_in_memory};
use kube_node::ClusterNode;
use kube_node::client::ApiClient;
use kubelet_server::{Exposed, Server};
use runtime_fake::IsolationRequest;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use crate::{heap, shutdown};

mod cgroups;
mod cluster;
mod images;
mod logs;
mod node;
mod pairs;
mod server;
mod show;
mod source;

use cgroups::CgroupArgs;
use cluster::ClusterArgs;
use images::ImageArgs;
use logs::{ContainerLogArgs, DeadContainerArgs};
use node::NodeArgs;
use server::ServerArgs;
use show::ShowArgs;
use source::{SourceArgs, Sources};

/// How long the agent may take to end.
const LONGEST_END: Duration = Duration::from_secs(10);

/// What the longest delay between restarts of a container may be (Kubernetes 1.36, pkg/apis/kubelet/validation).
const LONGEST_BACKOFF: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(300);

/// Run the pods of manifests, or of a cluster, on a runtime
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  crib agent --runtime-endpoint unix:///run/crib/crib.sock --manifests /etc/crib/manifests
  crib agent --runtime-endpoint unix:///run/crib.sock --manifest-mode kubelet --manifests pods/
  crib agent --runtime-endpoint unix:///run/crib.sock --kubeconfig node.kubeconfig --adopt-node

The agent runs each manifest, recreates the pod of a changed one and ends the pod of a removed one. \
Pods keep running when the agent exits; the next agent with the same directories adopts them. Pods that no manifest has \
are ended only if this agent started them: give a runtime of its own --adopt-node to end the others too. SIGTERM or \
SIGINT ends the agent within 10 s, a second signal immediately.

Flags have the kubelet's names where a kubelet has them. A flag takes precedence over its field in --config.")]
pub(crate) struct AgentArgs {
    /// The runtime's CRI endpoint
    #[arg(long, value_name = "unix:///PATH", env = "CONTAINER_RUNTIME_ENDPOINT")]
    runtime_endpoint: UnixEndpoint,
    /// KubeletConfiguration file; fields that the agent does not have are named in a warning
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Id of this agent, a label of its pods [default: made once and kept in --root-dir]
    #[arg(long, value_name = "ID")]
    agent_id: Option<String>,
    /// Treat every pod of the runtime as this agent's, as a kubelet does
    #[arg(long)]
    adopt_node: bool,
    /// Directory for volumes [default: /var/lib/crib-agent for root, $XDG_DATA_HOME/crib-agent for others]
    #[arg(long, value_name = "DIR")]
    root_dir: Option<PathBuf>,
    #[command(flatten)]
    volumes: VolumesDirArgs,
    /// Follow the runtime's events, and list its pods every 10 to 60 s, so that lists take little of the time; false: list them every second, as a kubelet does
    /// [default: true]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    event_driven_pleg: Option<bool>,
    /// How often each pod is compared with its manifest if nothing happens (1m, 90s) [default: 1m]
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    sync_frequency: Option<Duration>,
    #[command(flatten)]
    log: LogArgs,
    #[command(flatten)]
    cluster: ClusterArgs,
    #[command(flatten)]
    source: SourceArgs,
    #[command(flatten)]
    node: NodeArgs,
    #[command(flatten)]
    cgroups: CgroupArgs,
    #[command(flatten)]
    container_logs: ContainerLogArgs,
    #[command(flatten)]
    dead_containers: DeadContainerArgs,
    #[command(flatten)]
    images: ImageArgs,
    #[command(flatten)]
    seccomp_profiles: SeccompProfileArgs,
    #[command(flatten)]
    show: ShowArgs,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs until a signal. Called while the process has one thread.
pub(crate) fn run(args: AgentArgs) -> Result<Exit, Exit> {
    logging::to_stderr(args.log);
    let node_name = args.node.node_name.clone();
    let node_name = node_name.unwrap_or_else(crib_base::node::node_name);
    let file = args.config.as_deref().map(read_config).transpose();
    let file = file.map(Option::unwrap_or_default);
    let sources = file.and_then(|file| {
        let sources = args.source.sources(&file, &node_name, args.cluster.joins())?;
        args.cluster.check()?;
        Ok((file, sources))
    });
    let (file, sources) = or_say(sources, Exit::BadInput)?;
    let root_dir = args.root_dir.clone().map_or_else(|| default_dir("crib-agent"), Ok);
    let remedy = |problem| format!("{problem}: say where to keep volumes with --root-dir");
    let root_dir = absolute(or_say(root_dir.map_err(remedy), Exit::BadInput)?);
    // Containers own files in volumes, set-user-ID programs too if they like.
    or_complain(file_tree::private::make(&root_dir), Exit::NoRuntime)?;
    let agent_id = or_complain(agent_id(&args, &root_dir), Exit::BadInput)?;
    let configured = config(&args, &file, root_dir.clone(), node_name, agent_id);
    let (mut config, objects) = or_say(configured, Exit::BadInput)?;
    config.volumes_in_memory = Some(volumes_in_memory::maker());
    // An ordinary user's containers own files as subordinate ids, which only a user namespace of the same ids can remove.
    if !nix::unistd::geteuid().is_root() {
        let entered = runtime_fake::enter(IsolationRequest::Auto, Some(&root_dir));
        or_complain(entered, Exit::NoRuntime)?;
    }
    let _sole = or_complain(lock(&root_dir), Exit::NoRuntime)?;
    let shutdown = or_failed("listen for signals", shutdown::on_signal(LONGEST_END))?;
    heap::share();
    // One thread: tasks that change threads cost a fifth more of the processor's time, and a fifth more memory. What may last
    // is on threads of its own.
    let tokio = event_loop(&mut Builder::new_current_thread(), 6)?;
    limits::serve_on();
    let ended = tokio.block_on(serve(&args, &file, config, objects, sources, shutdown));
    // A blocking task that hangs, in a volume say, must not keep the command from ending.
    tokio.shutdown_background();
    if let Err(error) = volumes_in_memory::remove_if_empty(&root_dir) {
        tracing::warn!(%error, "failed to remove the directory of volumes in memory");
    }
    ended
}

/// The agent's configuration and the objects that pods refer to, or what is wrong with the flags, in words.
fn config(
    args: &AgentArgs,
    file: &KubeletConfiguration,
    root_dir: PathBuf,
    node_name: String,
    agent_id: String,
) -> Result<(agent::Config, ObjectMap), String> {
    let of_file = file.pod_logs_dir.as_ref().map(PathBuf::from);
    let pod_logs_dir = args.container_logs.pod_logs_dir.clone().or(of_file);
    let pod_logs_dir = pod_logs_dir.map_or_else(|| root_dir.join("logs"), absolute);
    let mut config = agent::Config::new(root_dir, pod_logs_dir);
    // Without a home directory, claims have their directories where the agent keeps everything.
    if let Ok(directory) = args.volumes.directory() {
        config.volumes_dir = directory;
    }
    config.node_name = node_name;
    config.agent_id = Some(agent_id);
    config.adopt_node = args.adopt_node;
    config.remove_at_once = !args.adopt_node;
    config.finish_starts = args.adopt_node;
    config.dead_containers = args.dead_containers.limits();
    let gates = file.feature_gates.as_ref();
    let gate = gates.and_then(|gates| gates.container_stop_signals);
    // Kubernetes 1.36 has it switched off.
    config.container_stop_signals = gate.unwrap_or(!args.adopt_node);
    config.event_driven_pleg = args.event_driven_pleg.unwrap_or(true);
    if let Some(period) = args.sync_frequency.or(file.sync_frequency) {
        config.resync_period = period;
    }
    let restarts = file.crash_loop_back_off.as_ref();
    if let Some(longest) = restarts.and_then(|back_off| back_off.max_container_restart_period) {
        if !LONGEST_BACKOFF.contains(&longest) {
            return Err(
                "--config: crashLoopBackOff.maxContainerRestartPeriod: expected 1s to 300s"
                    .to_owned(),
            );
        }
        config.crash_backoff = (config.crash_backoff.0.min(longest), longest);
    }
    config.seccomp_profile_root = args.seccomp_profiles.directory();
    config.seccomp_default = file.seccomp_default.unwrap_or_default();
    args.node.apply(file, args.cluster.joins(), &mut config)?;
    args.cgroups.apply(file, &mut config.cgroups)?;
    args.container_logs.apply(file, &mut config)?;
    let objects = args.images.apply(file, args.adopt_node, &mut config.images)?;
    Ok((config, objects))
}

/// The runtime takes absolute paths only.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

/// Reads a kubelet's configuration, and warns about the fields that have no effect.
fn read_config(path: &Path) -> Result<KubeletConfiguration, String> {
    let text = named_text::read_text(path)
        .map_err(|error| format!("failed to read --config {}: {error}", path.display()))?;
    let (config, ignored) = kubelet_config::parse(&text)
        .map_err(|error| format!("--config {}: {error}", path.display()))?;
    if !ignored.is_empty() {
        let (file, fields) = (path.display(), ignored.join(", "));
        tracing::warn!(%file, fields, "fields of --config have no effect");
    }
    Ok(config)
}

fn agent_id(args: &AgentArgs, root_dir: &Path) -> Result<String, AgentIdError> {
    match &args.agent_id {
        Some(id) => agent_id::check(id).map(|()| id.clone()),
        None => agent_id::kept_in(root_dir),
    }
}

async fn serve(
    args: &AgentArgs,
    file: &KubeletConfiguration,
    config: agent::Config,
    objects: ObjectMap,
    mut sources: Sources,
    shutdown: CancellationToken,
) -> Result<Exit, Exit> {
    let socket = args.runtime_endpoint.to_string();
    let connecting = agent::cri::grpc::connect(&socket);
    let connected = tokio::select! {
        connected = connecting => connected,
        () = shutdown.cancelled() => return Err(Exit::Interrupted),
    };
    let cri = or_complain(connected, Exit::NoRuntime)?;
    let sockets = or_say(args.show.bind(file, args.cluster.joins()).await, Exit::BadInput)?;
    announce(args, &config, cri.as_ref()).await;
    let store = Arc::new(ObjectStore::default());
    let mut directory = args.source.objects.clone().map(ObjectsDirectory::new);
    // Before any pod asks for them.
    store.set(match &mut directory {
        Some(directory) => directory.read(&objects).await,
        None => objects.clone(),
    });
    let asked = tokio::select! {
        asked = args.cluster.client(&config) => asked,
        () = shutdown.cancelled() => return Err(Exit::Interrupted),
    };
    let client = or_say(asked, Exit::BadInput)?;
    let server = match &client {
        Some(_) => or_say(
            args.server.bind(file, &config, args.cluster.signed(file, &config)).await,
            Exit::BadInput,
        )?,
        None => {
            ServerArgs::warn_without_cluster(file);
            None
        }
    };
    let (server, port) = server.unzip();
    let configz = server.as_ref().map(|server| server.configz(&config, sockets.ports()));
    let server = server.zip(client.clone()).zip(configz);
    let config_shown = config.clone();
    let serves = server.is_some() && args.server.makes_certificate(file);
    let certificates = args.cluster.certificates(file, &config, serves);
    let node =
        client.map(|client| cluster::node(client, &config, (port, certificates), &store, &objects));
    let (tables, proxy) = (Tables::default(), args.cluster.service_proxy());
    let node = node.map(|node| node.with_services(proxy, Arc::new(tables.clone())));
    let mut services = None;
    if let Some(node) = &node {
        sources.push(Box::new(node.pods()));
        let socket = args.runtime_endpoint.path().to_owned();
        let receiver = tables.subscribe();
        services = Some(cluster::serve_services(socket, receiver, proxy, node.limits()));
    }
    let parts = agent::Parts {
        objects: Arc::clone(&store),
        cri: Arc::clone(&cri),
        clock: Arc::new(SystemClock),
        dialer: Arc::new(PodDialer::new(args.runtime_endpoint.path())),
        sources,
        tokens: node.as_ref().map(ClusterNode::tokens),
    };
    let agent = agent::start(config, parts);
    let exposed = Arc::new(Exposed::new(&config_shown, agent.view(), Arc::clone(&cri)));
    tokio::select! {
        () = shutdown.cancelled() => {}
        () = exposed.follow() => {}
        () = sockets.serve(Arc::clone(&exposed)) => {}
        () = follow(directory, objects, &store) => {}
        () = serve_node(server, &exposed) => {}
        () = take_part(node, &agent, cri) => {}
        () = serve_services(services) => {}
        () = heap::trim_periodically() => {}
    }
    tracing::info!("stopping; the pods keep running");
    agent.stop().await;
    Ok(Exit::Success)
}

/// Keeps the objects as those of the directory are, if there is one. Never returns.
async fn follow(directory: Option<ObjectsDirectory>, others: ObjectMap, store: &ObjectStore) {
    match directory {
        Some(directory) => directory.follow(others, store).await,
        None => std::future::pending().await,
    }
}

/// Serves the API server and its clients, if the agent is a node. Never returns.
async fn serve_node(server: Option<((Server, ApiClient), String)>, exposed: &Arc<Exposed>) {
    match server {
        Some(((server, client), configz)) => {
            server.serve(&client, Arc::clone(exposed), configz).await
        }
        None => std::future::pending().await,
    }
}

/// Has the runtime serve the cluster's Services, if there is a cluster. Never returns.
async fn serve_services(services: Option<impl Future<Output = ()>>) {
    if let Some(services) = services {
        services.await;
    }
    std::future::pending().await
}

/// Keeps the agent's node in its cluster, if it has one. Never returns.
async fn take_part(node: Option<ClusterNode>, agent: &agent::Agent, cri: Arc<dyn Cri>) {
    match node {
        Some(node) => node.run(agent, cri).await,
        None => std::future::pending().await,
    }
}

/// Logs what the agent drives, and which pods are its own.
async fn announce(args: &AgentArgs, config: &agent::Config, cri: &dyn Cri) {
    let runtime = cri.version().await.map_or_else(
        |error| error.to_string(),
        |version| format!("{} {}", version.runtime_name, version.runtime_version),
    );
    let pods = match &config.agent_id {
        Some(id) if !config.adopt_node => format!("those of agent {id}"),
        Some(_) | None => "every pod of the runtime".to_owned(),
    };
    let node_ip = config.node_ips.join(",");
    tracing::info!(
        version = env!("CARGO_PKG_VERSION"), endpoint = %args.runtime_endpoint, runtime, node = config.node_name, node_ip,
        root_dir = %config.root_dir.display(), pods, "starting"
    );
}

/// The file that is locked, for the life of the agent.
const LOCK: &str = "lock";

/// Why the directory cannot be used.
#[derive(Debug, thiserror::Error)]
enum SoleError {
    /// Another agent uses it.
    #[error(
        "the root directory {} is in use by another agent: stop that one, or give this one another --root-dir", .0.display()
    )]
    InUse(PathBuf),
    /// It cannot be locked.
    #[error("failed to lock the root directory {}", path.display())]
    Lock {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
}

/// Keeps a second agent from a root directory, which would take the pods of the first one for orphans, and remove them: locks it until
/// the file is closed, also when the agent is killed.
fn lock(root_dir: &Path) -> Result<File, SoleError> {
    let failed = |source| SoleError::Lock { path: root_dir.to_owned(), source };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root_dir.join(LOCK))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(SoleError::InUse(root_dir.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}
