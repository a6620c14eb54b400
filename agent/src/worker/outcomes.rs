//! Follows the execution of a plan: successful calls, failures, and calls without effect.

use std::time::Duration;

use super::Worker;
use super::start_errors::{CLAIMS_FAILED, jittered};
use crate::clock::after;
use crate::decide::plan::HoldKey;
use crate::decide::plan::effects::{self, CompletedCall, IneffectiveCall};
use crate::execute::{Failure, Progress};
use crate::images::PULL_BACKOFF;
use crate::observed::{ContainerId, Observed};
use crate::reporting::causes::Causes;
use crate::reporting::report::ContainerPhase;

/// The changes that the next snapshot must show.
#[derive(Debug, Default)]
pub(super) struct Expected {
    /// The calls that succeeded.
    done: Vec<CompletedCall>,
    /// Containers that were created but failed to start or to stay. If one has exited, its exit counts for the crash back-off,
    /// which replaces the hold of its start.
    failed_attempts: Vec<(ContainerId, HoldKey)>,
}

impl Expected {
    pub(super) fn add(&mut self, done: CompletedCall) {
        self.done.push(done);
    }
}

impl Worker {
    /// Handles a message of an execution.
    pub(super) fn record_progress(&mut self, progress: Progress) {
        let now = self.shared.clock.now();
        self.start_errors.record(&progress);
        match progress {
            Progress::Starting(start) => {
                self.history.holds.release(&HoldKey::Pod);
                self.history.started(&start, now);
                let has_hook = self
                    .pod
                    .as_ref()
                    .and_then(|pod| pod.container(&start.name)?.1.lifecycle.as_ref())
                    .is_some_and(|lifecycle| lifecycle.post_start.is_some());
                if has_hook {
                    self.hooks.pending.insert(start.name);
                }
            }
            Progress::Pulled(name, took) => self.timings.entry(&name).pull = Some(took),
            Progress::Created(name, took) => self.timings.entry(&name).create = Some(took),
            Progress::Started(name, took) => self.timings.entry(&name).start = Some(took),
            Progress::HookEnded(name) => {
                self.hooks.pending.remove(&name);
                self.report_again(Causes::started(&name, "its postStart hook has ended"));
            }
            Progress::HookFailed(name, message) => {
                let why = format!("PostStartHook failed: {message}");
                self.hooks.failed.add(Causes::stopped(&name, &why));
            }
            Progress::Done(done) => {
                if let CompletedCall::Start { backoff_key, .. } = &done {
                    let key = HoldKey::Start(backoff_key.clone());
                    self.history.holds.release(&key);
                }
                if matches!(done, CompletedCall::RunSandbox(_)) {
                    self.publish_sandbox_ready();
                }
                self.observation.expected.add(done);
            }
            Progress::Mounted => self.volumes.mounted(),
            Progress::MountFailed(failure) => {
                let until = self.mount_failed(&failure, now);
                self.failed(Failure {
                    key: HoldKey::Pod,
                    container: None,
                    attempt: None,
                    reason: "FailedMount".to_owned(),
                    message: failure.message,
                    until: Some(until),
                    refused: failure.refused,
                });
            }
            Progress::ClaimsFailed(message) => {
                // Not an error of a sync in a kubelet: the next sync is a regular one, or follows an event.
                let until = after(now, self.next_resync());
                self.failed(Failure {
                    key: HoldKey::Pod,
                    container: None,
                    attempt: None,
                    reason: CLAIMS_FAILED.to_owned(),
                    message,
                    until: Some(until),
                    refused: false,
                });
            }
            Progress::Failed(failure) => self.failed(failure),
            Progress::ResizeFailed(message) => self.resize_failed(message),
        }
    }

    fn failed(&mut self, failure: Failure) {
        match failure.until {
            // Each sync until the back-off ends finds it again, and records it as an event (Kubernetes 1.36,
            // pkg/kubelet/pod_workers.go completeWork: an image's back-off does not delay the next sync).
            Some(end) if failure.reason == PULL_BACKOFF => {
                let until = end.min(after(self.shared.clock.now(), self.next_retry()));
                self.history.holds.defer_until_event(failure.key.clone(), until);
            }
            Some(until) => self.history.holds.defer(failure.key.clone(), until),
            None if matches!(failure.key, HoldKey::Start(_)) => {
                let until = after(self.shared.clock.now(), self.next_retry());
                let holds = &mut self.history.holds;
                holds.defer_until_event(failure.key.clone(), until);
            }
            None => self.defer(failure.key.clone()),
        }
        // A kubelet's next sync follows an event or a retry.
        self.reported.published.not_due();
        if let Some(attempt) = failure.attempt {
            self.observation.expected.failed_attempts.push((attempt, failure.key));
        }
        tracing::warn!(
            pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name),
            container = failure.container.as_deref(),
            reason = %failure.reason,
            error = %failure.message,
            "action failed; will retry"
        );
        let causes = match &failure.container {
            Some(name) => {
                self.hooks.pending.remove(name);
                Causes::container(name, ContainerPhase::Waiting, failure.message)
            }
            None => Causes::pod(failure.message),
        };
        self.report_again(causes);
    }

    /// Defers an action by a kubelet's delay after an error.
    pub(super) fn defer(&mut self, key: HoldKey) {
        let wait = self.next_retry();
        let until = after(self.shared.clock.now(), wait);
        self.history.holds.defer(key, until);
    }

    /// The delay after an error, with a new jitter each time.
    pub(super) fn next_retry(&mut self) -> Duration {
        self.seeds.failures += 1;
        let wait = self.shared.config.retry_after_error;
        jittered(wait, self.pod_ref.uid.as_str(), self.seeds.failures)
    }

    /// Compares the successful calls with the state observed afterwards.
    pub(super) fn check_effects(&mut self, observed: &Observed) {
        let expected = std::mem::take(&mut self.observation.expected);
        for (id, key) in expected.failed_attempts {
            let mut attempts = observed.containers.iter();
            if attempts.any(|seen| seen.id == id && seen.state.exit().is_some()) {
                self.history.holds.release(&key);
            }
        }
        for without_effect in effects::without_effect(&expected.done, observed) {
            let IneffectiveCall { key, container, reason, message } = without_effect;
            // Not even an event ends the hold: the call may never have an effect.
            let until = after(self.shared.clock.now(), self.next_retry());
            self.record_progress(Progress::Failed(Failure {
                key,
                container,
                attempt: None,
                reason: reason.to_owned(),
                message,
                until: Some(until),
                refused: false,
            }));
        }
    }
}
