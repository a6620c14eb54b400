//! The node agent: runs pods through Container Runtime Interface calls, and reports their statuses.
//!
//! | module | responsibility |
//! |---|---|
//! | [`cluster`] | the trait [`cluster::Cluster`]: reads pods, objects and tokens from the cluster, writes statuses, events and the node to it; `token` ◆: when tokens are replaced |
//! | [`source`] | full sets of pods: from a directory, a file, a URL, or the caller; `bound`: from the cluster's changes; `merge` ◆ compares sets |
//! | `sync_loop` | sends each update to a pod's worker; pods with the same name wait for each other (`reconcile` ◆) |
//! | `sync_loop::{orphans, housekeeping}` | finds and removes pods that no source has |
//! | `sync_loop::monitor` | whether the sync loop makes progress: the agent's health |
//! | `worker` | the lifecycle of one pod: `waiting`, `stabilization` ◆ and `starts` delay it, `rejected` handles a pod that the node does not admit |
//! | [`decide`] ◆ | decides the next actions: plans, resizes, back-off of crashing containers (`backoff`; of image pulls: `images::decide`) |
//! | `execute` | a plan's actions as CRI calls; `hook` runs lifecycle hooks |
//! | [`cri`] | the trait [`cri::Cri`]; `grpc` calls a runtime, `operations` counts the calls, `wire` converts; no other file names wire types |
//! | `observation` | the runtime's events and listings, and its readiness |
//! | [`reporting`] | statuses, reports, transitions, events |
//! | [`pod_spec`] | converts a pod's specification into requests to the runtime; admission |
//! | [`images`] | which images are pulled, which pods may use them, and which are removed; credentials |
//! | [`checks`] | probes, and HTTP requests of probes and hooks |
//! | [`storage`] | volumes and claims |
//! | [`objects`] | objects that pods refer to; `directory` reads them from files |
//! | [`services`] | names and ports of Services, and their pods; `warnings` ◆: unexpected behaviour for authors |
//! | [`local_node`] | the node's address, resources, pressure; `eviction::rank` ◆: which pod is evicted first |
//! | `local_node::kubelet_config` ◆ | fields, types and validation of a KubeletConfiguration, whose values the commands of crib read |
//! | `upkeep` | dead containers and logs |
//! | `eviction` | measures the machine every 10 s, or when the kernel reports a memory threshold, and evicts pods as [`local_node::eviction`] ◆ decides |
//! | [`machine`] | the trait for measurements of the machine: memory, process ids, file systems |
//! | [`managers`] | exclusive resources of containers: CPUs, memory nodes, devices; `claims`: devices of ResourceClaims |
//! | [`histogram`] ◆ | histograms of durations |
//! | [`program`] | runs a user's programs that print credentials, with bounded output |
//! | `view` | the agent's state for readers |
//!
//! Each pod goes source → `sync_loop` → `worker`, which loops: a snapshot of `observation` → [`decide`] → `execute` → a report.
//! [`start`] has a table of all tasks.
//!
//! # Invariants
//! - No call bypasses the runtime's socket: this package uses no process, namespace or image layer.
//! - No event is trusted: it is a hint to inspect a pod; listings are authoritative.
//! - No termination is revoked, and the latest update of a pod wins.
//! - No decision reads a clock: time is an argument ([`clock::Clock`]).
//! - No part of the agent ends in silence: a panic of a task ends the agent ([`Agent::failed`]), unless the task's owner repeats
//!   the work or reports an error.
//! - Other users of the host cannot enter a pod's directory (its mode is 0700 before it gets content).
//!
//! Decisions follow Kubernetes 1.36: `tests/traces` replays recorded scenarios of a kubelet.

pub mod clock;
pub mod cluster;
pub mod config;
pub mod cri;
mod eviction;
mod execute;
#[cfg(test)]
mod fixtures;
pub mod histogram;
pub mod images;
pub mod labels;
pub mod machine;
pub mod managers;
mod node;
pub mod objects;
pub mod observed;
pub mod pod_spec;
pub mod program;
pub mod services;
mod shared;
pub mod source;
mod sync_loop;
mod view;
mod worker;

