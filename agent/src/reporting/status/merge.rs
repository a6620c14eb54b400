//! ◆ The status that is sent to an API server: the agent's own part merged with the parts of others, and no terminal phase before
//! the end.
//!
//! | part | source |
//! |---|---|
//! | conditions that the agent owns | the agent |
//! | `DisruptionTarget` | the agent once its pod has finally ended, else the server |
//! | all other conditions, resource claims | the server |
//! | a terminal phase with its reason and message | the agent, once no container can run any more |
//! | `Ready` and `ContainersReady` in a terminal phase | never true |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go mergePodStatus.

use api::pod::Pod;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{PodCondition, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::reporting::status::conditions::{DISRUPTION_TARGET, is_own};
use crate::reporting::status::is_terminal;

/// The status to send. `at_server` is the server's copy, `own` is the agent's, and `may_run` is whether a container of the pod may
/// still be running.
#[must_use]
pub fn merged(
    pod: &Pod,
    at_server: &PodStatus,
    own: PodStatus,
    may_run: bool,
    now: Timestamp,
) -> PodStatus {
    let is_over = |status: &PodStatus| status.phase.as_deref().is_some_and(is_terminal);
    let ends = !is_over(at_server) && is_over(&own);

    let known = at_server.conditions.iter().flatten();
    let mut conditions: Vec<PodCondition> =
        known.filter(|condition| !is_own(&condition.type_)).cloned().collect();
    for condition in own.conditions.iter().flatten() {
        if is_own(&condition.type_) {
            conditions.push(condition.clone());
        } else if condition.type_ == DISRUPTION_TARGET && ends && !may_run {
            put(&mut conditions, since(condition.clone(), at_server, now));
        }
    }
    let mut merged = PodStatus {
        conditions: Some(conditions),
        resource_claim_statuses: at_server.resource_claim_statuses.clone(),
        extended_resource_claim_status: at_server.extended_resource_claim_status.clone(),
        node_allocatable_resource_claim_statuses: at_server
            .node_allocatable_resource_claim_statuses
            .clone(),
        ..own
    };
    if ends && may_run {
        // While a container may still run, the phase must not be terminal: other components would reuse its ports and devices.
        merged.phase.clone_from(&at_server.phase);
        merged.reason.clone_from(&at_server.reason);
        merged.message.clone_from(&at_server.message);
    }
    if is_over(&merged) {
        not_ready(pod, at_server, &mut merged, now);
    }
    merged
}

/// Makes a pod in a terminal phase not ready.
fn not_ready(pod: &Pod, at_server: &PodStatus, status: &mut PodStatus, now: Timestamp) {
    const READY: [&str; 2] = ["ContainersReady", "Ready"];
    let reason = match status.phase.as_deref() {
        Some("Failed") => "PodFailed",
        Some(_) | None => "PodCompleted",
    };
    let conditions = status.conditions.get_or_insert_default();
    let is_ready = conditions
        .iter()
        .any(|known| READY.contains(&known.type_.as_str()) && known.status == "True");
    if !is_ready {
        return;
    }
    for kind in READY {
        let condition = PodCondition {
            type_: kind.to_owned(),
            status: "False".to_owned(),
            reason: Some(reason.to_owned()),
            observed_generation: pod.api().metadata.generation,
            ..PodCondition::default()
        };
        put(conditions, since(condition, at_server, now));
    }
}

/// Sets the condition's transition time.
fn since(mut condition: PodCondition, before: &PodStatus, now: Timestamp) -> PodCondition {
    let mut before = before.conditions.iter().flatten();
    let before = before.find(|before| before.type_ == condition.type_);
    condition.last_transition_time = match before {
        Some(before) if before.status == condition.status => before.last_transition_time.clone(),
        Some(_) | None => Some(Time(now)),
    };
    condition
}

/// Replaces the condition of this type, or adds it.
fn put(conditions: &mut Vec<PodCondition>, condition: PodCondition) {
    let known = conditions.iter_mut().find(|known| known.type_ == condition.type_);
    match known {
        Some(known) => *known = condition,
        None => conditions.push(condition),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    const NOW: &str = "2026-03-01T13:00:00Z";

    /// A status with this phase and these conditions, each `Type=Status`.
    fn status(phase: &str, conditions: &str) -> PodStatus {
        let one = |text: &str| {
            let (kind, status) = text.split_once('=').unwrap();
            json!({"type": kind, "status": status})
        };
        let conditions: Vec<Value> = conditions.split_whitespace().map(one).collect();
        let reason = format!("{phase}Reason");
        let status =
            json!({"phase": phase, "reason": reason, "message": "m", "conditions": conditions});
        serde_json::from_value(status).unwrap()
    }

    fn merge(at_server: PodStatus, own: PodStatus, may_run: bool) -> PodStatus {
        let pod = fixtures::pod(json!({"metadata": {"generation": 7}, "spec": {"containers": []}}));
        merged(&pod, &at_server, own, may_run, NOW.parse().unwrap())
    }

    fn shown(status: &PodStatus) -> String {
        let conditions = status.conditions.iter().flatten();
        let shown: Vec<String> =
            conditions.map(|known| format!("{}={}", known.type_, known.status)).collect();
        shown.join(" ")
    }

    #[rstest]
    #[case::own_replace_own("Ready=False", "Ready=True", "Ready=True")]
    #[case::others_stay("Ready=False Mine=True", "Ready=True", "Mine=True Ready=True")]
    #[case::others_are_not_changed("Mine=True", "Mine=False Ready=True", "Mine=True Ready=True")]
    #[case::own_that_went("Ready=True PodResizePending=True", "Ready=True", "Ready=True")]
    #[case::disruption_waits_for_the_end("", "DisruptionTarget=True", "")]
    #[case::disruption_of_others_stays("DisruptionTarget=True", "", "DisruptionTarget=True")]
    fn conditions_of_other_writers_are_kept(
        #[case] server: &str,
        #[case] own: &str,
        #[case] after: &str,
    ) {
        let merged = merge(status("Running", server), status("Running", own), true);
        assert_eq!(shown(&merged), after);
    }

    #[rstest]
    #[case::runs("Running", "Failed", true, "Running")]
    #[case::has_ended("Running", "Failed", false, "Failed")]
    #[case::was_over("Failed", "Failed", true, "Failed")]
    #[case::pending("Pending", "Running", true, "Running")]
    fn terminal_phase_is_reported_once_nothing_can_run(
        #[case] server: &str,
        #[case] own: &str,
        #[case] may_run: bool,
        #[case] after: &str,
    ) {
        let merged = merge(status(server, ""), status(own, ""), may_run);
        assert_eq!(merged.phase.as_deref(), Some(after));
        assert_eq!(merged.reason, Some(format!("{after}Reason")));
    }

    #[rstest]
    #[case(true, "")]
    #[case(false, "DisruptionTarget=True")]
    fn disruption_condition_is_reported_with_termination(
        #[case] may_run: bool,
        #[case] after: &str,
    ) {
        let own = status("Failed", "DisruptionTarget=True");
        let merged = merge(status("Running", ""), own, may_run);
        assert_eq!(shown(&merged), after);
    }

    #[test]
    fn ended_pod_is_not_ready() {
        let server = status("Running", "Ready=True ContainersReady=False");
        let own = status("Failed", "Ready=True ContainersReady=False");
        let merged = merge(server, own, false);
        assert_eq!(shown(&merged), "Ready=False ContainersReady=False");
        let ready = &merged.conditions.as_ref().unwrap()[0];
        assert_eq!(ready.reason.as_deref(), Some("PodFailed"));
        assert_eq!(ready.observed_generation, Some(7));
        assert_eq!(ready.last_transition_time, Some(Time(NOW.parse().unwrap())));
    }

    #[test]
    fn resource_claim_statuses_come_from_the_server() {
        let with = |name: &str| {
            let claims = json!([{"name": name}]);
            let status = json!({"phase": "Running", "resourceClaimStatuses": claims});
            serde_json::from_value(status).unwrap()
        };
        let claims = merge(with("server"), with("own"), true).resource_claim_statuses;
        assert_eq!(claims.unwrap()[0].name, "server");
    }
}
