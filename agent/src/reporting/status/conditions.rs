//! Conditions of a pod.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/generate.go.

use api::pod::is_sidecar;
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};

use crate::decide::plan::{self, restart};
use crate::reporting::status::Inputs;

/// The conditions that the agent owns; all others are kept unchanged.
const OWN: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "AllContainersRestarting",
    "PodResizePending",
    "PodResizeInProgress",
];

/// The value of a condition.
struct ConditionValue {
    status: &'static str,
    reason: &'static str,
    message: String,
}

const TRUE: ConditionValue = ConditionValue { status: "True", reason: "", message: String::new() };

/// The condition of an evicted pod, which other components set too.
pub(super) const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// Whether the agent owns the conditions of this type.
pub fn is_own(kind: &str) -> bool {
    OWN.contains(&kind)
}

fn false_with(reason: &'static str, message: String) -> ConditionValue {
    ConditionValue { status: "False", reason, message }
}

/// Computes the conditions of a pod from the containers and phase in `status`.
pub(super) fn all(
    inputs: &Inputs<'_>,
    old: &PodStatus,
    api: &PodStatus,
    status: &PodStatus,
) -> Vec<PodCondition> {
    let generation = inputs.pod.api().metadata.generation;
    let own = |kind: &str, value: ConditionValue| PodCondition {
        type_: kind.to_owned(),
        status: value.status.to_owned(),
        reason: (!value.reason.is_empty()).then(|| value.reason.to_owned()),
        message: (!value.message.is_empty()).then_some(value.message),
        observed_generation: generation,
        ..PodCondition::default()
    };
    let mut conditions: Vec<PodCondition> = api
        .conditions
        .iter()
        .flatten()
        .filter(|condition| !is_own(&condition.type_))
        .cloned()
        .collect();
    if let Some(resize) = inputs.resize.filter(|_| !inputs.terminated) {
        conditions.extend(resize.for_status(generation));
    }
    // Keep the agent's own eviction condition, even if the API server does not have it yet.
    if let Some(disruption) =
        old.conditions.iter().flatten().find(|condition| condition.type_ == DISRUPTION_TARGET)
    {
        match conditions.iter_mut().find(|condition| condition.type_ == DISRUPTION_TARGET) {
            Some(known) => *known = disruption.clone(),
            None => conditions.push(disruption.clone()),
        }
    }
    if inputs.features.ready_to_start_condition {
        let sandbox = if plan::needs_sandbox(inputs.pod, inputs.observed) {
            false_with("", String::new())
        } else {
            TRUE
        };
        conditions.push(own("PodReadyToStartContainers", sandbox));
    }
    conditions.push(own("Initialized", initialized(inputs, old, status)));
    conditions.push(own("Ready", ready(inputs, status, &conditions)));
    conditions.push(own("ContainersReady", containers_ready(inputs, status)));
    conditions.push(own("PodScheduled", TRUE));
    if restart::could_restart_all(inputs.pod) {
        let value = restarting_all(inputs, old, status);
        conditions.push(PodCondition {
            observed_generation: None,
            ..own("AllContainersRestarting", value)
        });
    }
    // The status of an idle pod stays in memory.
    conditions.shrink_to_fit();
    conditions
}

fn restarting_all(inputs: &Inputs<'_>, old: &PodStatus, status: &PodStatus) -> ConditionValue {
    match status.phase.as_deref() {
        Some("Succeeded") => return false_with("PodCompleted", String::new()),
        Some("Failed") => return false_with("PodFailed", String::new()),
        Some(_) | None => {}
    }
    let removed = restart::all_removed(inputs.pod, inputs.observed);
    if restart::restarts_all(inputs.pod, inputs.observed, old) && !removed {
        let message = "container exited with restart policy rule".to_owned();
        ConditionValue { status: "True", reason: "RestartAllContainersStarted", message }
    } else {
        false_with("", String::new())
    }
}

fn find<'s>(status: &'s PodStatus, container: &Container) -> Option<&'s ContainerStatus> {
    let all = status.init_container_statuses.iter().chain(&status.container_statuses).flatten();
    all.into_iter().find(|status| status.name == container.name)
}