pub mod checks {
    //! Probes, and the connections of probes and hooks.
    //!
    //! `probe::machine` ◆ decides the result that a probe records, `probe::ticker` ◆ when it runs, `probe::check` makes one check;
    //! one task, `probe::prober`, owns the state of all probes. [`http_action`] ◆ builds the request of an `httpGet` action and
    //! [`http_client`] sends it.

    pub mod dialer;
    pub mod http_action;
    pub mod http_client;
    pub mod probe;
}

pub mod decide {
    //! Decides the next actions for a pod: plans, resizes and back-offs.
    //!
    //! [`plan`] compares a pod with its observed state, and returns actions with their reasons; it is checked against the decisions
    //! of Kubernetes 1.36.2. `plan::restart` and [`backoff`]: when a container is restarted. `plan::holds`: which actions are
    //! deferred after a failure, and until when; `plan::effects`: which calls had no effect. [`resize`]: CPU and memory of running
    //! pods; the sync loop grants a resize, the worker executes it.

    pub mod backoff;
    pub mod plan;
    pub mod resize;
}

pub mod local_node {
    //! The node itself: its address, memory, configuration, allocatable resources and pressure.
    //!
    //! - [`allocatable`] ◆: the resources that pods may request. [`node_address`]: the address that they see.
    //! - [`kubelet_config`] ◆: which settings of a kubelet's configuration file have an effect.
    //! - [`shutdown`] ◆: in which order pods end when the machine shuts down.
    //! - [`eviction`] ◆: when pods are evicted for node pressure, and in which order; the module `eviction` measures and acts.
    //!   `eviction::local_storage` decides when a pod is evicted for its own limits of storage, and `worker::storage` acts.

    pub mod agent_id;
    pub mod allocatable;
    pub mod eviction;
    pub mod kubelet_config;
    pub mod node_address;
    pub mod shutdown;
}

mod observation {
    //! The runtime's reports of pods and of itself: events as hints, listings as the authoritative state.
    //!
    //! `pleg` is one task: it receives events, lists the runtime (once a second without events, every 10 to 60 seconds with them),
    //! inspects pods and sends snapshots to their workers, which wait for them in `cache`. `readiness` decides when pods wait for
    //! the runtime: it queries the runtime's status every 5 s.

    pub(crate) mod cache;
    pub(crate) mod pleg;
    pub(crate) mod readiness;
}

pub mod reporting {
    //! Reports about pods: statuses, causes, events and transitions.
    //!
    //! [`status`] computes the status for an API server: phase, conditions, reasons. Like a kubelet, the worker publishes it when a
    //! sync begins (`worker::publishing`). [`report`] has the data that `crib run` shows: the latest report of each pod, and the
    //! transitions between reports in order, each with its cause (`causes` ◆). `events` has the events that a kubelet records:
    //! `events::texts` ◆ their words, `events::correlate` ◆ how they are counted and aggregated. [`measures`] has the durations of
    //! the agent's own work.

    pub(crate) mod causes;
    pub(crate) mod events;
    pub mod measures;
    pub mod report;
    pub mod status;
}

pub mod storage {
    //! Volumes, and the directories of claims.
    //!
    //! `volumes::claim` finds or creates the volume that a claim is bound to (`api::claims`), [`claim_directories`] stores it.
    //! `volumes::content` ◆ decides which files volumes show, `volumes::atomic` writes them, `worker::volumes` updates them after
    //! changes. `volumes::subpath` resolves subPaths to links; `volumes::group` applies `fsGroup` with `file_tree`;
    //! `volumes::token` signs service account tokens. The agent makes no mount: the runtime mounts the directories that the agent
    //! has prepared, and [`drivers`] mount their own volumes before.

    pub mod claim_directories;
    pub mod drivers;
    mod read_write_once_pod;
    pub mod volumes;
}

mod upkeep {
    //! Periodic removal, rotation and monitoring: dead containers and pods, logs, cgroups, shutdowns.
    //!
    //! `gc` ◆ selects the dead containers of a live pod, `gc::collector` removes those of the whole node that exceed its limits of
    //! number or age. `logs` checks the logs of running containers every 10 s, rotates them and requests the runtime to reopen
    //! them; `logs::links` keeps links to all logs in one directory. `pod_cgroups` creates, limits and removes the cgroups of pods
    //! if the agent manages them. `shutdown` ends pods before the machine does; `machine_watch` reports OOM kills, cgroup v1, and
    //! the limits of resolv.conf.

