//! Starts the agent for `crib agent` and `crib kubelet` from their settings and a KubeletConfiguration.

use std::fs::File;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent::clock::SystemClock;
use agent::cluster::{Cluster, Standalone};
use agent::cri::Cri;
use agent::cri::grpc::ConnectOptions;
use agent::local_node::agent_id::{self, AgentIdError};
use agent::local_node::eviction::settings::EvictionSettings;
use agent::local_node::kubelet_config::{Checked, GoDuration, KubeletConfiguration};
use agent::local_node::shutdown::periods;
use agent::machine::Machine as _;
use agent::objects::directory::ObjectsDirectory;
use agent::objects::{ObjectMap, ObjectStore};
use agent::storage::drivers::VolumeDrivers;
use agent::{AgentError, AgentView, Features};
use crib_base::args::{LogFormat, UnixEndpoint};
use crib_base::dirs::default_dir;
use crib_base::exit::Exit;
use crib_base::logging::{self, LogArgs, LogLevel};
use crib_base::pod_dialer::PodDialer;
use crib_base::report::{error_to_exit, event_loop, io_error_to_exit, message_to_exit};
use crib_base::service_stream::Tables;
use crib_base::{limits, volumes_in_memory};
use csi::CsiDrivers;
use dra::NodeClaims;
use kube_node::ClusterNode;
use kube_node::client::ApiClient;
use kubelet_server::{NodeApi, Server};
use machine::HostMachine;
use machine::cgroups::HostCgroups;
use managers::NodeManagers;
use plugins::PluginWatcher;
use runtime_fake::IsolationRequest;
use tokio::runtime::Builder;
use tokio_util::sync::CancellationToken;

use super::lock_file::LockFile;
use super::settings::Settings;
use super::source::Sources;
use super::systemd::{self, Watchdog};
use super::{cluster, process};
use crate::{heap, shutdown};

/// The timeout of the agent's shutdown.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);

/// The delays between restarts with the gate ReduceDefaultCrashLoopBackOffDecay.
const REDUCED_BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// Where a kubelet keeps the logs of pods, and the links to them.
const POD_LOGS: &str = "/var/log/pods";
const CONTAINER_LOGS: &str = "/var/log/containers";

/// The inputs for starting an agent.
pub(crate) struct Start {
    endpoint: Option<UnixEndpoint>,
    settings: Settings,
    file: KubeletConfiguration,
    warnings: Vec<(&'static str, Vec<String>)>,
}

impl Start {
    /// Creates the inputs for the runtime at this endpoint, or else at the configured one. `unknown` are unknown fields, which are
    /// ignored.
    pub(crate) fn new(
        endpoint: Option<UnixEndpoint>,
        settings: Settings,
        checked: Checked,
        unknown: Vec<String>,
    ) -> Self {
        let without_effect = checked.without_effect.into_iter();
        let without_effect = without_effect.map(|(field, why)| format!("{field} ({why})"));
        let warnings = vec![
            ("unknown configuration fields", unknown),
            ("configuration fields have no effect", without_effect.collect()),
        ];
        Self { endpoint, settings, file: checked.config, warnings }
    }

    /// Adds a warning about fields or flags, to be logged when logging is configured.
    pub(crate) fn warn(mut self, message: &'static str, words: Vec<String>) -> Self {
        self.warnings.push((message, words));
        self
    }