/// Formats a list like Go: `[a b c]`.
fn go_list(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

/// The message about containers with unknown status and with `what` status; empty if there are none.
fn unready_message(unknown: &[&str], others: &[&str], what: &str) -> String {
    let mut messages = Vec::new();
    if !unknown.is_empty() {
        messages.push(format!("containers with unknown status: {}", go_list(unknown)));
    }
    if !others.is_empty() {
        messages.push(format!("containers with {what} status: {}", go_list(others)));
    }
    messages.join(", ")
}

fn initialized(inputs: &Inputs<'_>, old: &PodStatus, status: &PodStatus) -> ConditionValue {
    let (mut unknown, mut incomplete) = (Vec::new(), Vec::new());
    for init in inputs.pod.init_containers() {
        match find(status, init) {
            None => unknown.push(init.name.as_str()),
            Some(seen) => {
                let over = if is_sidecar(init) { seen.started == Some(true) } else { seen.ready };
                if !over {
                    incomplete.push(init.name.as_str());
                }
            }
        }
    }
    if status.phase.as_deref() == Some("Succeeded") && unknown.is_empty() {
        return ConditionValue { reason: "PodCompleted", ..TRUE };
    }
    // Restarted sidecars do not reset the condition.
    let app_started =
        inputs.pod.containers().iter().filter_map(|app| find(status, app)).any(|seen| {
            seen.state
                .as_ref()
                .is_some_and(|state| state.running.is_some() || state.terminated.is_some())
        });
    let message = unready_message(&unknown, &incomplete, "incomplete");
    let was = old
        .conditions
        .iter()
        .flatten()
        .any(|known| known.type_ == "Initialized" && known.status == "True");
    if app_started || was || message.is_empty() {
        TRUE
    } else {
        false_with("ContainersNotInitialized", message)
    }
}

fn containers_ready(inputs: &Inputs<'_>, status: &PodStatus) -> ConditionValue {
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    let sidecars = inputs.pod.init_containers().iter().filter(|init| is_sidecar(init));
    for container in sidecars.chain(inputs.pod.containers()) {
        match find(status, container) {
            None => unknown.push(container.name.as_str()),
            Some(seen) if !seen.ready => unready.push(container.name.as_str()),
            Some(_) => {}
        }
    }
    match status.phase.as_deref() {
        Some("Succeeded") if unknown.is_empty() => {
            return false_with("PodCompleted", String::new());
        }
        Some("Failed") => return false_with("PodFailed", String::new()),
        Some(_) | None => {}
    }
    let message = unready_message(&unknown, &unready, "unready");
    if message.is_empty() { TRUE } else { false_with("ContainersNotReady", message) }
}

/// Ready: all containers are ready and all readiness gates are true.
fn ready(inputs: &Inputs<'_>, status: &PodStatus, conditions: &[PodCondition]) -> ConditionValue {
    let containers = containers_ready(inputs, status);
    if containers.status != "True" {
        return containers;
    }
    let gates = inputs.pod.spec().readiness_gates.iter().flatten();
    let unmet: Vec<String> = gates
        .filter_map(|gate| {
            let kind = gate.condition_type.as_str();
            match conditions.iter().find(|condition| condition.type_ == kind) {
                None => Some(format!(
                    "corresponding condition of pod readiness gate {kind:?} does not exist."
                )),
                Some(condition) if condition.status != "True" => {
                    let status = &condition.status;
                    Some(format!(
                        "the status of pod readiness gate {kind:?} is not \"True\", but {status}"
                    ))
                }
                Some(_) => None,
            }
        })
        .collect();
    if unmet.is_empty() { TRUE } else { false_with("ReadinessGatesNotReady", unmet.join(", ")) }
}

#[cfg(test)]
mod tests {
    use compact::Map;
    use jiff::Timestamp;
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::node::Features;
    use crate::observed::Observed;
    use crate::reporting::status::pod_status;

    #[rstest]
    #[case(true, 1)]
    #[case(false, 0)]
    fn ready_to_start_condition_needs_its_gate(#[case] is_on: bool, #[case] expected: usize) {
        let spec = json!({"containers": [{"name": "app", "image": "i"}]});
        let status = pod_status(&Inputs {
            prefers_ipv6: false,
            pod: &fixtures::pod_of("u", "p", spec),
            observed: &Observed::nothing(Timestamp::UNIX_EPOCH),
            previous: None,
            start_errors: &Map::new(),
            terminated: false,
            probes_registered: false,
            agent_started_at: None,
            node_ips: &[],
            recursive_read_only: false,
            stop_signals: false,
            features: Features { ready_to_start_condition: is_on, ..Features::default() },
            actuated: None,
            resize: None,
        });
        let mut types = status.conditions.iter().flatten().map(|condition| &condition.type_);
        assert_eq!(types.clone().filter(|it| *it == "PodReadyToStartContainers").count(), expected);
        assert!(types.any(|it| it == "Initialized"));
    }
}