    pub(crate) mod gc;
    pub(crate) mod logs;
    pub(crate) mod machine_watch;
    pub(crate) mod pod_cgroups;
    pub(crate) mod shutdown;
}

use std::sync::Arc;

use api::pod::Pod;
use api::qos::QosClass;
use file_tree::Trash;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::{
    AdmissionConfig, CgroupConfig, Config, LogRotation, MakeInMemory, NodeAllocatable,
    ReservedCgroup,
};
pub use node::{
    CgroupDriver, CgroupVersion, Features, HandlerFeatures, MemoryQos, MemoryReservation, Pressure,
    ProtectedMemory, SwapBehavior,
};
pub use reporting::events::{Event, EventObject, EventObjectKind, EventType};
pub use reporting::report::{
    ContainerPhase, ContainerReport, PodReport, PublishedStatus, ReadinessChange, Reports,
    Transition,
};
pub use shared::online_cpus;
pub use upkeep::gc::limits::DeadContainerLimits;
pub use view::AgentView;

use checks::probe::check::Checker;
use checks::probe::counts::ProbeCounts;
use checks::probe::prober::Prober;
use cluster::{Cluster, Outputs};
use eviction::Evictor;
use images::Images;
use images::collector::ImageCollector;
use local_node::shutdown::ShutdownTimes;
use machine::cgroups::ControlGroups;
use machine::cgroups::timed::TimedCgroups;
use machine::logind::Logind;
use machine::{Machine, OomKill};
use managers::Managers;
use managers::claims::ClaimManager;
use observation::cache::Cache;
use observation::pleg::RelistPeriods;
use observation::readiness::Readiness;
use pod_spec::spec::cgroup::class_path;
use pod_spec::user_namespaces::UserNamespaces;
use reporting::events::EventRecorder;
use reporting::measures::Measures;
use reporting::report::status_store::StatusStore;
use shared::Shared;
use source::bound::BoundPods;
use storage::drivers::VolumeDrivers;
use storage::volumes::claim::Claims;
use storage::volumes::in_memory::{InMemory, are_kept_out_of_swap};
use storage::volumes::token::Tokens;
use sync_loop::monitor::SyncLoopMonitor;
use sync_loop::{Published, Receivers};
use tasks::{blocking, brief};
use upkeep::gc::collector::ContainerCollector;
use upkeep::machine_watch::{
    OomCount, check_cgroup_version, check_resolv_conf, check_swap, watch_oom_kills,
};
use upkeep::pod_cgroups::{self, PodCgroups, Pods};
use upkeep::shutdown::{STATE_FILE, ShutdownWatch};
use view::{ClaimsView, ManagersView, NodeResources};

/// The agent's dependencies, which tests can replace.
pub struct Parts {
    /// Client of the container runtime.
    pub cri: Arc<dyn cri::Cri>,
    /// Clock.
    pub clock: Arc<dyn clock::Clock>,
    /// Opens outgoing connections.
    pub dialer: Arc<dyn checks::dialer::Dialer>,
    /// The machine that the node is on.
    pub machine: Arc<dyn Machine>,
    /// Further parts of the machine that the agent of a node uses.
    pub node: NodeParts,
    /// Allocates exclusive CPUs, memory nodes and devices to containers.
    pub managers: Arc<dyn Managers>,
    /// The cluster that the node is in.
    pub cluster: Arc<dyn Cluster>,
    /// Sources of pods other than the cluster.
    pub sources: Vec<Box<dyn source::PodSource>>,
    /// Mounts the volumes of CSI drivers; `None`: pods with such volumes are rejected.
    pub drivers: Option<Arc<dyn VolumeDrivers>>,
}

