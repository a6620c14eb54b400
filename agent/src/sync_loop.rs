//! Reconciles the pods of the sources with the pods of the runtime: one task owns the list of workers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use api::pod::{Pod, PodUid};
use compact::{Map, Set};
use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::clock::after;
use crate::observation::pleg::{FailedObservation, RuntimePods};
use crate::observation::readiness::Readiness;
use crate::pod_spec::admission::{self, AdmittedPods, Rejection, admit_or_preempt};
use crate::reporting::events::EventReason;
use crate::reporting::measures::Counted;
use crate::reporting::report::Reports;
use crate::reporting::status::eviction::Eviction;
use crate::shared::Shared;
use crate::source::merge::{DuplicatePod, new_duplicates, small_change};
use crate::source::{Distinct, PodSource, log_duplicates};
use crate::worker::{self, PodUpdate, WorkItem, rejected};
use tasks::blocking;

mod allocations;
mod entries;
mod housekeeping;
pub(crate) mod monitor;
mod orphans;
mod reconcile;
mod resizes;

use allocations::Allocations;
use entries::{Entries, Entry};
use housekeeping::Garbage;
use monitor::SyncLoopMonitor;
use reconcile::{Name, StartWait, WorkerAction, WorkerState, desired_pods, reconcile};
use resizes::{Granted, Resizes, Trigger};

/// The loop's published state.
pub(crate) struct Published {
    /// The pods of all sources, without duplicates.
    pub(crate) pods: watch::Sender<Arc<[Pod]>>,
    /// Whether each source has had its first update.
    pub(crate) ready: watch::Sender<bool>,
    /// The times of the loop's iterations.
    pub(crate) monitor: SyncLoopMonitor,
}

/// Messages of other tasks about pods.
pub(crate) struct Receivers {
    /// Failed observations.
    pub(crate) failed: mpsc::UnboundedReceiver<FailedObservation>,
    /// Pods to evict.
    pub(crate) evictions: mpsc::UnboundedReceiver<(PodUid, Eviction)>,
}

struct SyncLoop {
    shared: Arc<Shared>,
    reports: watch::Receiver<Arc<Reports>>,
    /// The pods of each source; `None` until its first update.
    sources: Vec<Option<Arc<[Pod]>>>,
    /// The pods of all sources, without duplicates.
    desired: Arc<[Pod]>,
    /// The names and uids in `desired`, if there is only one source and it has no duplicates.
    distinct: Option<Distinct>,
    published: Published,
    duplicates: Set<DuplicatePod>,
    entries: Entries,
    /// The desired pods without a worker whose start is deferred.
    waiting: Map<PodUid, StartWait>,
    /// The number of deferred starts, a seed for jitter.
    deferred_starts: u64,
    /// When workers ended, until a later listing of the runtime.
    ended: Map<PodUid, Timestamp>,
    /// The pods removed from sources that a kubelet has, until their statuses are removed.
    removed: Set<PodUid>,
    garbage: Garbage,
    /// Whether a desired pod waits for the end of a worker.
    waits: bool,
    /// Critical pods that wait for evicted ones to end.
    preempting: Set<PodUid>,
    tasks: JoinSet<()>,
    ids: Map<Id, PodUid>,
    resizes: Resizes,
    /// The allocations of exclusive resources for pods that are not started yet.
    allocations: Allocations,
    /// Whether every source had delivered its pods before the current change: until then, pods of an earlier agent may be missing.
    sources_were_ready: bool,
}

