//! Whether a pod has ended although its source still has it: by its phase, by its deadline, or because it is evicted.

use jiff::Timestamp;

use super::Worker;
use crate::events::Happening;
use crate::status::eviction::Eviction;

impl Worker {
    /// When the pod's `activeDeadlineSeconds` are over, counted from its start time.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        let seconds = self.pod.as_ref()?.spec().active_deadline_seconds?;
        let started = self.last.as_ref()?.start_time.as_ref()?.0;
        started
            .checked_add(jiff::SignedDuration::from_secs(seconds))
            .ok()
    }

    /// Whether the pod's status says that nothing will be started again (Kubernetes 1.36, pkg/kubelet/kubelet.go SyncPod).
    pub(super) fn has_terminal_phase(&self) -> bool {
        let last = self.last.as_ref();
        last.and_then(|last| last.phase.as_deref())
            .is_some_and(|phase| matches!(phase, "Succeeded" | "Failed"))
    }

    /// Notes that the agent evicts the pod.
    pub(super) fn evict(&mut self, eviction: Eviction) {
        if self.eviction.is_none() {
            let message = eviction.message.trim_end().trim_end_matches('.');
            self.end_cause = format!("{}: {message}", eviction.reason);
            self.event(None, &Happening::Evicted(eviction.clone()));
            self.eviction = Some(eviction);
        }
    }

    /// Whether the pod's status says that its deadline is over.
    pub(super) fn is_past_deadline(&self) -> bool {
        self.last.as_ref().is_some_and(|last| {
            last.phase.as_deref() == Some("Failed")
                && last.reason.as_deref() == Some("DeadlineExceeded")
        })
    }
}
