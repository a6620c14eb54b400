//! Makes room for critical pods: evicts the pods that give way to one, which starts when they have ended.

use api::pod::{Pod, PodUid};

use super::SyncLoop;
use crate::pod_spec::admission::{Rejection, admit_or_preempt};
use crate::reporting::status::eviction::Eviction;
use crate::worker::{PodUpdate, rejected};

/// When the node takes a pod.
pub(super) enum Admission {
    /// There is room.
    Now,
    /// When evicted pods have ended. These are still to be evicted.
    After(Vec<PodUid>),
}

impl SyncLoop {
    /// Whether the node takes a pod beside those that it has taken and that have not ended.
    pub(super) fn admit(&mut self, pod: &Pod) -> Result<Admission, Rejection> {
        let shared = &self.shared;
        if let Some(rejection) = rejected::recorded(&shared.config.root_dir, pod.uid()) {
            return Err(rejection);
        }
        self.entries.count(&self.reports.borrow());
        let taken = self.entries.taken();
        let offer = shared.offer_now();
        if admit_or_preempt(pod, taken, &offer)?.is_empty() {
            return Ok(Admission::Now);
        }
        // The room of pods that are evicted already is as good as free.
        let mut kept = taken.clone();
        for uid in self.entries.evicted() {
            kept.remove(uid);
        }
        admit_or_preempt(pod, &kept, &offer).map(Admission::After)
    }

    /// Evicts the pods that give way to `pod`, which is admitted again when a pod has ended.
    pub(super) fn make_room(&mut self, pod: &Pod, victims: &[PodUid]) {
        for uid in victims {
            let Some(entry) = self.entries.get_mut(uid) else {
                continue;
            };
            tracing::info!(pod = %uid, critical_pod = %pod.full_name(), "evicting pod to make room for critical pod");
            entry.tell(PodUpdate::Evict(Eviction::PREEMPTION));
            entry.evicted = true;
        }
        self.making_room.insert(pod.uid().clone());
    }

    /// Admits pods again that wait for others to end.
    pub(super) fn room_may_be_free(&mut self) {
        let desired = &self.desired;
        self.making_room.retain(|uid| desired.iter().any(|pod| pod.uid() == uid));
        self.reconcile_workers();
    }
}