/// Runs until `shutdown`. The workers stop at the same time; pods keep running.
pub(crate) async fn run(
    shared: Arc<Shared>,
    reports: watch::Receiver<Arc<Reports>>,
    published: Published,
    sources: Vec<Box<dyn PodSource>>,
    mut runtime: RuntimePods,
    mut receivers: Receivers,
    shutdown: CancellationToken,
) {
    let entries = Entries::new(shared.status_store.subscribe_shares());
    let mut sync_loop = SyncLoop {
        shared,
        reports,
        sources: sources.iter().map(|_| None).collect(),
        desired: Arc::default(),
        distinct: None,
        published,
        duplicates: Set::new(),
        entries,
        waiting: Map::new(),
        deferred_starts: 0,
        ended: Map::new(),
        removed: Set::new(),
        garbage: Garbage::default(),
        waits: false,
        preempting: Set::new(),
        tasks: JoinSet::new(),
        ids: Map::new(),
        resizes: Resizes::new(),
        allocations: Allocations::default(),
        sources_were_ready: false,
    };
    let (sender, mut sets) = mpsc::channel(16);
    let mut readers = JoinSet::new();
    for (number, source) in sources.into_iter().enumerate() {
        let shared = Arc::clone(&sync_loop.shared);
        readers.spawn(tasks::boxed(read_source(number, source, shared, sender.clone())));
    }
    let trash = Arc::clone(&sync_loop.shared.trash);
    blocking(move || {
        if let Err(error) = trash.resume() {
            tracing::warn!(
                error = &error as &dyn std::error::Error,
                "failed to delete trash of an earlier agent"
            );
        }
    })
    .await;
    let mut housekeeping = periodic(sync_loop.shared.config.housekeeping_period);
    let mut garbage_collection = periodic(sync_loop.shared.config.gc_period);
    let clock = Arc::clone(&sync_loop.shared.clock);
    loop {
        if sync_loop.shared.readiness.borrow().runtime.is_none() {
            sync_loop.published.monitor.record_iteration();
        }
        let retry_at = sync_loop.retry_at();
        // Each arm is cancel safe: it only receives or sleeps.
        tokio::select! {
            () = shutdown.cancelled() => return,
            Some((number, pods)) = sets.recv() => {
                sync_loop.set_desired(number, pods);
                sync_loop.sources_were_ready = sync_loop.sources_are_ready();
            }
            Some(ended) = sync_loop.tasks.join_next_with_id() => sync_loop.worker_ended(ended),
            // Without a reader, the pods of its source would never change again.
            Some(ended) = readers.join_next() => { tasks::output(ended); }
            Ok(()) = runtime.changed() => {
                let listed = runtime.borrow_and_update().clone();
                if let Some(listed) = listed {
                    sync_loop.listed(&listed).await;
                }
            }
            Some(failure) = receivers.failed.recv() => sync_loop.observation_failed(failure),
            Some((uid, eviction)) = receivers.evictions.recv() => sync_loop.evict(&uid, eviction),
            _ = housekeeping.tick() => {
                let listed = runtime.borrow().clone();
                sync_loop.housekeeping(listed.as_deref()).await;
            }
            _ = garbage_collection.tick() => sync_loop.request_periodic_collection(),
            () = clock.sleep_until(retry_at.unwrap_or_default()), if retry_at.is_some() => {
                sync_loop.reconcile_workers();
            }
            () = sync_loop.resizes.due() => sync_loop.retry_resizes(Trigger::Period),
            (uid, allocated) = sync_loop.allocations.next() => sync_loop.allocated(uid, allocated),
            Ok(()) = sync_loop.reports.changed(), if sync_loop.waits_for_reports() => sync_loop.reports_changed(),
        }
    }
}

/// Ticks in each period, first at the end of the first period.
fn periodic(period: Duration) -> Interval {
    let mut interval = tokio::time::interval_at(Instant::now() + period, period);
    interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
    interval
}

/// Forwards the updates of one source. A pod that requires a feature of the runtime waits until the runtime has reported its
/// features: a kubelet admits no pod before.
async fn read_source(
    number: usize,
    mut source: Box<dyn PodSource>,
    shared: Arc<Shared>,
    sets: mpsc::Sender<(usize, Arc<[Pod]>)>,
) {
    let mut readiness = shared.readiness.clone();
    while let Some(pods) = source.next().await {
        tracing::debug!(source = %source.name(), pods = pods.len(), "pod source updated");
        for pod in source.take_ignored() {
            shared.events.record(&pod, None, &EventReason::FailedValidation);
        }
        let is_known = |it: &Readiness| it.capabilities.is_some();
        let known = is_known(&readiness.borrow());
        if !known && pods.iter().any(admission::requires_strict_groups) {
            // It fails only if the agent ends.
            let _ = readiness.wait_for(is_known).await;
        }
        if sets.send((number, pods)).await.is_err() {
            return;
        }
    }
}

