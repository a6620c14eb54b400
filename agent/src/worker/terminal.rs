//! Whether a pod terminates although its source still has it: by its phase, by its deadline, by eviction, or because its
//! volumes cannot be attached.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinSet;

use super::{PAST_DEADLINE, Worker};
use crate::clock::after;
use crate::pod_spec::admission::{ATTACHMENT_LIMIT, Rejection};
use crate::reporting::events::EventReason;
use crate::reporting::measures::Counted;
use crate::reporting::status::eviction::Eviction;

/// The minimum time limit for the end of an evicted pod.
const LEAST: Duration = Duration::from_secs(10);

impl Worker {
    /// The end of the pod's `activeDeadlineSeconds`, counted from its start time.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.pod.as_ref()?.spec().active_deadline_seconds?;
        let started = self.reported.last.as_ref()?.start_time.as_ref()?.0;
        started.checked_add(jiff::SignedDuration::from_secs(seconds)).ok()
    }

    /// Whether the pod's status has a terminal phase, so that nothing is started again (Kubernetes 1.36, pkg/kubelet/kubelet.go
    /// SyncPod).
    pub(super) fn has_terminal_phase(&self) -> bool {
        let last = self.reported.last.as_ref();
        last.and_then(|last| last.phase.as_deref())
            .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
    }

    /// Records that the agent evicts the pod.
    pub(super) fn evict(&mut self, eviction: Eviction) {
        if self.termination.eviction.is_none() {
            let message = eviction.message.trim_end().trim_end_matches('.');
            self.termination.cause = format!("{}: {message}", eviction.reason);
            if eviction.is_event {
                self.event(None, &EventReason::Evicted(eviction.clone()));
            }
            self.termination.grace = eviction.grace.or(self.termination.grace);
            self.termination.eviction = Some(eviction);
        }
    }

    /// Ends the pod because the node cannot attach these volumes (Kubernetes 1.36, pkg/kubelet/kubelet.go SyncPod).
    pub(super) fn reject_for_attachments(&mut self, volumes: &str) {
        let rejection = Rejection::of_attachments(volumes);
        self.shared.measures.count(Counted::Rejected(rejection.reason.clone()));
        self.event(None, &EventReason::Rejected(rejection.clone()));
        self.evict(Eviction::of_rejection(ATTACHMENT_LIMIT, &rejection.message));
    }

    /// Starts a task in `overdue` that records an event when an evicted pod exceeds its time limit: one and a half grace periods,
    /// and at least [`LEAST`]. Dropping `overdue` cancels it (Kubernetes 1.36, pkg/kubelet/pod_workers.go killPodNow).
    pub(super) fn watch_eviction(&self, overdue: &mut JoinSet<()>) {
        let (Some(_), Some(pod), true) =
            (&self.termination.eviction, &self.pod, overdue.is_empty())
        else {
            return;
        };
        let pod = pod.clone();
        let grace = self.termination.grace.unwrap_or(pod.grace_seconds());
        let grace = Duration::from_secs(grace.try_into().unwrap_or_default());
        let (clock, events) = (Arc::clone(&self.shared.clock), self.shared.events.clone());
        let end = after(clock.now(), LEAST.max(grace.saturating_add(grace / 2)));
        overdue.spawn(tasks::boxed(async move {
            clock.sleep_until(end).await;
            events.record(&pod, None, &EventReason::ExceededGracePeriod);
        }));
    }

    /// Records that the pod is past its deadline, if that ends it. A kubelet does so whenever it computes the pod's status until the
    /// pod has ended (Kubernetes 1.36, pkg/kubelet/active_deadline.go ShouldEvict).
    pub(super) fn note_deadline(&self) {
        if self.termination.cause == PAST_DEADLINE {
            self.event(None, &EventReason::DeadlineExceeded);
        }
    }

    /// Whether the pod's deadline has passed according to its status.
    pub(super) fn is_past_deadline(&self) -> bool {
        self.reported.last.as_ref().is_some_and(|last| {
            last.phase.as_deref() == Some("Failed")
                && last.reason.as_deref() == Some("DeadlineExceeded")
        })
    }
}