    /// Runs until a signal. Must be called while the process has a single thread.
    pub(crate) fn run(self) -> Result<Exit, Exit> {
        let Self { endpoint, settings, file, warnings } = self;
        logging::to_stderr(log(&settings, &file));
        for (message, words) in warnings.into_iter().filter(|(_, words)| !words.is_empty()) {
            let fields = words.join(", ");
            tracing::warn!(fields, "{message}");
        }
        let endpoint = message_to_exit(endpoint_of(endpoint, &file), Exit::BadInput)?;
        message_to_exit(process::check(&file), Exit::BadInput)?;
        let own_cgroup = message_to_exit(process::own_cgroup(&file), Exit::BadInput)?;
        let watchdog = message_to_exit(Watchdog::from_environment(), Exit::BadInput)?;
        let node_name = settings.node.node_name.clone();
        let node_name = node_name.unwrap_or_else(crib_base::node::node_name);
        let sources = settings.source.sources(&file, &node_name, settings.cluster.joins());
        let sources = message_to_exit(sources, Exit::BadInput)?;
        message_to_exit(settings.cluster.check(), Exit::BadInput)?;
        let root_dir = settings.root_dir.clone().map_or_else(|| default_dir("crib-agent"), Ok);
        let remedy = |problem| format!("{problem}: set a directory for volumes with --root-dir");
        let root_dir = absolute(message_to_exit(root_dir.map_err(remedy), Exit::BadInput)?);
        // The directory must be private, because containers may create set-user-ID programs in volumes.
        error_to_exit(file_tree::private::make(&root_dir), Exit::NoRuntime)?;
        let agent_id = error_to_exit(agent_id(&settings, &root_dir), Exit::BadInput)?;
        let configured = config(&settings, &file, root_dir.clone(), node_name, agent_id);
        let (mut config, objects) = message_to_exit(configured, Exit::BadInput)?;
        config.volumes_in_memory = Some(volumes_in_memory::maker());
        // In rootless mode, containers create files with subordinate ids, which can be removed only inside a user namespace with
        // these ids.
        if !nix::unistd::geteuid().is_root() {
            let entered = runtime_fake::enter(IsolationRequest::Auto, Some(&root_dir));
            error_to_exit(entered, Exit::NoRuntime)?;
        }
        process::set(&file);
        let held = settings.lock_file.as_ref().map(LockFile::acquire).transpose();
        let held = error_to_exit(held, Exit::NoRuntime)?;
        let _root_dir_lock = error_to_exit(lock(&root_dir), Exit::NoRuntime)?;
        let shutdown = io_error_to_exit("listen for signals", shutdown::on_signal(SHUTDOWN_LIMIT))?;
        heap::share();
        // A single thread: moving tasks between threads costs a fifth more CPU time and a fifth more memory. Operations that may
        // take long run on separate threads.
        let tokio = event_loop(&mut Builder::new_current_thread(), 6)?;
        limits::serve_on();
        let serving = Serving { endpoint, settings: &settings, file: &file, watchdog, own_cgroup };
        let serve = async {
            let contended = async {
                match &held {
                    Some(held) => held.contended().await,
                    None => std::future::pending().await,
                }
            };
            serving.serve(config, objects, sources, shutdown, contended).await
        };
        let ended = catch_unwind(AssertUnwindSafe(|| tokio.block_on(serve)));
        // A blocking task that hangs, for example in a volume, must not delay the end of the command, not even after a panic.
        tokio.shutdown_background();
        let ended = match ended {
            Ok(ended) => ended,
            Err(panic) => resume_unwind(panic),
        };
        if let Err(error) = volumes_in_memory::remove_if_empty(&root_dir) {
            tracing::warn!(%error, "failed to remove the directory of volumes in memory");
        }
        ended
    }
}

/// The log format and level from the flags, or else from the file. klog's verbosity 4 and above means debug.
fn log(settings: &Settings, file: &KubeletConfiguration) -> LogArgs {
    let logging = file.logging.clone().unwrap_or_default();
    let json = logging.format.is_some_and(|format| format == "json");
    let level = match logging.verbosity.unwrap_or_default() {
        0..=3 => LogLevel::Info,
        4..=6 => LogLevel::Debug,
        _ => LogLevel::Trace,
    };
    LogArgs {
        log_format: settings.log.log_format.or_else(|| json.then_some(LogFormat::Json)),
        log_level: settings.log.log_level.or(Some(level)),
    }
}

fn endpoint_of(
    flag: Option<UnixEndpoint>,
    file: &KubeletConfiguration,
) -> Result<UnixEndpoint, String> {
    match (flag, &file.container_runtime_endpoint) {
        (Some(endpoint), _) => Ok(endpoint),
        (None, Some(text)) => {
            text.parse().map_err(|problem| format!("containerRuntimeEndpoint: {problem}"))
        }
        (None, None) => Err(
            "no runtime endpoint: set --runtime-endpoint, or containerRuntimeEndpoint in --config"
                .to_owned(),
        ),
    }
}

/// The agent's configuration and the objects that pods refer to; the error is a message.
fn config(
    settings: &Settings,
    file: &KubeletConfiguration,
    root_dir: PathBuf,
    node_name: String,
    agent_id: String,
) -> Result<(agent::Config, ObjectMap), String> {
    let of_file = file.pod_logs_dir.as_ref().map(PathBuf::from);
    let pod_logs_dir = settings.container_logs.pod_logs_dir.clone().or(of_file);
    let pod_logs_dir = pod_logs_dir.map_or_else(|| root_dir.join("logs"), absolute);
    let mut config = agent::Config::new(root_dir, pod_logs_dir);
    // Without a home directory, claims use the agent's default directory.
    if let Ok(directory) = settings.volumes.directory() {
        config.volumes_dir = directory;
    }
    if settings.as_kubelet && config.pod_logs_dir == Path::new(POD_LOGS) {
        config.container_logs_dir = Some(CONTAINER_LOGS.into());
    }
    config.node_name = node_name;
    settings.cgroups.apply(file, &agent_id, settings.adopt_node, &mut config.cgroups);
    config.agent_id = Some(agent_id);
    config.adopt_node = settings.adopt_node;
    config.remove_at_once = !settings.adopt_node;
    config.finish_starts = settings.adopt_node;
    config.dead_containers = settings.dead_containers.limits();
    let gates = file.gates();
    config.features = Features::of(|name| gates.enabled(name));
    // Kubernetes 1.36 has these switched off.
    let on = |name: &str| gates.given(name).unwrap_or(!settings.adopt_node);
    config.container_stop_signals = on("ContainerStopSignals");
    config.selects_log_streams = on("PodLogsQuerySplitStreams");
    let events = settings.event_driven_pleg.or(gates.given("EventedPLEG"));
    config.event_driven_pleg = events.unwrap_or(true);
    let in_file = file.sync_frequency.map(GoDuration::get);
    if let Some(period) = settings.sync_frequency.or(in_file) {
        config.resync_period = period;
    }
    config.crash_backoff = crash_backoff(file, config.crash_backoff);
    config.seccomp_profile_root = settings.seccomp_profiles.directory();
    config.seccomp_default = file.seccomp_default.unwrap_or_default();
    if settings.as_kubelet {
        config.cluster_domain.clear();
    }
    settings.node.apply(file, settings.cluster.joins(), &mut config)?;
    // Evictions have default thresholds in a cluster and in `crib kubelet`.
    let by_itself = settings.cluster.joins() || settings.as_kubelet;
    let limits_pods = config.cgroups.per_qos && config.cgroups.enforced.pods;
    config.eviction = EvictionSettings::of(file, by_itself, limits_pods)
        .map_err(|error| format!("--config: eviction: {error}"))?;
    config.shutdown = periods(file);
    settings.container_logs.apply(file, &mut config)?;
    let objects = settings.images.apply(file, settings.adopt_node, &mut config.images)?;
    Ok((config, objects))
}

/// The first and the longest delay between restarts of a crashing container.
///
/// Source: Kubernetes 1.36, pkg/kubelet/kubelet.go newCrashLoopBackOff.
fn crash_backoff(file: &KubeletConfiguration, usual: (Duration, Duration)) -> (Duration, Duration) {
    let gates = file.gates();
    let is_reduced = gates.enabled("ReduceDefaultCrashLoopBackOffDecay");
    let (first, mut longest) = if is_reduced { REDUCED_BACKOFF } else { usual };
    if gates.enabled("KubeletCrashLoopBackOffMax") {
        let restarts = file.crash_loop_back_off.as_ref();
        let given = restarts.and_then(|back_off| back_off.max_container_restart_period);
        longest = given.map_or(usual.1, GoDuration::get);
    }
    (first.min(longest), longest)
}

/// The runtime takes absolute paths only.
fn absolute(path: PathBuf) -> PathBuf {
    std::path::absolute(&path).unwrap_or(path)
}

fn agent_id(settings: &Settings, root_dir: &Path) -> Result<String, AgentIdError> {
    match &settings.agent_id {
        Some(id) => agent_id::check(id).map(|()| id.clone()),
        None => agent_id::kept_in(root_dir),
    }
}

/// The inputs that the running agent needs.
struct Serving<'a> {
    endpoint: UnixEndpoint,
    settings: &'a Settings,
    file: &'a KubeletConfiguration,
    watchdog: Watchdog,
    /// The configured cgroup of the agent's own process.
    own_cgroup: Option<HostCgroups>,
}

