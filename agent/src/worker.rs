//! One task per pod: observe, plan, execute and report until nothing of the pod is left.
//!
//! Updates arrive through a watch channel, so only the latest counts; a termination cannot be revoked. The worker observes
//! its pod through the snapshots of [`crate::cache`]; after a change it waits for a snapshot of a later inspection.

use std::sync::Arc;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

use crate::blocking::blocking;
use crate::cache::{Generation, Snapshot, Snapshots};
use crate::causes::Causes;
use crate::clock::after;
use crate::cri::PodRef;
use crate::execute::{self, Job, Progress};
use crate::gc;
use crate::observed::Observed;
use crate::plan::{self, History, PodPlan, restart};
use crate::pod::{Pod, PodUid};
use crate::report::transitions::Stage;
use crate::report::{ContainerPhase, PodReport};
use crate::shared::Shared;
use crate::volumes::PodDirs;

mod cause;
mod messages;
pub(crate) mod phase;
mod reporting;
mod start_backoff;
mod teardown;

use messages::Messages;
use phase::{Phase, PhaseEvent};
use reporting::Timings;
use start_backoff::{StartBackoff, jittered};

/// The desired state of a worker's pod; only the latest counts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodUpdate {
    /// Run this pod.
    Run(Pod),
    /// Terminate the pod and remove what is left, for this cause.
    Terminate(String),
}

/// What a worker works on.
#[derive(Clone, Debug)]
pub(crate) enum WorkItem {
    /// A pod of a source.
    Pod(Pod),
    /// A pod of the runtime that no source has.
    Orphan(PodRef),
}

impl WorkItem {
    /// Identifies the pod.
    pub(crate) fn pod_ref(&self) -> PodRef {
        match self {
            Self::Pod(pod) => PodRef {
                uid: pod.uid().clone(),
                namespace: pod.namespace().to_owned(),
                name: pod.name().to_owned(),
            },
            Self::Orphan(pod_ref) => pod_ref.clone(),
        }
    }
}

/// Runs a pod's worker until nothing of the pod is left.
pub(crate) async fn run(shared: Arc<Shared>, item: WorkItem, updates: watch::Receiver<PodUpdate>) {
    let pod_ref = item.pod_ref();
    let mut worker = Worker {
        snapshots: shared.cache.subscribe(&pod_ref.uid),
        dirs: PodDirs::new(
            &shared.config,
            &pod_ref.uid,
            &pod_ref.namespace,
            &pod_ref.name,
        ),
        history: History {
            backoff: crash_backoff(&shared),
            restart_all: false,
        },
        pod: match item {
            WorkItem::Pod(pod) => Some(pod),
            WorkItem::Orphan(_) => None,
        },
        shared,
        pod_ref,
        updates,
        phase: Phase::Syncing,
        termination_cause: None,
        min_generation: Generation::default(),
        start_backoff: StartBackoff::default(),
        timings: Timings::default(),
        messages: Messages::default(),
        last: None,
        resyncs: 0,
    };
    worker.run_phases().await;
    worker.shared.cache.unsubscribe(&worker.pod_ref.uid);
}

