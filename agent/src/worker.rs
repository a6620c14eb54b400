//! One task per pod: observe, plan, execute and report until nothing of the pod is left.
//!
//! Updates arrive through a watch channel, so that only the latest is applied; a termination cannot be revoked. The worker observes
//! its pod through the snapshots of [`crate::observation::cache`]; after a change it waits for a snapshot of a later inspection.

use std::sync::Arc;
use std::time::{Duration, Instant};

use api::pod::{Pod, PodUid};
use compact::Set;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::watch;

use crate::cri::PodRef;
use crate::decide::plan::{self, History, PodPlan, restart};
use crate::execute;
use crate::observation::cache::{Generation, Snapshot, Snapshots};
use crate::observed::Observed;
use crate::reporting::causes::Causes;
use crate::reporting::events::EventReason;
use crate::reporting::measures::WorkKind;
use crate::reporting::report::transitions::Stage;
use crate::reporting::status::eviction::Eviction;
use crate::shared::Shared;
use crate::source::merge::first_seen;
use crate::storage::volumes::PodDirs;
use crate::storage::volumes::termination::Messages;

mod cause;
mod execution;
mod garbage;
mod outcomes;
pub(crate) mod phase;
mod probes;
mod publishing;
pub(crate) mod rejected;
mod reporting;
mod resizing;
mod stabilization;
mod start_errors;
pub(crate) mod starts;
mod storage;
mod teardown;
mod terminal;
mod update;
mod volumes;
mod waiting;

use outcomes::Expected;
use phase::{Phase, PhaseEvent};
use probes::Probes;
use publishing::{Published, gates_differ};
use reporting::Timings;
use resizing::Resizing;
use stabilization::Stabilization;
use start_errors::StartErrors;
use starts::StartSlot;
use storage::Storage;
use volumes::Volumes;

pub(crate) use start_errors::jittered;
pub(crate) use update::{PodUpdate, WorkItem};

/// The cause of the termination of a pod whose containers have all exited and are not restarted.
const FINISHED: &str = "all containers have finished";
/// The cause of the termination of a pod after `activeDeadlineSeconds`.
const PAST_DEADLINE: &str = "active deadline exceeded";

/// Runs a pod's worker until nothing of the pod is left.
pub(crate) fn run(
    shared: Arc<Shared>,
    item: WorkItem,
    updates: watch::Receiver<PodUpdate>,
) -> impl Future<Output = ()> {
    // Created outside the task, which would otherwise keep the memory of the arguments as long as it runs.
    let mut worker = Worker::new(shared, item, updates);
    async move {
        worker.start_slot = worker.shared.starts.acquire(&*worker.shared.clock).await;
        worker.run_phases().await;
        worker.shared.prober.remove(&worker.pod_ref.uid);
        worker.shared.tokens.forget(&worker.pod_ref.uid);
        worker.shared.cache.unsubscribe(&worker.pod_ref.uid);
    }
}

fn crash_backoff(shared: &Shared) -> crate::decide::backoff::Backoff {
    let seconds = |wait: std::time::Duration| {
        jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX)
    };
    let (first, max) = shared.config.crash_backoff;
    let limits = crate::decide::backoff::Limits::with_max(seconds(max));
    crate::decide::backoff::Backoff::new(crate::decide::backoff::Limits {
        first: seconds(first),
        ..limits
    })
}

struct Worker {
    shared: Arc<Shared>,
    pod_ref: PodRef,
    /// `None` for an orphan.
    pod: Option<Pod>,
    dirs: PodDirs,
    updates: watch::Receiver<PodUpdate>,
    phase: Phase,
    termination: Termination,
    observation: Observation,
    history: History,
    start_errors: StartErrors,
    hooks: Hooks,
    seeds: Seeds,
    timings: Timings,
    messages: Messages,
    probes: Probes,
    volumes: Volumes,
    storage: Storage,
    reported: Reported,
    stabilization: Stabilization,
    resizing: Resizing,
    /// Changes of the health of claims' devices.
    claim_health: Option<watch::Receiver<u64>>,
    /// Its slot for starting, until it is idle.
    start_slot: StartSlot,
    /// The kind of the next sync.
    next_work: WorkKind,
}