/// The parts of the machine that only the agent of a node uses; without them, as in `crib run`, an agent only runs pods.
#[derive(Default)]
pub struct NodeParts {
    /// The cgroups, in which the agent limits pods if its configuration gives them cgroups; `None`: the runtime limits them.
    pub cgroups: Option<Arc<dyn ControlGroups>>,
    /// Processes killed by the kernel's OOM killer; `None`: not observed.
    pub oom_kills: Option<mpsc::UnboundedReceiver<OomKill>>,
    /// systemd-logind, which delays shutdowns until the configuration's periods for pods have passed; `None`: pods end with the
    /// machine.
    pub logind: Option<Arc<dyn Logind>>,
    /// Prepares the devices of ResourceClaims; `None`: pods with claims are rejected.
    pub claims: Option<Arc<dyn ClaimManager>>,
}

/// Why an agent cannot go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AgentError {
    /// The cluster rejects the node, for this reason.
    #[error("{0}")]
    Refused(String),
    /// One of its tasks panicked. Without the task, the agent would do only a part of its work.
    #[error("the agent has a bug and must be restarted: {0}")]
    Panicked(String),
}

/// A running agent. Dropping it ends its tasks, as [`Agent::stop`] does; pods keep running.
#[derive(Debug)]
pub struct Agent {
    reports: watch::Receiver<Arc<Reports>>,
    pods: watch::Receiver<Arc<[Pod]>>,
    sources_ready: watch::Receiver<bool>,
    readiness: watch::Receiver<Readiness>,
    monitor: SyncLoopMonitor,
    pressure: watch::Receiver<Pressure>,
    shutting_down: watch::Receiver<bool>,
    shutdown_times: watch::Receiver<ShutdownTimes>,
    oom_count: Option<OomCount>,
    probes: ProbeCounts,
    measures: Measures,
    resources: Arc<NodeResources>,
    managers: ManagersView,
    claims: ClaimsView,
    status_store: StatusStore,
    events: EventRecorder,
    kill_now: watch::Sender<bool>,
    trash: Arc<Trash>,
    cgroups: Option<PodCgroups>,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
    /// Why the agent cannot be a node of its cluster.
    refusal: watch::Receiver<Option<String>>,
}

