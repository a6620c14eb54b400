//! ◆ Completes a status before it is recorded: times of transitions, the start of the pod, the observed generation.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go updateStatusInternal.

use api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::PodStatus;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// The maximum total length of the messages of a pod's ended containers, in bytes. Kubernetes 1.36, pkg/kubelet/container,
/// MaxPodTerminationMessageLogLength.
const MESSAGE_BYTES: usize = 12 * 1024;

/// Completes a status that replaces `previous`; without one, the API server's copy stands in.
pub(crate) fn recorded(
    pod: &Pod,
    mut status: PodStatus,
    previous: Option<&PodStatus>,
    now: Timestamp,
) -> PodStatus {
    let previous = previous.or(pod.api().status.as_ref());
    for condition in status.conditions.iter_mut().flatten() {
        if condition.type_.starts_with("PodResize") {
            // It already has the time since which it has its reason.
            continue;
        }
        let before = previous
            .and_then(|previous| previous.conditions.as_ref())
            .and_then(|before| before.iter().find(|before| before.type_ == condition.type_))
            .filter(|before| before.status == condition.status);
        condition.last_transition_time = match before {
            Some(before) => before.last_transition_time.clone(),
            None => Some(Time(now)),
        };
    }
    status.start_time =
        previous.and_then(|previous| previous.start_time.clone()).or(Some(Time(now)));
    cut_messages(pod, &mut status);
    let generation = pod.api().metadata.generation.unwrap_or_default();
    let before = previous.and_then(|previous| previous.observed_generation);
    let observed = generation.max(before.unwrap_or_default());
    // A static pod has no generation.
    status.observed_generation = (observed != 0).then_some(observed);
    status
}

/// Truncates the messages of a pod's ended containers, so that together they do not exceed the limit.
fn cut_messages(pod: &Pod, status: &mut PodStatus) {
    let spec = pod.spec();
    let containers = spec.containers.len()
        + spec.init_containers.as_ref().map_or(0, Vec::len)
        + spec.ephemeral_containers.as_ref().map_or(0, Vec::len);
    let share = MESSAGE_BYTES / containers.max(1);
    let containers = [
        &mut status.container_statuses,
        &mut status.init_container_statuses,
        &mut status.ephemeral_container_statuses,
    ];
    let states = containers.into_iter().flatten().flatten();
    for state in states.flat_map(|shown| [&mut shown.state, &mut shown.last_state]) {
        let ended = state.as_mut().and_then(|state| state.terminated.as_mut());
        if let Some(message) = ended.and_then(|ended| ended.message.as_mut()) {
            message.truncate(message.floor_char_boundary(share));
        }
    }
}

