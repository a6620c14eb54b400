//! Whose status is remembered without a worker: a kubelet forgets that of a removed pod when it keeps house, and a pod that
//! comes back before goes on from it.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go RemoveOrphanedStatuses.

use std::sync::Arc;

use api::pod::Pod;
use k8s_openapi::api::core::v1::PodStatus;

use super::{SyncLoop, has_ended};

impl SyncLoop {
    /// Forgets the statuses of removed pods. A worker that is still ending its pod publishes another one when it has.
    pub(super) fn forget_statuses(&mut self) {
        let reports = self.reports.borrow();
        self.removed.retain(|uid| {
            if self.desired.iter().any(|pod| pod.uid() == uid) {
                return true;
            }
            let Some(entry) = self.entries.get(uid) else {
                return false;
            };
            entry.forget_status();
            !has_ended(&reports, uid)
        });
    }

    /// The status with which a pod's new worker begins: that of an earlier one, if it is not forgotten.
    pub(super) fn remembered_status(&self, pod: &Pod) -> Option<Arc<PodStatus>> {
        if !self.removed.contains(pod.uid()) {
            return None;
        }
        let reports = self.reports.borrow();
        let status = Arc::clone(&reports.get(pod.uid())?.published);
        status.phase.is_some().then_some(status)
    }
}