/// Starts the agent's tasks on the current tokio runtime.
///
/// | task | owns | input | output |
/// |---|---|---|---|
/// | sync loop | the list of workers | pods of the sources, pods of the runtime, exits of workers | pod updates, events of failed inspections and listings |
/// | worker, one per pod | its pod's lifecycle | pod updates (watch), snapshots (watch) | CRI calls, reports |
/// | readiness | the runtime's last status | its status, listings | reasons why pods wait (watch) |
/// | pleg | the last listing | the runtime's events, listings, refresh requests | snapshots |
/// | logs | nothing | reports | ReopenContainerLog |
/// | prober | the state of all probes | pods and statuses of workers | CRI calls, connections, results |
/// | image collector | when each image was used | listings of images, disk usage | RemoveImage, events |
/// | publisher of Services, if there is a network for them | the last table | Services, pods, reports | tables |
/// | container collector, with other limits than usual | nothing | listings of containers | RemoveContainer |
/// | eviction, if the configuration has thresholds | since when each threshold is met | the machine, pods, reports | evictions, node conditions (watch) |
/// | cgroups, if the agent manages those of pods | the limits in effect | pods, reports | values of cgroups, events |
/// | shutdown, if pods are ended before the machine | the inhibitor lock that delays it | logind, pods, reports | evictions, whether the machine shuts down (watch) |
/// | OOM kills | their number | the kernel's log | events |
/// | status store | the reports | reports of workers | reports (watch), transitions |
/// | the cluster ([`Cluster::record`]) | the node's state as last written to the cluster | reports, events | statuses, deletions, events, the node |
#[must_use = "an agent ends when it is dropped"]
pub fn start(config: Config, parts: Parts) -> Agent {
    let Parts {
        cri,
        clock,
        dialer,
        machine,
        node: of_node,
        managers,
        cluster,
        drivers,
        mut sources,
    } = parts;
    let objects = cluster.objects();
    if let Some(bound) = BoundPods::of(&cluster) {
        sources.push(Box::new(bound));
    }
    let (cache, requests) = Cache::new();
    let (status_store, status_store_task, reports) = StatusStore::new();
    let (kill_now, kill_now_receiver) = watch::channel(false);
    let (runtime_sender, runtime) = watch::channel(None);
    let (failed_sender, failed) = tokio::sync::mpsc::unbounded_channel();
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let measures = Measures::default();
    let events = EventRecorder::new(Arc::clone(&clock));
    let periods = RelistPeriods {
        alone: config.relist_period,
        with_events: config.event_driven_pleg.then_some(config.relist_period_with_events),
    };
    tasks.spawn(tasks::boxed(observation::pleg::run(
        Arc::clone(&cri),
        Arc::clone(&clock),
        periods,
        requests,
        runtime_sender,
        failed_sender,
        measures.clone(),
    )));
    tasks.spawn(tasks::boxed(status_store_task.run(Arc::clone(&clock), measures.clone())));
    if let Some(rotation) = config.log_rotation {
        tasks.spawn(tasks::boxed(upkeep::logs::run(
            Arc::clone(&cri),
            Arc::clone(&clock),
            rotation,
            reports.clone(),
        )));
    }
    let images = Arc::new(Images::new(
        Arc::clone(&cri),
        Arc::clone(&clock),
        Arc::clone(&objects),
        config.root_dir.clone(),
        &config.images,
        measures.clone(),
        Arc::clone(&cluster),
    ));
    // Without thresholds, there are no requests.
    let (unused, unused_receiver) = mpsc::channel(1);
    let unused = config.images.garbage_collection.is_some().then_some(unused);
    let unused = unused.filter(|_| config.eviction.is_some());
    if let Some(policy) = config.images.garbage_collection {
        let collector = ImageCollector {
            cri: Arc::clone(&cri),
            clock: Arc::clone(&clock),
            images: Arc::clone(&images),
            policy,
            machine: Arc::clone(&machine),
            measures: measures.clone(),
            events: events.clone(),
            node_name: config.node_name.clone(),
        };
        tasks.spawn(tasks::boxed(collector.run(unused_receiver)));
    }
    if !config.dead_containers.are_kept_by_workers() {
        let collector = ContainerCollector {
            cri: Arc::clone(&cri),
            clock: Arc::clone(&clock),
            config: config.clone(),
        };
        tasks.spawn(tasks::boxed(collector.run()));
    }
    let trash = Arc::new(Trash::new(config.root_dir.join("trash")));
    let started_at = clock.now();
    let checker = Checker { cri: Arc::clone(&cri), dialer: Arc::clone(&dialer) };
    let (prober, prober_task) =
        Prober::new(checker, Arc::clone(&clock), events.clone(), started_at);
    tasks.spawn(tasks::boxed(prober_task.run()));
    let node = shared::node(&config, machine.as_ref());
    let (readiness_sender, readiness) = watch::channel(Readiness::unknown());
    tasks.spawn(tasks::boxed(observation::readiness::run(
        Arc::clone(&cri),
        Arc::clone(&clock),
        runtime.clone(),
        readiness_sender,
    )));
    let (pressure_sender, pressure) = watch::channel(Pressure::default());
    let (pods_sender, pods) = watch::channel::<Arc<[Pod]>>(Arc::default());
    let known = Pods { pods: pods.clone(), reports: reports.clone() };
    let groups = of_node.cgroups.map(|groups| -> Arc<dyn ControlGroups> {
        Arc::new(TimedCgroups::new(groups, measures.clone()))
    });
    let cgroups = PodCgroups::start(groups, &config, &node, known, measures.clone());
    if let Some(cgroups) = cgroups.clone() {
        let mut capacity = node.capacity.clone();
        capacity.extend(machine.processes().map(|it| ("pid".to_owned(), it.limit.to_string())));
        let rules = (&config.cgroups, &config.admission);
        let enforced = pod_cgroups::enforced(rules.0, rules.1, &node, &capacity);
        tasks.spawn(tasks::boxed(cgroups.run(Arc::clone(&clock), events.clone(), enforced)));
    }
    let oom_count = of_node.oom_kills.map(|kills| {
        let count = OomCount::default();
        let node = config.node_name.clone();
        tasks.spawn(tasks::boxed(watch_oom_kills(kills, node, events.clone(), count.clone())));
        count
    });
    // Only for a node: the user of a laptop does not need these warnings about its cgroups and resolv.conf.
    if config.adopt_node {
        let (version, swap, name) =
            (node.cgroup_version, node.swap_capacity, config.node_name.clone());
        let events = events.clone();
        tasks.spawn(tasks::boxed(async move {
            check_cgroup_version(version, &name, &events);
            check_swap(swap, brief(are_kept_out_of_swap), &name, &events);
        }));
    }
    if let Some(path) = config.resolv_conf.clone().filter(|_| config.adopt_node) {
        let (node, events) = (config.node_name.clone(), events.clone());
        let in_cluster = !config.cluster_domain.is_empty();
        tasks.spawn(tasks::boxed(
            async move { check_resolv_conf(&path, in_cluster, &node, &events) },
        ));
    }
    let (shutting_down_sender, shutting_down) = watch::channel(false);
    let (shutdown_times_sender, shutdown_times) = watch::channel(ShutdownTimes::default());
    let node_info = shared::node_info(&config, &node);
    let resources = Arc::new(NodeResources {
        capacity: node.capacity.clone(),
        allocatable: node_info.allocatable.clone(),
        swap_capacity: node.swap_capacity,
        pods_cgroup: class_path(&node, QosClass::Guaranteed),
    });
    let probes = prober.counts().clone();
    let of_cluster = Arc::clone(&cri);
    let shared = Shared {
        prober,
        trash: Arc::clone(&trash),
        in_memory: InMemory::new(&config),
        node_info,
        user_namespaces: UserNamespaces::new(&config.root_dir),
        tokens: Tokens::new(
            &config.root_dir,
            &config.cluster_domain,
            &config.node_name,
            Arc::clone(&cluster),
        ),
        claims: Claims::new(config.volumes_dir.clone(), config.pods_lock.clone()),
        cluster: Arc::clone(&cluster),
        drivers,
        machine: Arc::clone(&machine),
        node,
        readiness: readiness.clone(),
        pressure: pressure.clone(),
        shutting_down: shutting_down.clone(),
        objects,
        images,
        cgroups: cgroups.clone(),
        config,
        started_at,
        cri,
        clock,
        managers: Arc::clone(&managers),
        claim_manager: of_node.claims.clone(),
        dialer,
        cache,
        status_store: status_store.clone(),
        events: events.clone(),
        starts: worker::starts::Starts::default(),
        measures: measures.clone(),
        kill_now: kill_now_receiver,
    };
    let (ready_sender, sources_ready) = watch::channel(false);
    let (evictions_sender, evictions) = mpsc::unbounded_channel();
    if let Some(settings) = shared.config.eviction.clone() {
        let evictor = Evictor {
            cri: Arc::clone(&shared.cri),
            clock: Arc::clone(&shared.clock),
            machine,
            settings,
            config: shared.config.clone(),
            pods: pods.clone(),
            reports: reports.clone(),
            images: unused,
            events: events.clone(),
            pressure: pressure_sender,
            evictions: evictions_sender.clone(),
            measures: measures.clone(),
            pods_cgroup: cgroups.as_ref().and_then(|_| resources.pods_cgroup.clone()),
        };
        tasks.spawn(tasks::boxed(evictor.run()));
    }
    if let Some(logind) = of_node.logind.filter(|_| !shared.config.shutdown.is_empty()) {
        let watch = ShutdownWatch {
            logind,
            clock: Arc::clone(&shared.clock),
            events: events.clone(),
            node_name: shared.config.node_name.clone(),
            periods: shared.config.shutdown.clone(),
            pods: pods.clone(),
            reports: reports.clone(),
            evictions: evictions_sender,
            shutting_down: shutting_down_sender,
            times: shutdown_times_sender,
            state_file: shared.config.root_dir.join(STATE_FILE),
        };
        tasks.spawn(tasks::boxed(watch.run()));
    }
    let monitor = SyncLoopMonitor::new(shared.config.resync_period);
    tasks.spawn(tasks::boxed(sync_loop::run(
        Arc::new(shared),
        reports.clone(),
        Published { pods: pods_sender, ready: ready_sender, monitor: monitor.clone() },
        sources,
        runtime,
        Receivers { failed, evictions },
        shutdown.clone(),
    )));
    let (refused, refusal) = watch::channel(None);
    let mut agent = Agent {
        reports,
        pods,
        sources_ready,
        readiness,
        monitor,
        pressure,
        shutting_down,
        shutdown_times,
        oom_count,
        probes,
        measures,
        resources,
        managers: ManagersView(managers),
        claims: ClaimsView(of_node.claims),
        status_store,
        events,
        kill_now,
        trash,
        cgroups,
        shutdown,
        tasks,
        refusal,
    };
    let outputs = Outputs { view: agent.view(), events: agent.events(), cri: of_cluster };
    agent.tasks.spawn(tasks::boxed(async move {
        let why = cluster.record(outputs).await;
        refused.send_replace(Some(why));
    }));
    agent
}

