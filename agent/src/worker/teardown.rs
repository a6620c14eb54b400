//! Terminates a pod: stops it, waits until no source has it, and removes it.

use std::sync::Arc;
use std::time::Duration;

use super::phase::PhaseEvent;
use super::{PodUpdate, Worker, latest};
use crate::blocking::blocking;
use crate::causes::Causes;
use crate::clock::after;
use crate::execute::{running, stop_pod};
use crate::observed::Observed;
use crate::plan::terminate::{KillPlan, StopTarget, end_pod};
use crate::report::transitions::Stage;

/// The grace period, in seconds, of orphaned containers (Kubernetes 1.36, kubelet, SyncTerminatingRuntimePod).
const ORPHAN_GRACE: i64 = 1;
/// The first delay before a failed removal is retried.
const RETRY_REMOVAL: Duration = Duration::from_millis(100);
/// The longest delay before a failed removal is retried.
const RETRY_REMOVAL_MAX: Duration = Duration::from_secs(10);

impl Worker {
    /// Stops containers and sandboxes until none is left running.
    pub(super) async fn terminate(&mut self) -> PhaseEvent {
        let cause = self
            .termination_cause
            .clone()
            .unwrap_or_else(|| "all containers have finished".to_owned());
        let mut failures = 0;
        loop {
            let snapshot = latest(&mut self.snapshots, self.min_generation).await;
            let observed = self.with_messages(&snapshot).await;
            if !observed.anything_runs() {
                return PhaseEvent::Stopped;
            }
            // What runs now and has ended when it is looked at again was stopped.
            let mut stops = Causes::default();
            for (_, name) in running(&observed) {
                stops.add(Causes::stopped(&name, &cause));
            }
            self.report(&observed, Stage::Terminating, Causes::pod(cause.clone()));
            let plan = self.kill_plan(&observed);
            let errors = {
                let shared = Arc::clone(&self.shared);
                let stopping = stop_pod(&shared, plan, &observed);
                tokio::pin!(stopping);
                loop {
                    tokio::select! {
                        errors = &mut stopping => break errors,
                        Ok(()) = self.snapshots.changed() => {
                            let seen = self.snapshots.borrow_and_update().clone();
                            if let Some(seen) = seen {
                                let observed = self.with_messages(&seen).await;
                                let causes = seen.causes.and(stops.clone());
                                self.report(&observed, Stage::Terminating, causes);
                            }
                        }
                    }
                }
            };
            for error in &errors {
                tracing::warn!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), %error, "failed to stop pod");
            }
            if errors.is_empty() {
                failures = 0;
            } else {
                self.pause(failures).await;
                failures += 1;
            }
            self.min_generation = self
                .shared
                .cache
                .refresh(self.uid(), stops.and(Causes::pod("pod was stopped")));
        }
    }

    fn kill_plan(&self, observed: &Observed) -> KillPlan {
        let running = running(observed);
        let at_once = (*self.shared.kill_now.borrow()).then_some(0);
        match &self.pod {
            Some(pod) => end_pod(pod, &running, at_once),
            None => {
                let target = |(id, name)| StopTarget {
                    id,
                    name,
                    grace: at_once.unwrap_or(ORPHAN_GRACE),
                    pre_stop: false,
                    waits_for: Vec::new(),
                };
                KillPlan {
                    targets: running.into_iter().map(target).collect(),
                }
            }
        }
    }

    /// Reports the pod as terminated and waits until no source has it.
    pub(super) async fn await_removal(&mut self) -> PhaseEvent {
        let seen = self.snapshots.borrow_and_update().clone();
        if let Some(snapshot) = seen {
            let observed = self.with_messages(&snapshot).await;
            self.report(&observed, Stage::Terminated, snapshot.causes);
        }
        loop {
            if self.termination_cause.is_some() || !self.take_termination() {
                return PhaseEvent::Deleted;
            }
            if self.updates.changed().await.is_err() {
                // The agent is stopping; its successor removes the rest.
                std::future::pending::<()>().await;
            }
        }
    }

    /// A terminated pod ignores other updates. Returns whether a source still has it.
    fn take_termination(&mut self) -> bool {
        if let PodUpdate::Terminate(cause) = &*self.updates.borrow_and_update() {
            self.termination_cause = Some(cause.clone());
        }
        self.termination_cause.is_none()
    }

    /// Removes containers, sandboxes and directories until none is left.
    pub(super) async fn remove(&mut self) -> PhaseEvent {
        let mut failures = 0;
        self.min_generation = self
            .shared
            .cache
            .refresh(self.uid(), Causes::pod("pod removal started"));
        loop {
            let observed = latest(&mut self.snapshots, self.min_generation)
                .await
                .observed;
            let cri = Arc::clone(&self.shared.cri);
            let mut failed = false;
            for container in &observed.containers {
                failed |= self.noted(cri.remove_container(&container.id).await);
            }
            for sandbox in &observed.sandboxes {
                failed |= self.noted(cri.stop_sandbox(&sandbox.id).await)
                    || self.noted(cri.remove_sandbox(&sandbox.id).await);
            }
            if observed.containers.is_empty() && observed.sandboxes.is_empty() {
                let (dirs, logs) = (self.dirs.clone(), self.shared.config.remove_logs);
                let trash = Arc::clone(&self.shared.trash);
                match blocking(move || dirs.remove(&trash, logs)).await {
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
            self.min_generation = self
                .shared
                .cache
                .refresh(self.uid(), Causes::pod("pod was removed"));
        }
    }

    async fn pause(&self, failures: u32) {
        let wait = RETRY_REMOVAL
            .saturating_mul(2_u32.saturating_pow(failures))
            .min(RETRY_REMOVAL_MAX);
        let clock = &self.shared.clock;
        clock.sleep_until(after(clock.now(), wait)).await;
    }
}