fn crash_backoff(shared: &Shared) -> crate::backoff::Backoff {
    let seconds = |wait: std::time::Duration| {
        jiff::SignedDuration::try_from(wait).unwrap_or(jiff::SignedDuration::MAX)
    };
    let (first, max) = shared.config.crash_backoff;
    let limits = crate::backoff::Limits::with_max(seconds(max));
    crate::backoff::Backoff::new(crate::backoff::Limits {
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
    snapshots: Snapshots,
    phase: Phase,
    /// Why the pod is terminated, once it is.
    termination_cause: Option<String>,
    /// Snapshots of an older generation are stale.
    min_generation: Generation,
    history: History,
    start_backoff: StartBackoff,
    timings: Timings,
    messages: Messages,
    /// The last report.
    last: Option<PodReport>,
    /// Counts resyncs, as a seed for jitter.
    resyncs: u64,
}

impl Worker {
    async fn run_phases(&mut self) {
        if self.pod.is_none() {
            self.termination_cause = Some("orphaned pod".to_owned());
            self.phase = self.phase.on(PhaseEvent::Deleted);
        }
        while self.phase != Phase::Gone {
            let event = match self.phase {
                Phase::Syncing => self.sync().await,
                Phase::Terminating => self.terminate().await,
                Phase::Terminated => self.await_removal().await,
                Phase::Removing => self.remove().await,
                Phase::Gone => return,
            };
            self.phase = self.phase.on(event);
        }
    }

    /// Brings the pod to its desired state until it has finished or must terminate.
    async fn sync(&mut self) -> PhaseEvent {
        loop {
            if !self.take_update() {
                return PhaseEvent::Deleted;
            }
            let Some(snapshot) = self.fresh().await else {
                return PhaseEvent::Deleted;
            };
            let Some(pod) = self.pod.clone() else {
                return PhaseEvent::Deleted;
            };
            let observed = self.with_messages(&snapshot).await;
            let now = self.shared.clock.now();
            let (plan, wake) = self.plan(&pod, &observed, now);
            self.report(&observed, Stage::Active, snapshot.causes);
            if plan.finished {
                return PhaseEvent::Finished;
            }
            if plan.does_something() {
                let causes = cause::of_plan(&plan);
                self.execute(pod, observed, plan, &causes).await;
                self.min_generation = self.shared.cache.refresh(&self.pod_ref.uid, causes);
            } else if !self.collect_garbage(&observed).await {
                self.wait(plan.wake_at().into_iter().chain(wake).min(), now)
                    .await;
            }
        }
    }

    /// Plans the next actions; the time is when the first deferred action is due.
    fn plan(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        now: Timestamp,
    ) -> (PodPlan, Option<Timestamp>) {
        self.history.backoff.forget_old(now);
        if restart::could_restart_all(pod) {
            let under_way = self.history.restart_all && !restart::all_removed(pod, observed);
            self.history.restart_all = under_way || restart::restart_all_matched(pod, observed);
        }
        let mut plan = plan::plan(pod, observed, &self.history, now);
        self.start_backoff.record_crash_backoffs(&plan);
        let wake = self.start_backoff.defer(&mut plan, now);
        tracing::debug!(pod = %pod.full_name(), ?plan, "planned");
        (plan, wake)
    }

    /// Takes the latest update. Returns whether a source still wants the pod.
    fn take_update(&mut self) -> bool {
        match self.updates.borrow_and_update().clone() {
            PodUpdate::Run(pod) => self.pod = Some(pod),
            PodUpdate::Terminate(cause) => self.termination_cause = Some(cause),
        }
        self.termination_cause.is_none()
    }

    /// Waits for a snapshot of at least `min_generation`; `None` if the pod must terminate first.
    async fn fresh(&mut self) -> Option<Snapshot> {
        let min_generation = self.min_generation;
        loop {
            tokio::select! {
                biased;
                changed = self.updates.changed() => {
                    // The sender is gone: the agent is stopping, and pods keep running.
                    if changed.is_err() {
                        std::future::pending::<()>().await;
                    }
                    if !self.take_update() {
                        return None;
                    }
                }
                seen = latest(&mut self.snapshots, min_generation) => return Some(seen),
            }
        }
    }

    /// Waits for a snapshot, an update, or the time.
    async fn wait(&mut self, wake: Option<Timestamp>, now: Timestamp) {
        self.resyncs += 1;
        let resync = after(
            now,
            jittered(
                self.shared.config.resync_period,
                self.pod_ref.uid.as_str(),
                self.resyncs,
            ),
        );
        let deadline = wake.map_or(resync, |wake| wake.min(resync));
        let clock = Arc::clone(&self.shared.clock);
        tokio::select! {
            changed = self.updates.changed() => {
                // The sender is gone: the agent is stopping, and pods keep running.
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            changed = self.snapshots.changed() => {
                if changed.is_err() {
                    std::future::pending::<()>().await;
                }
            }
            () = clock.sleep_until(deadline) => {}
        }
    }

    /// Executes a plan and reports its progress.
    async fn execute(&mut self, pod: Pod, observed: Arc<Observed>, plan: PodPlan, causes: &Causes) {
        let (progress, mut progress_receiver) = mpsc::unbounded_channel();
        let terminating = CancellationToken::new();
        let job = Job {
            shared: Arc::clone(&self.shared),
            pod,
            dirs: self.dirs.clone(),
            observed,
            terminating: terminating.clone(),
            progress,
        };
        let work = execute::execute(Arc::new(job), plan);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                Some(progress) = progress_receiver.recv() => self.heard(progress),
                // The finished work has dropped its sender; its last messages were received above.
                () = &mut work => break,
                // `take_update` takes the update itself when the work is done.
                Ok(()) = self.updates.changed() => {
                    if matches!(*self.updates.borrow(), PodUpdate::Terminate(_)) {
                        terminating.cancel();
                    }
                }
                Ok(()) = self.snapshots.changed() => self.seen_meanwhile(causes).await,
            }
        }
        while let Ok(progress) = progress_receiver.try_recv() {
            self.heard(progress);
        }
    }

    fn heard(&mut self, progress: Progress) {
        let now = self.shared.clock.now();
        self.start_backoff.record(
            &progress,
            self.pod_ref.uid.as_str(),
            self.shared.config.retry_after_error,
            now,
        );
        match progress {
            Progress::Starting(start) => self.history.started(&start, now),
            Progress::Pulled(name, took) => self.timings.entry(&name).pull = Some(took),
            Progress::Created(name, took) => self.timings.entry(&name).create = Some(took),
            Progress::Started(name, took) => self.timings.entry(&name).start = Some(took),
            Progress::Failed(failure) => {
                tracing::warn!(
                    pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name),
                    container = failure.container.as_deref(),
                    reason = %failure.reason,
                    error = %failure.message,
                    "action failed; will retry"
                );
                let causes = match &failure.container {
                    Some(name) => Causes::container(name, ContainerPhase::Waiting, failure.message),
                    None => Causes::pod(failure.message),
                };
                self.report_again(causes);
            }
        }
    }

    /// Reports a snapshot that arrives during the execution of a plan with these causes.
    async fn seen_meanwhile(&mut self, causes: &Causes) {
        let snapshot = self.snapshots.borrow_and_update().clone();
        if let Some(snapshot) = snapshot {
            let observed = self.with_messages(&snapshot).await;
            let causes = snapshot.causes.and(causes.clone());
            self.report(&observed, Stage::Active, causes);
        }
    }

    fn report_again(&mut self, causes: Causes) {
        let observed = self
            .snapshots
            .borrow()
            .as_ref()
            .map(|snapshot| Arc::clone(&snapshot.observed));
        if let Some(observed) = observed {
            self.report(&observed, Stage::Active, causes);
        }
    }

    /// Removes dead containers and sandboxes of a live pod. Returns whether it removed any.
    async fn collect_garbage(&mut self, observed: &Observed) -> bool {
        let garbage = gc::garbage(observed);
        if garbage.is_empty() || self.history.restart_all {
            return false;
        }
        let cri = Arc::clone(&self.shared.cri);
        let mut failed = false;
        for id in &garbage.containers {
            failed |= self.noted(cri.remove_container(id).await);
            let log = observed
                .containers
                .iter()
                .find(|container| container.id == *id)
                .and_then(|seen| seen.log_path.clone());
            if let Some(log) = log {
                let dirs = self.dirs.clone();
                blocking(move || dirs.remove_log(&log)).await;
            }
        }
        for id in &garbage.sandboxes {
            failed |=
                self.noted(cri.stop_sandbox(id).await) || self.noted(cri.remove_sandbox(id).await);
        }
        if failed {
            // The next sync tries again; this is not urgent.
            return false;
        }
        self.min_generation = self
            .shared
            .cache
            .refresh(&self.pod_ref.uid, Causes::pod("garbage was collected"));
        true
    }

    /// Logs an error. Returns whether there was one.
    fn noted(&self, result: Result<(), crate::cri::CriError>) -> bool {
        if let Err(error) = &result {
            tracing::warn!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), %error, "failed to clean up");
        }
        result.is_err()
    }

    async fn with_messages(&mut self, snapshot: &Snapshot) -> Arc<Observed> {
        match &self.pod {
            Some(pod) => self.messages.read(pod, &snapshot.observed).await,
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
        .wait_for(|seen| {
            seen.as_ref()
                .is_some_and(|seen| seen.generation >= min_generation)
        })
        .await;
    match seen.ok().and_then(|seen| seen.clone()) {
        Some(snapshot) => snapshot,
        // The pleg task has ended: the agent is stopping.
        None => std::future::pending().await,
    }
}