impl Agent {
    /// A view of the running agent's state.
    #[must_use]
    pub fn view(&self) -> AgentView {
        AgentView {
            reports: self.reports.clone(),
            pods: self.pods.clone(),
            sources_ready: self.sources_ready.clone(),
            readiness: self.readiness.clone(),
            monitor: self.monitor.clone(),
            pressure: self.pressure.clone(),
            shutting_down: self.shutting_down.clone(),
            shutdown_times: self.shutdown_times.clone(),
            oom_count: self.oom_count.clone(),
            probes: self.probes.clone(),
            measures: self.measures.clone(),
            resources: Arc::clone(&self.resources),
            managers: self.managers.clone(),
            claims: self.claims.clone(),
            events: self.events.clone(),
        }
    }

    /// The latest report of every pod; of removed pods, the last thousand are kept.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Arc<Reports>> {
        self.reports.clone()
    }

    /// Receives every later transition, in order.
    #[must_use]
    pub fn transitions(&self) -> mpsc::UnboundedReceiver<Transition> {
        self.status_store.subscribe()
    }

    /// Receives every later change of a container's readiness, in order.
    #[must_use]
    pub fn readiness(&self) -> mpsc::UnboundedReceiver<ReadinessChange> {
        self.status_store.subscribe_readiness()
    }

    /// Receives every status that is published later, as a kubelet's status manager records them.
    #[must_use]
    pub fn statuses(&self) -> mpsc::UnboundedReceiver<PublishedStatus> {
        self.status_store.subscribe_statuses()
    }

    /// Receives every later event about the pods, as a kubelet records them.
    #[must_use]
    pub fn events(&self) -> mpsc::UnboundedReceiver<Event> {
        self.events.subscribe()
    }

    /// Publishes the table of the Services of `objects`, now and at each change, until the agent ends.
    pub fn serve_services(
        &mut self,
        domain: &str,
        objects: Arc<objects::ObjectStore>,
        network: Arc<dyn services::ServiceNetwork>,
    ) {
        let (pods, reports) = (self.pods.clone(), self.reports.clone());
        let publish = services::publish(domain.to_owned(), objects, pods, reports, network);
        self.tasks.spawn(tasks::boxed(publish));
    }

    /// Waits until the agent cannot go on, and returns the reason. The caller stops the agent then. Cancel-safe.
    ///
    /// A kubelet ends when one of its goroutines panics, too. Workers of pods, probes, and operations of volumes and claims do not
    /// end the agent.
    ///
    /// Source: Kubernetes 1.36, staging/src/k8s.io/apimachinery/pkg/util/runtime/runtime.go HandleCrash.
    pub async fn failed(&mut self) -> AgentError {
        let mut refusal = self.refusal.clone();
        let refused = async {
            match refusal.wait_for(Option::is_some).await.map(|why| why.clone()) {
                Ok(Some(why)) => why,
                // The task has ended.
                Ok(None) | Err(_) => std::future::pending().await,
            }
        };
        let panicked = async {
            while let Some(ended) = self.tasks.join_next().await {
                if let Err(error) = ended
                    && error.is_panic()
                {
                    return error.to_string();
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            why = refused => AgentError::Refused(why),
            error = panicked => AgentError::Panicked(error),
        }
    }

    /// Kills the containers of all terminating pods immediately, now and later, without a grace period.
    pub fn kill_now(&self) {
        self.kill_now.send_replace(true);
    }

    /// Stops the tasks. Pods keep running; the next agent adopts them.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.shutdown().await;
        // The next agent deletes what remains in the trash.
        let (trash, cgroups) = (self.trash, self.cgroups);
        blocking(move || {
            trash.stop();
            cgroups.iter().for_each(PodCgroups::remove_empty);
        })
        .await;
    }
}