/// Whether two statuses are equal except for the transition times of their conditions.
#[must_use]
pub(crate) fn is_same_but_for_times(one: &PodStatus, other: &PodStatus) -> bool {
    let mut timed = one.clone();
    let conditions = timed.conditions.iter_mut().flatten();
    for (own, others) in conditions.zip(other.conditions.iter().flatten()) {
        own.last_transition_time.clone_from(&others.last_transition_time);
    }
    timed == *other
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    const BEFORE: &str = "2026-03-01T12:00:00Z";
    const NOW: &str = "2026-03-01T13:00:00Z";

    fn pod(generation: i64, status: Value) -> Pod {
        fixtures::pod(
            json!({"metadata": {"generation": generation}, "spec": {"containers": []}, "status": status}),
        )
    }

    fn status(ready: &str) -> PodStatus {
        let conditions = json!([{"type": "Ready", "status": ready}]);
        serde_json::from_value(json!({"conditions": conditions})).unwrap()
    }

    fn recorded_now(pod: &Pod, ready: &str, previous: Option<&PodStatus>) -> Value {
        let status = recorded(pod, status(ready), previous, NOW.parse().unwrap());
        serde_json::to_value(status).unwrap()
    }

    #[test]
    fn first_status_begins_now() {
        let shown = recorded_now(&pod(0, json!({})), "True", None);
        assert_eq!(shown["startTime"], NOW);
        assert_eq!(shown["conditions"][0]["lastTransitionTime"], NOW);
        assert!(shown.get("observedGeneration").is_none());
    }

    #[test]
    fn unchanged_condition_keeps_its_time() {
        let old = json!({
            "startTime": BEFORE,
            "observedGeneration": 3,
            "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": BEFORE}],
        });
        let old: PodStatus = serde_json::from_value(old).unwrap();
        let shown = recorded_now(&pod(2, json!({})), "True", Some(&old));
        assert_eq!(shown["startTime"], BEFORE);
        assert_eq!(shown["observedGeneration"], 3, "it never goes back");
        assert_eq!(shown["conditions"][0]["lastTransitionTime"], BEFORE);
        let shown = recorded_now(&pod(4, json!({})), "False", Some(&old));
        assert_eq!(shown["observedGeneration"], 4);
        assert_eq!(shown["conditions"][0]["lastTransitionTime"], NOW);
    }

    #[test]
    fn containers_share_the_bytes_of_messages() {
        let container = json!({"name": "c"});
        let pod = fixtures::pod(json!({"spec": {
            "containers": [container, container],
            "initContainers": [container],
            "ephemeralContainers": [container],
        }}));
        let ended = |message: &str| json!({"terminated": {"exitCode": 1, "message": message}});
        let (long, short) = ("ä".repeat(2000), "bye");
        let shown = |state: &Value, last: &Value| {
            json!({
                "name": "c", "ready": false, "restartCount": 0, "image": "", "imageID": "", "state": state, "lastState": last,
            })
        };
        let status = json!({
            "containerStatuses": [shown(&ended(&long), &ended(short)), shown(&json!({"running": {}}), &ended(&long))],
            "initContainerStatuses": [shown(&ended(&long), &json!({}))],
            "ephemeralContainerStatuses": [shown(&ended(&long), &json!({}))],
        });
        let status = serde_json::from_value(status).unwrap();
        let recorded = recorded(&pod, status, None, NOW.parse().unwrap());
        let recorded = serde_json::to_value(recorded).unwrap();
        let length = |at: &str| recorded.pointer(at).unwrap().as_str().unwrap().len();
        for at in [
            "/containerStatuses/0/state",
            "/containerStatuses/1/lastState",
            "/initContainerStatuses/0/state",
            "/ephemeralContainerStatuses/0/state",
        ] {
            assert_eq!(length(&format!("{at}/terminated/message")), 3072, "{at}");
        }
        let kept = "/containerStatuses/0/lastState/terminated/message";
        assert_eq!(recorded.pointer(kept).unwrap(), short);
    }

    #[test]
    fn only_times_of_conditions_may_differ() {
        let status = |ready: &str, changed: &str, started: &str| -> PodStatus {
            let ready = json!({"type": "Ready", "status": ready, "lastTransitionTime": changed});
            let status = json!({"startTime": started, "conditions": [ready]});
            serde_json::from_value(status).unwrap()
        };
        let one = status("True", BEFORE, BEFORE);
        let table = [
            (status("True", BEFORE, BEFORE), true),
            (status("True", NOW, BEFORE), true),
            (status("False", BEFORE, BEFORE), false),
            (status("True", BEFORE, NOW), false),
            (PodStatus::default(), false),
        ];
        for (other, expected) in table {
            assert_eq!(is_same_but_for_times(&one, &other), expected, "{other:?}");
            assert_eq!(is_same_but_for_times(&other, &one), expected, "{other:?}");
        }
    }

    #[test]
    fn start_time_is_kept_from_the_api_server_after_agent_restart() {
        let shown = recorded_now(&pod(1, json!({"startTime": BEFORE})), "True", None);
        assert_eq!(shown["startTime"], BEFORE);
    }
}
