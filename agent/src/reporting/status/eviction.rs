//! ◆ The status of a pod that the agent evicts.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/preemption/preemption.go, pkg/kubelet/eviction/eviction_manager.go.

use std::borrow::Cow;
use std::collections::BTreeMap;

use api::pod::Pod;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};

use crate::local_node::eviction::message::EvictionMessage;
use crate::reporting::status::conditions::DISRUPTION_TARGET;

/// The grace period of a pod that is evicted immediately, in seconds (immediateEvictionGracePeriodSeconds).
pub(crate) const AT_ONCE: i64 = 1;

/// Why a pod is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Eviction {
    /// The reason of the pod's status, and of its event.
    pub(crate) reason: &'static str,
    /// The message of both.
    pub(crate) message: Cow<'static, str>,
    /// The message of its condition; `None`: it gets no condition.
    condition: Option<Cow<'static, str>>,
    /// The annotations of its event.
    pub(crate) annotations: BTreeMap<String, String>,
    /// The grace period of its termination, in seconds; `None`: the pod's own.
    pub(crate) grace: Option<i64>,
    /// Whether the eviction is recorded as an event.
    pub(crate) is_event: bool,
}

impl Eviction {
    /// A critical pod needs the pod's resources.
    pub(crate) const PREEMPTION: Self = Self {
        reason: "Preempting",
        message: Cow::Borrowed("Preempted in order to admit critical pod"),
        condition: Some(Cow::Borrowed(
            "Pod was preempted by Kubelet to accommodate a critical pod.",
        )),
        annotations: BTreeMap::new(),
        grace: None,
        is_event: true,
    };

    /// The pod exceeds its local storage, with this message.
    pub(crate) fn of_local_storage(message: String) -> Self {
        Self {
            reason: "Evicted",
            message: Cow::Owned(message),
            condition: None,
            annotations: BTreeMap::new(),
            grace: Some(AT_ONCE),
            is_event: true,
        }
    }

    /// The machine shuts down.
    ///
    /// Source: Kubernetes 1.36, pkg/kubelet/nodeshutdown/nodeshutdown_manager.go.
    pub(crate) fn of_shutdown(grace: i64) -> Self {
        let message = Cow::Borrowed("Pod was terminated in response to imminent node shutdown.");
        Self {
            reason: "Terminated",
            condition: Some(message.clone()),
            message,
            annotations: BTreeMap::new(),
            grace: Some(grace),
            is_event: false,
        }
    }

    /// The node is under pressure, with this message.
    pub(crate) fn of_pressure(eviction_message: EvictionMessage, grace: Option<i64>) -> Self {
        Self {
            reason: "Evicted",
            condition: Some(Cow::Owned(eviction_message.message.clone())),
            message: Cow::Owned(eviction_message.message),
            annotations: eviction_message.annotations,
            grace,
            is_event: true,
        }
    }

    /// The node rejects the pod although it has admitted it, with this reason and message.
    pub(crate) fn of_rejection(reason: &'static str, message: &str) -> Self {
        Self {
            reason,
            message: Cow::Owned(format!("Pod was rejected: {message}")),
            condition: None,
            annotations: BTreeMap::new(),
            grace: None,
            is_event: false,
        }
    }

    /// Records the eviction in the pod's status. The phase of a pod that has ended is not Failed if all its containers succeeded.
    pub(crate) fn record(&self, pod: &Pod, has_ended: bool, status: &mut PodStatus) {
        if !has_ended || status.phase.as_deref() != Some("Succeeded") {
            status.phase = Some("Failed".to_owned());
            status.reason = Some(self.reason.to_owned());
            status.message = Some(self.message.clone().into_owned());
        }
        let Some(message) = &self.condition else {
            return;
        };
        let condition = PodCondition {
            type_: DISRUPTION_TARGET.to_owned(),
            status: "True".to_owned(),
            reason: Some("TerminationByKubelet".to_owned()),
            message: Some(message.clone().into_owned()),
            observed_generation: pod.api().metadata.generation,
            ..PodCondition::default()
        };
        let conditions = status.conditions.get_or_insert_default();
        conditions.retain(|known| known.type_ != DISRUPTION_TARGET);
        conditions.push(condition);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;

    #[test]
    fn evicted_pod_has_failed_phase_and_reason() {
        let pod = fixtures::pod(json!({"metadata": {"generation": 3}, "spec": {"containers": []}}));
        let conditions = json!([
            {"type": "DisruptionTarget", "status": "False"},
            {"type": "Ready", "status": "True"},
        ]);
        let running = json!({"phase": "Running", "conditions": conditions});
        let mut status = serde_json::from_value(running).unwrap();
        Eviction::PREEMPTION.record(&pod, false, &mut status);
        assert_eq!(
            serde_json::to_value(&status).unwrap(),
            json!({
                "phase": "Failed",
                "reason": "Preempting",
                "message": "Preempted in order to admit critical pod",
                "conditions": [
                    {"type": "Ready", "status": "True"},
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "TerminationByKubelet",
                        "message": "Pod was preempted by Kubelet to accommodate a critical pod.",
                        "observedGeneration": 3,
                    },
                ],
            })
        );
    }
    #[rstest]
    #[case::ended_well("Succeeded", true, "Succeeded", None)]
    #[case::ended_badly("Failed", true, "Failed", Some("Preempting"))]
    #[case::runs("Running", false, "Failed", Some("Preempting"))]
    fn evicted_pod_that_ends_well_has_succeeded(
        #[case] computed: &str,
        #[case] has_ended: bool,
        #[case] phase: &str,
        #[case] reason: Option<&str>,
    ) {
        let pod = fixtures::pod(json!({"spec": {"containers": []}}));
        let mut status = PodStatus { phase: Some(computed.to_owned()), ..PodStatus::default() };
        Eviction::PREEMPTION.record(&pod, has_ended, &mut status);
        assert_eq!((status.phase.as_deref(), status.reason.as_deref()), (Some(phase), reason));
        assert_eq!(status.conditions.unwrap().len(), 1);
    }
}
