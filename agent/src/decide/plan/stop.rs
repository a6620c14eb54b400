//! ◆ How a plan stops containers: which of them together, with which message, and which sandboxes afterwards.

use api::pod::Pod;
use k8s_openapi::api::core::v1::{Container, Pod as ApiPod, PodSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::cri::PodRef;
use crate::decide::plan::terminate::{self, KillPlan};
use crate::decide::plan::{Kill, KillReason};
use crate::observed::{ContainerId, Observed, ObservedContainer, SandboxId};

/// The grace period, in seconds, of orphaned containers (Kubernetes 1.36, kubelet, SyncTerminatingRuntimePod).
pub(crate) const ORPHAN_GRACE: i64 = 1;

/// Containers to stop together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The order and grace periods.
    pub plan: KillPlan,
    /// The message of each container's event; empty if the pod ends.
    pub message: String,
}

/// Stops the whole pod: all its running containers, then all its sandboxes. `grace` is the grace period of the pod's
/// termination, if the pod is terminated.
pub fn end_pod(pod: &Pod, observed: &Observed, grace: Option<i64>) -> (Stop, Vec<SandboxId>) {
    let plan = terminate::end_pod(pod, &observed.running(), grace);
    let stop = Stop { plan, message: String::new() };
    (stop, sandboxes(observed))
}

/// A pod that no source has, from what is known: its names and its running containers, which then count neither as sidecars nor as
/// having hooks (Kubernetes 1.36, pkg/kubelet/container/runtime.go ToAPIPod).
pub(crate) fn orphan(pod_ref: &PodRef, observed: &Observed) -> Pod {
    let running = observed.containers.iter().filter(|container| container.state.is_running());
    let container = |seen: &ObservedContainer| Container {
        name: seen.name.clone(),
        image: Some(seen.image.clone()),
        ..Container::default()
    };
    Pod::new(ApiPod {
        metadata: ObjectMeta {
            uid: Some(pod_ref.uid.to_string()),
            namespace: Some(pod_ref.namespace.clone()),
            name: Some(pod_ref.name.clone()),
            ..ObjectMeta::default()
        },
        spec: Some(PodSpec { containers: running.map(container).collect(), ..PodSpec::default() }),
        ..ApiPod::default()
    })
}

/// The sandboxes that are stopped when a pod ends, including ended ones, whose network is still to be released (Kubernetes 1.36,
/// pkg/kubelet/container/helpers.go ConvertPodStatusToRunningPod).
fn sandboxes(observed: &Observed) -> Vec<SandboxId> {
    let all = observed.sandboxes.iter();
    all.map(|sandbox| sandbox.id.clone()).collect()
}

/// Stops a container whose postStart hook failed.
pub(crate) fn after_failed_post_start(pod: &Pod, id: &ContainerId, name: &str) -> Stop {
    let reason = KillReason::FailedPostStartHook;
    Stop { plan: terminate::stop_one(pod, id, name, reason, None), message: reason.to_string() }
}

/// Stops a dead container in an unknown state before its removal: it may be running (Kubernetes 1.36,
/// pkg/kubelet/kuberuntime/kuberuntime_gc.go removeOldestN).
pub(crate) fn before_removal(pod: &Pod, id: &ContainerId, name: &str) -> Stop {
    Stop {
        plan: terminate::stop_one(pod, id, name, KillReason::Unknown, None),
        message: "Container is in unknown state, try killing it before removal".to_owned(),
    }
}

/// The stops of a plan: of the whole pod, or else of single containers, one after the other.
pub(super) fn stops(
    pod: &Pod,
    observed: &Observed,
    kill_pod: bool,
    kills: &[Kill],
) -> (Vec<Stop>, Vec<SandboxId>) {
    if kill_pod {
        let (stop, sandboxes) = end_pod(pod, observed, None);
        return (vec![stop], sandboxes);
    }
    let stop = |kill: &Kill| Stop {
        plan: terminate::stop_one(pod, &kill.id, &kill.name, kill.reason, None),
        message: kill.message.clone(),
    };
    (kills.iter().map(stop).collect(), Vec::new())
}