impl SyncLoop {
    fn set_desired(&mut self, source: usize, pods: Arc<[Pod]>) {
        if let Some(desired) = self.sources.get_mut(source) {
            *desired = Some(Arc::clone(&pods));
        }
        let before = Arc::clone(&self.desired);
        if let Some(distinct) = self.distinct.take()
            && self.waiting.is_empty()
            && !self.waits
            && let Some((before, after)) = small_change(&before, &pods)
            && let Some(distinct) = distinct.replaced(before, after)
        {
            self.distinct = Some(distinct);
            self.publish(&pods);
            self.reconcile_some(before, after);
            return;
        }
        let (desired, duplicates) = desired_pods(&self.sources);
        if self.sources.len() == 1 && duplicates.is_empty() {
            self.distinct = Distinct::of(&desired);
        }
        self.publish(&Arc::from(desired));
        log_duplicates(&new_duplicates(&mut self.duplicates, duplicates));
        self.reconcile_workers();
    }

    fn publish(&mut self, desired: &Arc<[Pod]>) {
        self.desired = Arc::clone(desired);
        self.published.pods.send_replace(Arc::clone(desired));
        let is_ready = self.sources_are_ready();
        self.published
            .ready
            .send_if_modified(|ready| std::mem::replace(ready, is_ready) != is_ready);
    }

    fn observation_failed(&mut self, failure: FailedObservation) {
        match failure {
            FailedObservation::Inspection(uid, error) => self.inspection_failed(&uid, error),
            FailedObservation::Listing(error) => self.listing_failed(error),
        }
    }

    /// Records that a pod could not be inspected, which a kubelet does each time that a pod's worker requests its status.
    fn inspection_failed(&self, uid: &PodUid, error: String) {
        if let Some(pod) = self.desired.iter().find(|pod| pod.uid() == uid) {
            let events = &self.shared.events;
            events.record(pod, None, &EventReason::FailedSync(error));
        }
    }

    fn waits_for_reports(&self) -> bool {
        self.resizes.are_pending() || !self.preempting.is_empty()
    }

    fn reports_changed(&mut self) {
        if self.resizes.are_pending() {
            self.observe_reports();
        }
        if !self.preempting.is_empty() {
            self.room_may_be_free();
        }
    }

    fn worker_ended(&mut self, ended: Result<(Id, ()), tokio::task::JoinError>) {
        let id = match ended {
            Ok((id, ())) => id,
            Err(error) => {
                tracing::error!(%error, "pod worker panicked; restarting it");
                error.id()
            }
        };
        let Some(uid) = self.ids.remove(&id) else {
            return;
        };
        let ended = self.entries.remove(&uid);
        self.ended.insert(uid.clone(), self.shared.clock.now());
        // Most ended workers are those of removed pods: then there is nothing to reconcile. The worker of a desired pod has
        // panicked.
        if self.waits || ended.is_some_and(|entry| entry.state.desired.is_some()) {
            if self.desired.iter().any(|pod| *pod.uid() == uid) {
                self.waiting.insert(uid, StartWait::Housekeeping);
            }
            self.reconcile_workers();
        }
    }

    /// The time of the next retry of a deferred start.
    fn retry_at(&self) -> Option<Timestamp> {
        let times = self.waiting.values().filter_map(|wait| match wait {
            StartWait::Until(until) => Some(*until),
            StartWait::Housekeeping => None,
        });
        times.min()
    }

    fn sources_are_ready(&self) -> bool {
        self.sources.iter().all(Option::is_some)
    }

    /// The active pods' current resources on the node.
    fn admitted(&mut self) -> &AdmittedPods {
        self.entries.count(&self.reports.borrow());
        self.entries.admitted()
    }

    fn reconcile_workers(&mut self) {
        let now = self.shared.clock.now();
        self.forget_allocations();
        if !self.waiting.is_empty() {
            let wanted: HashSet<&PodUid> = self.desired.iter().map(Pod::uid).collect();
            self.waiting.retain(|uid, _| wanted.contains(uid) && self.entries.get(uid).is_none());
        }
        let actions = {
            let workers = self.entries.states();
            let reports = self.reports.borrow();
            let finished = |uid: &PodUid| has_ended(&reports, uid);
            reconcile(&self.desired, &workers, finished, &self.waiting, now)
        };
        self.carry_out(actions);
        let desired = Arc::clone(&self.desired);
        self.waits = desired.iter().any(|pod| self.is_waiting(pod));
    }