/// Why and how the pod terminates.
struct Termination {
    /// Why no source has the pod any more; `None` while one does.
    removed: Option<String>,
    /// Why the pod terminates while its source still has it.
    cause: String,
    /// Why the agent evicts the pod; `None` if it does not.
    eviction: Option<Eviction>,
    /// The grace period of the pod's termination, once it terminates.
    grace: Option<i64>,
}

/// The observed state of the pod's containers.
struct Observation {
    snapshots: Snapshots,
    /// Snapshots of an older generation are stale.
    since: Generation,
    /// The changes that the next snapshot must show.
    expected: Expected,
}

/// The postStart hooks.
#[derive(Default)]
struct Hooks {
    /// Containers whose hook has not succeeded yet: they do not count as running.
    pending: Set<String>,
    /// Why containers are stopped whose hook has failed, during the current plan.
    failed: Causes,
}

/// The pod's reported status.
struct Reported {
    /// The last reported status.
    last: Option<Arc<PodStatus>>,
    published: Published,
    /// How often the status was removed.
    forgotten: u64,
}

/// Counters that vary the jitter.
#[derive(Default)]
struct Seeds {
    failures: u64,
    resyncs: u64,
}

/// The result of a pod's sync.
enum Synced {
    /// The pod enters another phase.
    Phase(PhaseEvent),
    /// There may be more to do.
    Again,
    /// There is nothing to do before this time, unless an event occurs. `now` is the time of the sync.
    Wait { until: Option<Timestamp>, now: Timestamp },
}

impl Worker {
    fn new(shared: Arc<Shared>, item: WorkItem, updates: watch::Receiver<PodUpdate>) -> Self {
        let pod_ref = item.pod_ref();
        let mut volumes = Volumes::new(&shared);
        if let WorkItem::Pod(pod, _) = &item {
            volumes.set_pod(pod);
        }
        let dirs = PodDirs::new(&shared.config, &pod_ref.uid, &pod_ref.namespace, &pod_ref.name);
        let resizing = Resizing::new(&item, &dirs, &shared.node, shared.clock.now());
        let (pod, last) = match item {
            WorkItem::Pod(pod, last) => (Some(pod), last),
            WorkItem::Orphan(_) => (None, None),
        };
        let manager = shared.claim_manager.as_ref();
        let claim_health = manager.and_then(|manager| manager.health_changes());
        Self {
            termination: Termination {
                removed: None,
                cause: FINISHED.to_owned(),
                eviction: None,
                grace: None,
            },
            observation: Observation {
                snapshots: shared.cache.subscribe(&pod_ref.uid),
                since: Generation::default(),
                expected: Expected::default(),
            },
            reported: Reported { published: Published::after(last.clone()), last, forgotten: 0 },
            history: History { backoff: crash_backoff(&shared), ..History::default() },
            dirs,
            pod,
            shared,
            pod_ref,
            updates,
            phase: Phase::Syncing,
            start_errors: StartErrors::default(),
            hooks: Hooks::default(),
            seeds: Seeds::default(),
            timings: Timings::default(),
            messages: Messages::default(),
            probes: Probes::default(),
            volumes,
            storage: Storage::default(),
            stabilization: Stabilization::default(),
            resizing,
            start_slot: None,
            next_work: WorkKind::Create,
            claim_health,
        }
    }

    /// Rare phases are boxed, so that an idle pod does not keep memory for their state.
    async fn run_phases(&mut self) {
        if self.pod.is_none() {
            self.termination.removed = Some("orphaned pod".to_owned());
            self.phase = self.phase.on(PhaseEvent::Deleted);
        }
        while self.phase != Phase::Gone {
            let event = match self.phase {
                Phase::Syncing => self.sync().await,
                Phase::Terminating => {
                    let since = Instant::now();
                    let ended = Box::pin(self.terminate()).await;
                    self.shared.measures.record_sync(WorkKind::Kill, since.elapsed());
                    ended
                }
                Phase::Terminated => self.await_removal().await,
                Phase::Removing => Box::pin(self.remove()).await,
                Phase::Gone => return,
            };
            self.phase = self.phase.on(event);
            self.start_slot = None;
        }
    }

    /// Syncs the pod until it has finished or must terminate.
    async fn sync(&mut self) -> PhaseEvent {
        loop {
            match Box::pin(self.sync_once()).await {
                Synced::Phase(event) => return event,
                Synced::Again => {}
                Synced::Wait { until, now } => {
                    self.start_slot = None;
                    self.wait(until, now).await;
                }
            }
        }
    }

