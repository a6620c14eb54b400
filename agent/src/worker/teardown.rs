//! Terminates a pod: stops it, waits until no source has it, and removes it.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;

use super::phase::PhaseEvent;
use super::{FINISHED, PodUpdate, Worker, latest};
use crate::clock::after;
use crate::decide::plan::effects::{self, CompletedCall};
use crate::decide::plan::stop::{ORPHAN_GRACE, orphan};
use crate::decide::plan::terminate::effective_grace;
use crate::decide::plan::{self};
use crate::execute::kill::Killer;
use crate::execute::{self, PodStopped, hook_host, stop_pod};
use crate::observed::{ContainerState, Observed, ObservedContainer};
use crate::reporting::causes::Causes;
use crate::reporting::events::EventReason;
use crate::reporting::report::transitions::Stage;
use tasks::blocking;

/// The first delay before a failed removal is retried.
const RETRY_REMOVAL: Duration = Duration::from_millis(100);
/// The maximum delay before a failed removal is retried.
const RETRY_REMOVAL_MAX: Duration = Duration::from_secs(10);

impl Worker {
    /// Stops containers and sandboxes until none is running. Sandboxes that had ended before are stopped too, because their network
    /// must be released.
    pub(super) async fn terminate(&mut self) -> PhaseEvent {
        let mut overdue = JoinSet::new();
        let mut done = Vec::new();
        let mut has_stopped = false;
        let mut stops = Causes::default();
        self.shared.prober.stop_liveness_and_startup(self.uid());
        loop {
            self.take_termination_update();
            self.watch_eviction(&mut overdue);
            let snapshot = latest(&mut self.observation.snapshots, self.observation.since).await;
            let observed = self.observe(&snapshot);
            self.note_deadline();
            if stops.is_empty() || observed.anything_runs() {
                self.publish(&observed, Stage::Terminating);
            }
            if !observed.anything_runs() && (has_stopped || observed.sandboxes.is_empty()) {
                self.unprepare_claims().await;
                self.remove_volumes().await;
                self.remove_cgroup().await;
                // A later snapshot may not have these causes.
                if stops.is_empty() {
                    let cause = self.cause_of_end();
                    self.report(&observed, Stage::Terminated, Causes::pod(cause));
                } else {
                    let causes = snapshot.causes.and(stops);
                    self.report(&observed, Stage::Terminating, causes);
                }
                return PhaseEvent::Stopped;
            }
            if self.repeats(&std::mem::take(&mut done), &observed) {
                self.retry_termination(&observed).await;
                continue;
            }
            // Containers that run now and have ended at the next observation were stopped.
            let of_probes = self.probes.take_causes();
            if !of_probes.is_empty() && self.termination.cause == FINISHED {
                self.termination.cause = of_probes.of_pod();
            }
            stops.add(of_probes);
            let cause = self.cause_of_end();
            for (_, name) in observed.running() {
                if !stops.is_about(&name) {
                    stops.add(Causes::stopped(&name, &cause));
                }
            }
            self.report(&observed, Stage::Terminating, Causes::pod(cause));
            let pod = match &self.pod {
                Some(pod) => pod.clone(),
                None => orphan(&self.pod_ref, &observed),
            };
            let at_once = (*self.shared.kill_now.borrow()).then_some(0);
            let of_orphan = self.pod.is_none().then_some(ORPHAN_GRACE);
            let grace = at_once.or(self.termination.grace).or(of_orphan);
            let (stop, sandboxes) = plan::end_pod(&pod, &observed, grace);
            let killer =
                Killer { shared: Arc::clone(&self.shared), host: hook_host(&observed), pod };
            self.shared.cache.busy(self.uid());
            let stopping = stop_pod(&killer, &stop, &sandboxes);
            let stopped = self.reporting_meanwhile(stopping, &stops).await;
            for error in &stopped.errors {
                tracing::warn!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), %error, "failed to stop pod");
            }
            if !stopped.errors.is_empty() {
                // An orphan's event is about the pod that its containers name.
                let failed = EventReason::FailedKillPod(stopped.error());
                self.shared.events.record(&killer.pod, None, &failed);
                self.retry_termination(&observed).await;
                done.clear();
                continue;
            }
            has_stopped = true;
            done = stopped.done;
            self.observation.since = self
                .shared
                .cache
                .refresh(self.uid(), stops.clone().and(Causes::pod("pod was stopped")));
        }
    }

    /// Waits for `stopping`, and reports snapshots that arrive meanwhile.
    async fn reporting_meanwhile(
        &mut self,
        stopping: impl Future<Output = PodStopped>,
        stops: &Causes,
    ) -> PodStopped {
        tokio::pin!(stopping);
        loop {
            tokio::select! {
                stopped = &mut stopping => return stopped,
                Ok(()) = self.updates.changed() => {
                    self.take_termination_update();
                    if self.reported.published.known().is_none() {
                        // A kubelet does not probe a pod without a status (Kubernetes 1.36, pkg/kubelet/prober/worker.go doProbe).
                        self.shared.prober.remove(self.uid());
                    }
                    continue;
                }
                Ok(()) = self.observation.snapshots.changed() => {}
                () = self.probes.changed() => self.publish_probes(Stage::Terminating),
            }
            let seen = self.observation.snapshots.borrow_and_update().clone();
            if let Some(seen) = seen {
                let observed = self.observe(&seen);
                let causes = seen.causes.and(stops.clone());
                self.report(&observed, Stage::Terminating, causes);
            }
        }
    }

    fn cause_of_end(&self) -> String {
        self.termination.removed.clone().unwrap_or_else(|| self.termination.cause.clone())
    }

    /// Applies the latest update of a terminating pod: only its grace period, and whether a source still has it, are used. A
    /// shorter grace period does not end a running stop, as in a kubelet. A pod that terminates by itself, by its phase or its
    /// deadline, has the grace period of its spec, even 0, because its end was not requested (Kubernetes 1.36,
    /// pkg/kubelet/pod_workers.go completeSync).
    fn take_termination_update(&mut self) {
        let update = self.updates.borrow_and_update().clone();
        match update {
            PodUpdate::Evict(eviction) => self.evict(eviction),
            PodUpdate::Terminate { cause, last, forgotten } => {
                self.removed_from_source(cause, last);
                if forgotten != self.reported.forgotten {
                    self.reported.forgotten = forgotten;
                    self.reported.published.forget();
                }
            }
            PodUpdate::Run(pod, _) if pod.is_deleted() => self.pod = Some(pod),
            PodUpdate::Run(..) => return,
        }
        if let Some(pod) = &self.pod {
            self.termination.grace = Some(effective_grace(self.termination.grace, pod));
        }
    }

    /// Whether the last calls had no effect, so that repeating them immediately would have none either. Reports this.
    fn repeats(&mut self, done: &[CompletedCall], observed: &Observed) -> bool {
        let without_effect = effects::without_effect(done, observed);
        for call in &without_effect {
            tracing::warn!(
                pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name),
                container = call.container.as_deref(),
                error = %call.message,
                "call had no effect; will retry"
            );
        }
        if let Some(first) = without_effect.first() {
            self.event(None, &EventReason::FailedKillPod(first.message.clone()));
            let causes = Causes::pod(first.message.clone());
            self.report(observed, Stage::Terminating, causes);
        }
        !without_effect.is_empty()
    }

    /// Waits after an error before the pod is stopped again, unless the containers running in `observed` stop by themselves: as
    /// after any other error, or until the next housekeeping if no source has the pod (Kubernetes 1.36, pkg/kubelet/pod_workers.go
    /// SyncKnownPods). An update ends the wait.
    async fn retry_termination(&mut self, observed: &Observed) {
        let wait = match self.termination.removed {
            Some(_) => self.shared.config.housekeeping_period,
            None => self.next_retry(),
        };
        let clock = Arc::clone(&self.shared.clock);
        let retry_at = after(clock.now(), wait);
        let stopped = self
            .observation
            .snapshots
            .wait_for(|seen| seen.as_ref().is_some_and(|seen| !seen.observed.anything_runs()));
        tokio::select! {
            () = clock.sleep_until(retry_at) => {}
            Ok(_) = stopped, if observed.anything_runs() => {}
            Ok(()) = self.updates.changed() => {}
        }
        self.observation.since =
            self.shared.cache.refresh(self.uid(), Causes::pod("pod is stopped again"));
    }

    /// Reports the pod as terminated and waits until no source has it.
    pub(super) async fn await_removal(&mut self) -> PhaseEvent {
        self.shared.prober.remove(self.uid());
        self.shared.managers.release(self.uid());
        if let Some(pod) = &self.pod {
            self.shared.claims.release(pod, &self.dirs.pod);
        }
        let seen = self.observation.snapshots.borrow_and_update().clone();
        if let Some(snapshot) = seen {
            let observed = self.observe(&snapshot);
            self.note_deadline();
            self.publish(&observed, Stage::Terminated);
            self.report(&observed, Stage::Terminated, snapshot.causes);
        }
        loop {
            if self.termination.removed.is_some() || !self.take_termination() {
                return PhaseEvent::Deleted;
            }
            if self.updates.changed().await.is_err() {
                // The agent is stopping; its successor removes the rest.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Lets drivers unprepare the pod's ResourceClaims, which other pods may get once its last status is published (Kubernetes
    /// 1.36, pkg/kubelet/kubelet.go SyncTerminatingPod).
    async fn unprepare_claims(&mut self) {
        let Some(claims) = self.shared.claim_manager.clone() else {
            return;
        };
        for failures in 0.. {
            match claims.unprepare(self.uid()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = %self.uid(), error, "failed to unprepare ResourceClaims; will retry");
                    self.pause(failures).await;
                }
            }
        }
    }

    /// Removes the pod's volumes, which its last status reports as removed (Kubernetes 1.36, pkg/kubelet/kubelet.go
    /// SyncTerminatedPod).
    async fn remove_volumes(&mut self) {
        for failures in 0.. {
            match execute::volumes::remove(&self.shared, &self.dirs, self.uid()).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(pod = %self.uid(), error = &error as &dyn std::error::Error, "failed to remove volumes");
                    self.pause(failures).await;
                }
            }
        }
    }

    /// Kills the processes in the pod's cgroup and removes it, if the agent manages pod cgroups.
    async fn remove_cgroup(&mut self) {
        let Some(cgroups) = self.shared.cgroups.clone() else {
            return;
        };
        let mut is_logged = false;
        for failures in 0.. {
            match cgroups.destroy(self.uid()).await {
                Ok(()) => return,
                Err(error) => {
                    // The cgroup may never become empty: one warning is enough.
                    if is_logged {
                        tracing::debug!(pod = %self.uid(), %error, "failed to remove the cgroup of a pod again");
                    } else if error.kind() != io::ErrorKind::ResourceBusy || failures > 0 {
                        tracing::warn!(pod = %self.uid(), %error, "failed to remove the cgroup of a pod; will retry");
                        is_logged = true;
                    }
                    self.pause(failures).await;
                }
            }
        }
    }

    /// Applies an update of a terminated pod, which ignores all but terminations. Returns whether a source still has it.
    fn take_termination(&mut self) -> bool {
        let update = self.updates.borrow_and_update().clone();
        if let PodUpdate::Terminate { cause, last, .. } = update {
            self.removed_from_source(cause, last);
        }
        self.termination.removed.is_none()
    }

    /// Removes containers and directories until none is left, and sandboxes and logs too unless garbage collection removes them, so
    /// that a pod that is re-created before continues its attempt numbers.
    pub(super) async fn remove(&mut self) -> PhaseEvent {
        let mut failures = 0;
        let mut done = Vec::new();
        // The remaining objects are known; but their absence needs a new observation.
        let seen = self.observation.snapshots.borrow().clone();
        let is_empty = seen.is_none_or(|seen| seen.observed.is_empty());
        if is_empty {
            let causes = Causes::pod("pod removal started");
            self.observation.since = self.shared.cache.refresh(self.uid(), causes);
        }
        loop {
            let observed =
                latest(&mut self.observation.snapshots, self.observation.since).await.observed;
            let cri = Arc::clone(&self.shared.cri);
            if self.repeats(&std::mem::take(&mut done), &observed) {
                self.retry_removal().await;
            }
            let mut failed = false;
            let at_once = self.shared.config.remove_at_once;
            let sandboxes = match at_once {
                true => observed.sandboxes.as_slice(),
                false => &[],
            };
            self.shared.cache.busy(self.uid());
            for container in &observed.containers {
                let is_unknown = container.state == ContainerState::Unknown;
                let of = (&container.id, container.name.as_str());
                if self.noted(self.remove_dead(&observed, of, is_unknown).await) {
                    failed = true;
                } else {
                    self.remove_log(container).await;
                    done.push(CompletedCall::Remove {
                        name: container.name.clone(),
                        id: container.id.clone(),
                    });
                }
            }
            for sandbox in sandboxes {
                if self.noted(cri.stop_sandbox(&sandbox.id).await)
                    || self.noted(cri.remove_sandbox(&sandbox.id).await)
                {
                    failed = true;
                } else {
                    done.push(CompletedCall::RemoveSandbox(sandbox.id.clone()));
                }
            }
            if observed.containers.is_empty() && sandboxes.is_empty() {
                let logs = self.shared.config.remove_logs && at_once;
                let dirs = self.dirs.clone();
                let trash = Arc::clone(&self.shared.trash);
                let machine = Arc::clone(&self.shared.machine);
                match blocking(move || dirs.remove(machine.as_ref(), &trash, logs)).await {
                    Ok(()) => {
                        self.report_removed();
                        return PhaseEvent::Removed;
                    }
                    Err(error) => {
                        tracing::warn!(pod = %self.uid(), error = &error as &dyn std::error::Error, "failed to remove pod directories");
                        failed = true;
                    }
                }
            }
            if failed {
                self.pause(failures).await;
                failures += 1;
            }
            self.observation.since =
                self.shared.cache.refresh(self.uid(), Causes::pod("pod was removed"));
        }
    }

    /// Removes the log of a removed container.
    async fn remove_log(&self, container: &ObservedContainer) {
        if !self.shared.config.remove_logs {
            return;
        }
        if let Some(log) = container.log_path.clone() {
            let dirs = self.dirs.clone();
            blocking(move || dirs.remove_log(&log)).await;
            self.remove_log_link(&container.id, &container.name);
        }
    }

    async fn retry_removal(&mut self) {
        let wait = self.next_retry();
        let clock = &self.shared.clock;
        clock.sleep_until(after(clock.now(), wait)).await;
    }

    async fn pause(&self, failures: u32) {
        let wait =
            RETRY_REMOVAL.saturating_mul(2_u32.saturating_pow(failures)).min(RETRY_REMOVAL_MAX);
        let clock = &self.shared.clock;
        clock.sleep_until(after(clock.now(), wait)).await;
    }
}