    /// Reconciles only these changed pods; no other pod waits.
    fn reconcile_some(&mut self, before: &[Pod], after: &[Pod]) {
        let now = self.shared.clock.now();
        let actions = {
            let workers = self.entries.conflicting_states(&[before, after]);
            let reports = self.reports.borrow();
            let finished = |uid: &PodUid| has_ended(&reports, uid);
            reconcile(after, &workers, finished, &self.waiting, now)
        };
        self.carry_out(actions);
        self.waits = after.iter().any(|pod| self.is_waiting(pod));
    }

    /// Whether a desired pod has no worker that runs it.
    fn is_waiting(&self, pod: &Pod) -> bool {
        let entry = self.entries.get(pod.uid());
        entry.is_none_or(|entry| entry.state.desired.is_none())
    }

    fn carry_out(&mut self, actions: Vec<WorkerAction>) {
        let any = |is: fn(&WorkerAction) -> bool| actions.iter().any(is);
        let removes = any(|action| matches!(action, WorkerAction::Terminate(..)));
        let adds = any(|action| matches!(action, WorkerAction::Start(_)));
        let before = self.resizes.pushed();
        for action in actions {
            self.apply(action);
        }
        // Resizes are decided once all pods of an update are known.
        if self.resizes.pushed() != before {
            self.retry_resizes(if adds { Trigger::PodsAdded } else { Trigger::PodUpdated });
        } else if removes && self.resizes.are_pending() {
            self.retry_resizes(Trigger::PodsRemoved);
        }
    }

    fn apply(&mut self, action: WorkerAction) {
        match action {
            WorkerAction::Start(pod) => {
                if self.waiting.remove(pod.uid()) == Some(StartWait::Housekeeping) {
                    self.shared.measures.count(Counted::SameUid(pod.is_static()));
                }
                self.start_pod(pod);
            }
            WorkerAction::TryLater(uid) => {
                self.deferred_starts += 1;
                let wait = self.shared.config.retry_after_error;
                let wait = worker::jittered(wait, uid.as_str(), self.deferred_starts);
                let until = after(self.shared.clock.now(), wait);
                tracing::info!(pod = %uid, %until, "pod waits for another pod with the same name to terminate");
                self.waiting.insert(uid, StartWait::Until(until));
            }
            WorkerAction::Update(pod) => {
                if let Some(entry) = self.entries.get_mut(pod.uid()) {
                    let before = entry.state.desired.replace(pod.clone());
                    self.update_allocated(&pod, before.as_ref());
                }
            }
            WorkerAction::Terminate(uid, cause) => {
                if let Some(entry) = self.entries.get_mut(&uid) {
                    let last = entry.state.desired.take();
                    let last = last.map(|last| entry.granted.pod(&last).clone());
                    entry.send(PodUpdate::terminate(cause, last));
                    // The removal from a source that a kubelet does not have counts as a deletion: the status stays.
                    if entry.state.name != Name::Exclusive {
                        self.removed.insert(uid);
                    }
                }
            }
        }
    }

    /// Starts the worker of a pod, or reports the pod as rejected if the node does not admit it.
    fn start_pod(&mut self, pod: Pod) {
        let shared = Arc::clone(&self.shared);
        // An earlier agent may have granted it other resources than it requests now.
        let granted = Granted::recorded(&pod, &shared.config, shared.clock.now());
        // A pod that has ended needs no resources of the node (Kubernetes 1.36, pkg/kubelet/kubelet.go HandlePodAdditions).
        let admitted = match pod.has_ended() {
            true => Ok(Admission::Now),
            false => self.admit(granted.pod(&pod)),
        };
        let remembered = self.remembered_status(&pod);
        let item = WorkItem::Pod(granted.pod(&pod).clone(), remembered);
        let state = WorkerState::of(&pod, item.pod_ref());
        let (updates, receiver) = watch::channel(granted.update(&pod));
        match admitted {
            Ok(Admission::Allocating) => {}
            Ok(Admission::After(victims, insufficient_resource)) => {
                self.preempt(&pod, &victims, &insufficient_resource)
            }
            Ok(Admission::Now) => {
                self.preempting.remove(pod.uid());
                self.allocations.started(pod.uid());
                granted.keep(&pod, &shared.config);
                let differs = granted.differs();
                let worker = worker::run(shared, item, receiver);
                self.start(state, updates, false, granted, worker);
                if differs {
                    self.push_resize(pod.uid());
                }
            }
            Err(rejection) => {
                self.preempting.remove(pod.uid());
                self.allocations.started(pod.uid());
                shared.managers.release(pod.uid());
                let worker = rejected::run(shared, pod, rejection, receiver);
                self.start(state, updates, true, granted, worker);
            }
        }
    }

