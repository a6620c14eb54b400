//! The work item of a worker, and the sync loop's updates.

use std::sync::Arc;

use api::pod::Pod;
use k8s_openapi::api::core::v1::PodStatus;

use crate::cri::PodRef;
use crate::decide::resize::ResizeState;
use crate::reporting::status::eviction::Eviction;

/// The desired state of a worker's pod; only the latest is applied.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PodUpdate {
    /// Run this pod, which has its allocated resources.
    Run(Pod, ResizeState),
    /// Terminate the pod, which its source still has.
    Evict(Eviction),
    /// Terminate the pod and remove the rest.
    Terminate {
        /// The cause.
        cause: String,
        /// The last version of the pod in its source, if any: it may specify how the pod ends.
        last: Option<Pod>,
        /// How often its status was removed since, which a kubelet's housekeeping does (Kubernetes 1.36,
        /// pkg/kubelet/status/status_manager.go RemoveOrphanedStatuses).
        forgotten: u64,
    },
}

impl PodUpdate {
    /// Terminate the pod and remove the rest.
    pub(crate) fn terminate(cause: &str, last: Option<Pod>) -> Self {
        Self::Terminate { cause: cause.to_owned(), last, forgotten: 0 }
    }

    /// Whether the pod must end: no source has it any more, or it is deleted in the API server.
    pub(super) fn ends(&self) -> bool {
        match self {
            Self::Run(pod, _) => pod.is_deleted(),
            Self::Evict(_) | Self::Terminate { .. } => true,
        }
    }
}

/// The work item of a worker.
#[derive(Clone, Debug)]
pub(crate) enum WorkItem {
    /// A pod of a source, and its status if an earlier worker of it has just ended.
    Pod(Pod, Option<Arc<PodStatus>>),
    /// A pod of the runtime that no source has.
    Orphan(PodRef),
}

impl WorkItem {
    /// Identifies the pod.
    pub(crate) fn pod_ref(&self) -> PodRef {
        match self {
            Self::Pod(pod, _) => PodRef {
                uid: pod.uid().clone(),
                namespace: pod.namespace().to_owned(),
                name: pod.name().to_owned(),
                agent: None,
            },
            Self::Orphan(pod_ref) => pod_ref.clone(),
        }
    }
}