    /// Observes the pod, and carries out the next actions.
    async fn sync_once(&mut self) -> Synced {
        if !self.take_update() {
            return Synced::Phase(PhaseEvent::Deleted);
        }
        let Some(snapshot) = self.fresh().await else {
            return Synced::Phase(PhaseEvent::Deleted);
        };
        let Some(pod) = self.pod.clone() else {
            return Synced::Phase(PhaseEvent::Deleted);
        };
        let kind = std::mem::replace(&mut self.next_work, WorkKind::Sync);
        if kind == WorkKind::Create {
            self.shared.measures.record_container_count(pod.spec().containers.len());
            if let Some(seen) = first_seen(&pod) {
                let waited = self.shared.clock.now().duration_since(seen);
                let waited = Duration::try_from(waited).unwrap_or_default();
                self.shared.measures.record_worker_start(waited);
            }
        }
        let since = Instant::now();
        let synced = Box::pin(self.sync_with(pod, snapshot)).await;
        self.shared.measures.record_sync(kind, since.elapsed());
        synced
    }

    /// Syncs the pod with this snapshot.
    async fn sync_with(&mut self, pod: Pod, snapshot: Snapshot) -> Synced {
        let observed = self.observe(&snapshot);
        self.check_effects(&observed);
        self.follow_resize(&pod, &observed);
        let changed = self.observe_events(&observed);
        Box::pin(self.refresh_volumes(&pod, &observed)).await;
        let now = self.shared.clock.now();
        self.defer_removed_containers(&pod, &observed, changed, now);
        let plan = self.plan(&pod, &observed, now);
        let stable_at = self.stabilization.until(&plan, &observed, now);
        let syncs = stable_at.is_none() && self.begin_sync(&observed, changed);
        if stable_at.is_none() {
            self.note_crash_backoffs(&plan, syncs);
        }
        let evicted = self.exceeds_storage(&pod, &observed).await;
        let causes = match self.deadline() {
            Some(at) if at <= now => Causes::pod(PAST_DEADLINE),
            Some(_) | None if evicted => Causes::pod(&*self.termination.cause),
            Some(_) | None => snapshot.causes,
        };
        self.log_adoption(&observed);
        self.report(&observed, Stage::Active, causes);
        if evicted {
            return Synced::Phase(PhaseEvent::Finished);
        }
        if self.is_past_deadline() {
            self.termination.cause = PAST_DEADLINE.to_owned();
            self.note_deadline();
            return Synced::Phase(PhaseEvent::Finished);
        }
        // If another agent began the pod's termination, the plan may still have actions, because a sidecar has ended meanwhile.
        if plan.finished || self.has_terminal_phase() {
            Box::pin(self.collect_dead_containers(&observed)).await;
            return Synced::Phase(PhaseEvent::Finished);
        }
        self.run_probes(&pod, &observed);
        if let Some(at) = stable_at {
            self.update_prober_between_publications();
            let until = Some(at);
            return Synced::Wait { until, now };
        }
        if plan.does_something() && self.wait_for_runtime(&pod, now, syncs).await {
            return Synced::Again;
        }
        if syncs && !execute::prepares_volumes(&pod, &plan) && !self.volumes.are_awaited() {
            execute::note_missing_pull_secrets(&self.shared, &pod);
            execute::note_dns_warnings(&self.shared, &pod);
        }
        if plan.does_something() {
            let causes = self.probes.take_causes().and(cause::of_plan(&plan));
            self.shared.cache.busy(&self.pod_ref.uid);
            self.reported.published.make_due();
            for id in plan.removed() {
                self.stabilization.forget(id.as_str());
            }
            Box::pin(self.execute(pod, observed, plan, &causes)).await;
            let causes = causes.and(std::mem::take(&mut self.hooks.failed));
            self.observation.since = self.shared.cache.refresh(&self.pod_ref.uid, causes);
        } else if syncs && execute::pulls_volumes(&pod, &plan) {
            Box::pin(self.execute(pod, observed, plan, &Causes::default())).await;
        } else if !self.collect_garbage(&observed).await {
            let wakes = [
                self.volumes.wake_at(),
                self.storage.wake_at(),
                plan.wake_at(),
                self.history.holds.next_end(now),
                self.deadline(),
            ];
            let until = wakes.into_iter().flatten().min();
            return Synced::Wait { until, now };
        }
        Synced::Again
    }