    fn start(
        &mut self,
        state: WorkerState,
        updates: watch::Sender<PodUpdate>,
        rejected: bool,
        granted: Granted,
        worker: impl Future<Output = ()> + Send + 'static,
    ) {
        let handle = self.tasks.spawn(tasks::boxed(worker));
        let uid = state.pod.uid.clone();
        self.ids.insert(handle.id(), uid.clone());
        let entry = Entry { state, updates, rejected, granted, evicted: false };
        self.entries.insert(uid, entry);
    }
}

/// Whether nothing of a pod runs any more.
fn has_ended(reports: &Reports, uid: &PodUid) -> bool {
    reports.get(uid).is_some_and(|report| report.finished)
}

/// When the node admits a pod.
enum Admission {
    /// Now.
    Now,
    /// When its containers' exclusive resources are allocated.
    Allocating,
    /// When preempted pods have ended. The listed ones must still be evicted, because there is too little of this resource.
    After(Vec<PodUid>, String),
}

impl SyncLoop {
    /// Whether the node admits a pod beside the admitted pods that have not ended.
    fn admit(&mut self, pod: &Pod) -> Result<Admission, Rejection> {
        let shared = &self.shared;
        if let Some(rejection) = rejected::recorded(&shared.config.root_dir, pod.uid()) {
            return Err(rejection);
        }
        if *shared.shutting_down.borrow() {
            return Err(Rejection::of_shutdown());
        }
        let mut node_info = shared.current_node_info();
        if shared.managers.concerns(pod) {
            admission::before_allocation(pod, &node_info)?;
            match self.allocate(pod) {
                None => return Ok(Admission::Allocating),
                Some(allocated) => allocated?,
            }
            // Includes the devices that were just allocated to the pod.
            node_info = self.shared.current_node_info();
        } else if !self.preempting.contains(pod.uid()) {
            admission::before_allocation(pod, &node_info)?;
            shared.managers.admitted_without_allocation();
        }
        self.entries.count(&self.reports.borrow());
        let admitted = self.entries.admitted();
        if admit_or_preempt(pod, admitted, &node_info)?.is_empty() {
            return Ok(Admission::Now);
        }
        let (victims, insufficient_resource) =
            admission::preempted(pod, &self.entries.kept(), &node_info)?;
        Ok(Admission::After(victims, insufficient_resource))
    }

    /// Evicts a pod.
    fn evict(&mut self, uid: &PodUid, eviction: Eviction) {
        let entry = self.entries.get_mut(uid);
        if let Some(entry) = entry.filter(|entry| entry.state.desired.is_some() && !entry.rejected)
        {
            entry.send(PodUpdate::Evict(eviction));
            entry.evicted = true;
        }
    }

    /// Evicts the pods preempted for `pod`, which is admitted again when a pod has ended.
    fn preempt(&mut self, pod: &Pod, victims: &[PodUid], insufficient_resource: &str) {
        self.evict_for(pod, victims, insufficient_resource);
        self.preempting.insert(pod.uid().clone());
    }

    /// Evicts the pods preempted for a critical pod or its resize.
    fn evict_for(&mut self, pod: &Pod, victims: &[PodUid], insufficient_resource: &str) {
        for uid in victims {
            let Some(entry) = self.entries.get_mut(uid) else {
                continue;
            };
            tracing::info!(pod = %uid, critical_pod = %pod.full_name(), "evicting pod to make room for critical pod");
            entry.send(PodUpdate::Evict(Eviction::PREEMPTION));
            entry.evicted = true;
            self.shared.measures.count(Counted::Preempted(insufficient_resource.to_owned()));
        }
    }

    /// Retries the admission of pods that wait for others to end.
    fn room_may_be_free(&mut self) {
        let desired = &self.desired;
        self.preempting.retain(|uid| desired.iter().any(|pod| pod.uid() == uid));
        self.reconcile_workers();
    }
}

#[cfg(test)]
mod tests;
