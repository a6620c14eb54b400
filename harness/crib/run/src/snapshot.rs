//! ◆ The view of a run's pods: each with kubectl's columns, and the number of removed pods. Pure.

use std::sync::Arc;

use api::pod::PodUid;
use crib_base::columns::fields::{text, time};
use crib_base::columns::pod_summary::PodSummary;
use jiff::Timestamp;
use serde_json::Value;

/// The view.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunSnapshot {
    /// The pods, including terminating and stopped ones.
    pub(crate) pods: Vec<Arc<PodSnapshot>>,
    /// The number of pods that changed manifests or controllers removed during the run.
    pub(crate) removed: usize,
    /// The CronJob that starts the next Job, and the time.
    pub(crate) next_job: Option<(String, Timestamp)>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodSnapshot {
    pub(crate) uid: PodUid,
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) phase: String,
    /// Why the pod failed.
    pub(crate) reason: String,
    pub(crate) summary: PodSummary,
    pub(crate) created: Option<Timestamp>,
    pub(crate) end: PodEnd,
}

/// Whether a pod was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodEnd {
    /// It was not deleted, or had ended before.
    None,
    /// It is terminating, until the end of its grace period.
    Ending(Timestamp),
    /// It was deleted before it had ended, and is removed.
    Stopped,
}

impl PodSnapshot {
    /// A pod as it is in the store.
    pub(crate) fn of(pod: &Value) -> Self {
        let phase = text(pod, "/status/phase");
        let has_ended = matches!(phase, "Succeeded" | "Failed");
        let end = time(pod, "/metadata/deletionTimestamp").filter(|_| !has_ended);
        Self {
            uid: PodUid::new(text(pod, "/metadata/uid")),
            namespace: text(pod, "/metadata/namespace").to_owned(),
            name: text(pod, "/metadata/name").to_owned(),
            phase: phase.to_owned(),
            reason: text(pod, "/status/reason").to_owned(),
            summary: PodSummary::of(pod),
            created: time(pod, "/metadata/creationTimestamp"),
            end: end.map_or(PodEnd::None, PodEnd::Ending),
        }
    }

    /// Whether the pod has ended.
    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.phase.as_str(), "Succeeded" | "Failed") || self.end == PodEnd::Stopped
    }

    /// `namespace/name`.
    pub(crate) fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }

    /// STATUS as in `kubectl get pods`, or Stopped.
    pub(crate) fn status(&self) -> &str {
        match self.end {
            PodEnd::Stopped => "Stopped",
            PodEnd::None | PodEnd::Ending(_) => &self.summary.status,
        }
    }
}
