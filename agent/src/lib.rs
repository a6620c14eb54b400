//! The node agent: takes pods, makes Container Runtime Interface calls, and reports pod statuses.

pub mod backoff;
mod blocking;
mod cache;
mod causes;
pub mod clock;
pub mod config;
pub mod cri;
pub mod dialer;
pub mod dns;
pub mod env;
mod execute;
mod gc;
pub mod hosts;
mod images;
pub mod labels;
pub mod manifest;
mod node;
pub mod observed;
pub mod plan;
mod pleg;
pub mod pod;
pub mod quantity;
pub mod report;
mod shared;
pub mod source;
pub mod spec;
pub mod status;
mod sync_loop;
mod volumes;
mod worker;

use std::collections::BTreeMap;
use std::sync::Arc;

use file_tree::Trash;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

pub use config::Config;
pub use report::{ContainerKind, ContainerPhase, ContainerReport, PodReport, Transition};

use blocking::blocking;
use cache::Cache;
use images::Images;
use pleg::RelistPeriods;
use pod::PodUid;
use report::status_store::StatusStore;
use shared::Shared;

/// The agent's dependencies, which tests can replace.
pub struct Parts {
    /// Client of the container runtime.
    pub cri: Arc<dyn cri::Cri>,
    /// Clock.
    pub clock: Arc<dyn clock::Clock>,
    /// Opens outgoing connections.
    pub dialer: Arc<dyn dialer::Dialer>,
    /// Sources of pods.
    pub sources: Vec<Box<dyn source::PodSource>>,
}

/// A running agent. Dropping it ends its tasks, as [`Agent::stop`] does; pods keep running.
#[derive(Debug)]
pub struct Agent {
    reports: watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>>,
    status_store: StatusStore,
    kill_now: watch::Sender<bool>,
    trash: Arc<Trash>,
    shutdown: CancellationToken,
    tasks: JoinSet<()>,
}

/// Starts the agent's tasks on the current tokio runtime.
///
/// | task | owns | input | output |
/// |---|---|---|---|
/// | sync loop | the list of workers | pods of the sources, pods of the runtime, exits of workers | pod updates |
/// | worker, one per pod | its pod's lifecycle | pod updates (watch), snapshots (watch) | CRI calls, reports |
/// | pleg | the last listing | the runtime's events, listings, refresh requests | snapshots |
/// | status store | the reports | reports of workers | reports (watch), transitions |
#[must_use = "an agent ends when it is dropped"]
pub fn start(config: Config, parts: Parts) -> Agent {
    let Parts {
        cri,
        clock,
        dialer: _,
        sources,
    } = parts;
    let (cache, requests) = Cache::new();
    let (status_store, status_store_task, reports) = StatusStore::new();
    let (kill_now, kill_now_receiver) = watch::channel(false);
    let (runtime_sender, runtime) = watch::channel(None);
    let shutdown = CancellationToken::new();
    let mut tasks = JoinSet::new();
    let periods = RelistPeriods {
        alone: config.relist_period,
        with_events: config.relist_period_with_events,
    };
    tasks.spawn(pleg::run(
        Arc::clone(&cri),
        Arc::clone(&clock),
        periods,
        requests,
        runtime_sender,
    ));
    tasks.spawn(status_store_task.run(Arc::clone(&clock)));
    let trash = Arc::new(Trash::new(config.root_dir.join("trash")));
    let shared = Shared {
        trash: Arc::clone(&trash),
        node: shared::node(&config),
        images: Images::new(
            Arc::clone(&cri),
            Arc::clone(&clock),
            config.image_backoff,
            config.parallel_pulls,
        ),
        config,
        started_at: clock.now(),
        cri,
        clock,
        cache,
        status_store: status_store.clone(),
        kill_now: kill_now_receiver,
    };
    tasks.spawn(sync_loop::run(
        Arc::new(shared),
        sources,
        runtime,
        shutdown.clone(),
    ));
    Agent {
        reports,
        status_store,
        kill_now,
        trash,
        shutdown,
        tasks,
    }
}

impl Agent {
    /// The latest report of every pod; of removed pods, the last thousand are kept.
    #[must_use]
    pub fn reports(&self) -> watch::Receiver<Arc<BTreeMap<PodUid, PodReport>>> {
        self.reports.clone()
    }

    /// Receives every later transition, in order.
    #[must_use]
    pub fn transitions(&self) -> mpsc::UnboundedReceiver<Transition> {
        self.status_store.subscribe()
    }

    /// Kills the containers of all terminating pods immediately, now and later, without a grace period.
    pub fn kill_now(&self) {
        self.kill_now.send_replace(true);
    }

    /// Stops the tasks. Pods keep running; the next agent takes them over.
    pub async fn stop(mut self) {
        self.shutdown.cancel();
        self.tasks.shutdown().await;
        // The next agent deletes what is left in the trash.
        let trash = self.trash;
        blocking(move || trash.stop()).await;
    }
}