impl Serving<'_> {
    async fn serve(
        self,
        mut config: agent::Config,
        objects: ObjectMap,
        sources: Sources,
        shutdown: CancellationToken,
        contended: impl Future<Output = ()>,
    ) -> Result<Exit, Exit> {
        let Self { settings, file, .. } = self;
        let connected = tokio::select! {
            connected = self.connect() => connected,
            () = shutdown.cancelled() => return Err(Exit::Interrupted),
        };
        let cri = error_to_exit(connected, Exit::NoRuntime)?;
        // The runtime's cgroup driver takes precedence over the configured one, as in a kubelet.
        if let Ok(Some(driver)) = cri.cgroup_driver().await {
            if config.cgroups.per_qos && driver != config.cgroups.driver {
                tracing::info!(
                    ?driver,
                    "using the runtime's cgroup driver instead of the configured one"
                );
            }
            config.cgroups.driver = driver;
        }
        let sockets =
            settings.status_ports.bind(file, settings.cluster.joins(), settings.as_kubelet).await;
        let sockets = message_to_exit(sockets, Exit::BadInput)?;
        self.announce(&config, cri.as_ref()).await;
        let bootstrap = settings.cluster.bootstrap(&config);
        let client =
            message_to_exit(settings.cluster.client(file, bootstrap.as_ref()), Exit::BadInput)?;
        let joins = settings.cluster.joins();
        let signed = settings.cluster.signed(file, &config).filter(|_| joins);
        let pki = settings.cluster.cert_dir(&config);
        let server = settings.server.bind(file, joins, &config, &pki, signed).await;
        let (server, port) = message_to_exit(server, Exit::BadInput)?.unzip();
        let shown = self.in_use();
        let configz =
            server.as_ref().map(|server| server.configz(&config, &shown, sockets.ports()));
        let reviews = client.clone();
        let server = server.zip(configz);
        let config_shown = config.clone();
        let serves = server.is_some() && settings.server.generates_certificate(file);
        let certificates = settings.cluster.certificates(file, &config, serves);
        let node = client.map(|client| {
            let settings =
                settings.cluster.node(file, &config, &settings.node.node_ip, port, certificates);
            ClusterNode::new(client, settings, objects.clone()).with_bootstrap(bootstrap)
        });
        let (tables, proxy) = (Tables::default(), settings.cluster.service_proxy());
        let node = node.map(|node| node.with_services(proxy, Arc::new(tables.clone())));
        let mut services = None;
        if let Some(node) = &node {
            let (socket, receiver) = (self.endpoint.path().to_owned(), tables.subscribe());
            services = Some(cluster::serve_services(socket, receiver, proxy, node.limits()));
        }
        let machine = Arc::new(HostMachine::default());
        let drivers = node.as_ref().map(|node| {
            CsiDrivers::new(&config.root_dir, &config.node_name, node.volumes(), machine.clone())
        });
        let volume_drivers =
            drivers.clone().map(|drivers| Arc::new(drivers) as Arc<dyn VolumeDrivers>);
        let claims = node.as_ref().map(|node| NodeClaims::open(&config.root_dir, node.claims()));
        let claims = message_to_exit(claims.transpose(), Exit::BadInput)?;
        let in_cluster = node.as_ref().map(ClusterNode::view);
        let cluster: Arc<dyn Cluster> = match (node, settings.source.objects.clone()) {
            (Some(node), _) => Arc::new(node),
            (None, Some(directory)) => {
                let directory = ObjectsDirectory::new(directory);
                let read = tokio::select! {
                    read = Standalone::of_directory(directory, objects) => read,
                    () = shutdown.cancelled() => return Err(Exit::Interrupted),
                };
                let read = read.map_err(|error| format!("--objects: {error}"));
                Arc::new(message_to_exit(read, Exit::BadInput)?)
            }
            (None, None) => Arc::new(Standalone::new(Arc::new(ObjectStore::new(objects)))),
        };
        let managed = managers::Settings::of(&config, file, machine.kernel().capacity);
        message_to_exit(NodeManagers::migrate(&managed, cri.as_ref()).await, Exit::BadInput)?;
        let managers = NodeManagers::open(&managed, Arc::clone(&cri));
        let managers = message_to_exit(managers, Exit::BadInput)?;
        let of_drivers = drivers.as_ref().map(CsiDrivers::plugin_handler);
        let of_claims = claims.as_ref().map(NodeClaims::plugin_handler);
        let handlers = of_drivers.into_iter().chain(of_claims).chain(managers.plugin_handler());
        let plugins =
            PluginWatcher::new(config.root_dir.join(plugins::REGISTRY), handlers.collect());
        let plugin_sockets = plugins.sockets();
        let parts = agent::Parts {
            cluster,
            cri: Arc::clone(&cri),
            clock: Arc::new(SystemClock),
            dialer: Arc::new(PodDialer::new(self.endpoint.path())),
            machine,
            managers: Arc::new(managers.clone()),
            node: message_to_exit(process::node_parts(&config, claims.clone()), Exit::BadInput)?,
            sources,
            drivers: volume_drivers.clone(),
        };
        let mut agent = agent::start(config, parts);
        let view = agent.view();
        let gates = file.gates();
        let node_api = NodeApi::new(&config_shown, &gates, agent.view(), Arc::clone(&cri));
        let node_api = node_api.with_plugins(plugin_sockets);
        let node_api = node_api.with_drivers(volume_drivers, gates.enabled("CSIVolumeHealth"));
        let node_api = Arc::new(node_api.with_cluster(in_cluster));
        systemd::notify("READY=1");
        let ended = tokio::select! {
            () = shutdown.cancelled() => Ok(Exit::Success),
            () = contended => {
                tracing::info!("another process opened the lock file");
                Ok(Exit::Success)
            }
            () = self.watchdog.feed(|| view.health(), systemd::notify) => Ok(Exit::Success),
            () = node_api.measure_starts() => Ok(Exit::Success),
            () = managers.serve(view.clone()) => Ok(Exit::Success),
            () = sockets.serve(Arc::clone(&node_api)) => Ok(Exit::Success),
            () = serve_node(server, reviews.as_ref(), &node_api) => Ok(Exit::Success),
            error = agent.failed() => Err(error),
            () = serve_services(services) => Ok(Exit::Success),
            () = drive(drivers) => Ok(Exit::Success),
            () = release_claims(claims, view.clone()) => Ok(Exit::Success),
            () = plugins.run() => Ok(Exit::Success),
            () = process::maintain_cgroup(file, self.own_cgroup.clone()) => Ok(Exit::Success),
            () = heap::trim_periodically() => Ok(Exit::Success),
        };
        let exit = match &ended {
            // A supervisor such as systemd restarts the command.
            Err(AgentError::Panicked(_)) => Exit::Failed,
            Ok(_) | Err(AgentError::Refused(_)) => Exit::BadInput,
        };
        let ended = error_to_exit(ended, exit);
        if ended.is_err() {
            shutdown::within(SHUTDOWN_LIMIT);
        }
        systemd::notify("STOPPING=1");
        tracing::info!("stopping; the pods keep running");
        agent.stop().await;
        ended
    }

    /// The effective configuration: the file with the values of flags and of the machine, except fields that the agent's own
    /// configuration provides.
    fn in_use(&self) -> KubeletConfiguration {
        let mut shown = self.file.clone();
        process::fill_configz(&mut shown);
        self.settings.cluster.fill_configz(&mut shown);
        self.settings.source.fill_configz(&mut shown);
        self.settings.images.fill_configz(&mut shown);
        shown.container_runtime_endpoint = Some(self.endpoint.to_string());
        let log = log(self.settings, self.file);
        let mut logging = shown.logging.unwrap_or_default();
        let format = log.log_format.unwrap_or_default();
        logging.format = Some(if format == LogFormat::Json { "json" } else { "text" }.to_owned());
        if self.settings.log.log_level.is_some() {
            logging.verbosity = None;
        }
        shown.logging = Some(logging);
        shown
    }

    async fn connect(&self) -> Result<Arc<dyn Cri>, agent::cri::grpc::ConnectError> {
        let usual = ConnectOptions::default();
        let options = ConnectOptions {
            images: self.file.image_service_endpoint.clone(),
            deadline: self.file.runtime_request_timeout.map_or(usual.deadline, GoDuration::get),
            streams_lists: self.file.gates().enabled("CRIListStreaming"),
        };
        agent::cri::grpc::connect_with(&self.endpoint.to_string(), &options).await
    }

    /// Logs the runtime, and which pods the agent manages.
    async fn announce(&self, config: &agent::Config, cri: &dyn Cri) {
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
            version = env!("CARGO_PKG_VERSION"), endpoint = %self.endpoint, runtime, node = config.node_name, node_ip,
            root_dir = %config.root_dir.display(), pods, "starting"
        );
    }
}

