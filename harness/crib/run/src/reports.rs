//! ◆ The agent's latest reports of all pods. Pure.

use agent::PodReport;
use api::pod::PodUid;
use cluster::controllers::{PodState, Pods};

/// The latest report of each pod.
pub(crate) use agent::Reports;

/// Whether the reason for waiting is a failed step that is retried: `FailedMount`, `ErrImagePull`, `CrashLoopBackOff` (reasons of
/// the kubelet of Kubernetes 1.36).
pub(crate) fn is_failure_reason(reason: &str) -> bool {
    !matches!(reason, "" | "ContainerCreating" | "PodInitializing" | "RestartingAllContainers")
}

/// Whether a container of the pod can never run, so that the pod cannot succeed.
pub(crate) fn is_refused(pod: &PodReport) -> bool {
    pod.containers.iter().any(|container| container.refused)
}

/// The reports as input of the controllers.
pub(crate) struct Reported<'r>(pub(crate) &'r Reports);

impl Pods for Reported<'_> {
    fn get(&self, uid: &PodUid) -> Option<PodState> {
        let report = self.0.get(uid)?;
        Some(PodState {
            status: report.status.clone(),
            is_finished: report.finished,
            is_removed: report.removed,
            is_refused: is_refused(report),
        })
    }
}