    /// Plans the next actions.
    fn plan(&mut self, pod: &Pod, observed: &Observed, now: Timestamp) -> PodPlan {
        self.history.backoff.forget_old(now);
        self.history.holds.forget_old(now);
        self.history.actuated = Some(self.resizing.actuated.now());
        if restart::could_restart_all(pod) {
            let under_way = self.history.restart_all && !restart::all_removed(pod, observed);
            self.history.restart_all = under_way || restart::restart_all_matched(pod, observed);
        }
        let plan = plan::plan(pod, observed, &self.history, now);
        tracing::debug!(pod = %pod.full_name(), ?plan, "planned");
        plan
    }

    /// Records which containers wait for their crash back-off. A kubelet records that as an event at each sync.
    fn note_crash_backoffs(&mut self, plan: &PodPlan, syncs: bool) {
        let waiting = self.start_errors.record_crash_backoffs(plan);
        for name in waiting.iter().filter(|_| syncs) {
            self.event(Some(name), &EventReason::BackOff);
        }
    }

    /// Applies the latest update. Returns whether the pod must still run.
    fn take_update(&mut self) -> bool {
        let update = self.updates.borrow_and_update().clone();
        let ends = update.ends();
        match update {
            PodUpdate::Run(pod, resize) => {
                if self.take_resize(&pod, resize) {
                    self.reported.published.make_due();
                }
                if self.pod.as_ref().is_none_or(|old| pod.is_updated_from(old)) {
                    // Failed actions may succeed now.
                    self.history.holds.release_all();
                    self.reported.published.make_due();
                    self.next_work = self.next_work.min(WorkKind::Update);
                } else if self.pod.as_ref().is_some_and(|old| gates_differ(old, &pod)) {
                    self.reported.published.make_due();
                }
                if self.pod.as_ref() != Some(&pod) {
                    self.volumes.set_pod(&pod);
                }
                if ends {
                    self.termination.cause = "deleted".to_owned();
                }
                self.pod = Some(pod);
            }
            PodUpdate::Evict(eviction) => self.evict(eviction),
            PodUpdate::Terminate { cause, last, .. } => self.removed_from_source(cause, last),
        }
        !ends
    }

    /// Records why no source has the pod any more, and its last version.
    fn removed_from_source(&mut self, cause: String, last: Option<Pod>) {
        self.termination.removed = Some(cause);
        if last.is_some() {
            self.pod = last;
        }
    }

    /// Records an event about the pod or one of its containers.
    fn event(&self, container: Option<&str>, reason: &EventReason) {
        if let Some(pod) = &self.pod {
            self.shared.events.record(pod, container, reason);
        }
    }

    /// Waits for a snapshot of at least `min_generation`; `None` if the pod must terminate first.
    async fn fresh(&mut self) -> Option<Snapshot> {
        let min_generation = self.observation.since;
        loop {
            tokio::select! {
                biased;
                changed = self.updates.changed() => {
                    // The send side is dropped: the agent is stopping, and pods keep running.
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if !self.take_update() {
                        return None;
                    }
                }
                seen = latest(&mut self.observation.snapshots, min_generation) => return Some(seen),
            }
        }
    }

    /// The snapshot with termination messages and results of probes.
    fn observe(&mut self, snapshot: &Snapshot) -> Arc<Observed> {
        match &self.pod {
            Some(pod) => {
                let observed = self.messages.read(pod, &snapshot.observed);
                self.probes.add_to(observed)
            }
            None => Arc::clone(&snapshot.observed),
        }
    }

    fn uid(&self) -> &PodUid {
        &self.pod_ref.uid
    }
}

/// Waits for a snapshot of at least `min_generation`.
async fn latest(snapshots: &mut Snapshots, min_generation: Generation) -> Snapshot {
    let seen = snapshots
        .wait_for(|seen| seen.as_ref().is_some_and(|seen| seen.generation >= min_generation))
        .await;
    match seen.ok().and_then(|seen| seen.clone()) {
        Some(snapshot) => snapshot,
        // The pleg task has ended: the agent is stopping.
        None => std::future::pending().await,
    }
}