/// Serves the API server and its clients, whose credentials `reviews` checks, if there is a node server. Never returns.
async fn serve_node(
    server: Option<(Server, String)>,
    reviews: Option<&ApiClient>,
    node_api: &Arc<NodeApi>,
) {
    match server {
        Some((server, configz)) => server.serve(reviews, Arc::clone(node_api), configz).await,
        None => std::future::pending().await,
    }
}

/// Makes the runtime serve the cluster's Services, if the agent joins a cluster. Never returns.
async fn serve_services(services: Option<impl Future<Output = ()>>) {
    if let Some(services) = services {
        services.await;
    }
    std::future::pending().await
}

/// Unstages CSI volumes that no pod uses, if the agent joins a cluster. Never returns.
async fn drive(drivers: Option<CsiDrivers>) {
    if let Some(drivers) = drivers {
        drivers.run().await;
    }
    std::future::pending().await
}

/// Unprepares resource claims of removed pods, if the agent joins a cluster. Never returns.
async fn release_claims(claims: Option<NodeClaims>, agent: AgentView) {
    if let Some(claims) = claims {
        claims.run(agent).await;
    }
    std::future::pending().await
}

/// The lock file in the root directory.
const LOCK: &str = "lock";

/// Why the root directory cannot be used.
#[derive(Debug, thiserror::Error)]
enum RootDirLockError {
    /// Another agent uses it.
    #[error(
        "the root directory {} is in use by another agent: stop the other agent, or give this one another --root-dir", .0.display()
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

/// Locks the root directory until the file is closed, which also happens if the agent is killed. A second agent with the same
/// directory would treat the first agent's pods as orphans and remove them.
fn lock(root_dir: &Path) -> Result<File, RootDirLockError> {
    let failed = |source| RootDirLockError::Lock { path: root_dir.to_owned(), source };
    let file = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(root_dir.join(LOCK))
        .map_err(failed)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(RootDirLockError::InUse(root_dir.to_owned())),
        Err(std::fs::TryLockError::Error(error)) => Err(failed(error)),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::usual(json!({}), (10, 300))]
    #[case::longest(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "20s"}}), (10, 20))]
    #[case::short(json!({"crashLoopBackOff": {"maxContainerRestartPeriod": "5s"}}), (5, 5))]
    #[case::reduced(json!({"featureGates": {"ReduceDefaultCrashLoopBackOffDecay": true}}), (1, 300))]
    #[case::reduced_without_a_longest_delay(
        json!({"featureGates": {"ReduceDefaultCrashLoopBackOffDecay": true, "KubeletCrashLoopBackOffMax": false}}),
        (1, 60)
    )]
    fn crash_backoff_follows_its_gates(#[case] fields: Value, #[case] expected: (u64, u64)) {
        let file: KubeletConfiguration = serde_json::from_value(fields).unwrap();
        let usual = (Duration::from_secs(10), Duration::from_secs(300));
        let (first, longest) = crash_backoff(&file, usual);
        assert_eq!((first.as_secs(), longest.as_secs()), expected);
    }
}
