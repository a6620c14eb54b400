//! ◆ Restart policies and restart rules.
//!
//! | container's own policy | rule matches the exit code | pod's policy | exit 0 | exit ≠ 0 |
//! |---|---|---|---|---|
//! | set | yes (Restart, RestartAllContainers) | any | restart | restart |
//! | Always | no | any | restart | restart |
//! | OnFailure | no | any | stop | restart |
//! | Never | no | any | stop | stop |
//! | not set | – | Always | restart | restart |
//! | not set | – | OnFailure | stop | restart |
//! | not set | – | Never | stop | stop |
//!
//! Source: Kubernetes 1.36, pkg/api/v1/pod/util.go, with the gates ContainerRestartRules and
//! RestartAllContainersOnContainerExits on, as they are by default.

use api::pod::{Pod, RestartPolicy};
use k8s_openapi::api::core::v1::{Container, ContainerRestartRule, ContainerStatus, PodStatus};

use crate::observed::{ContainerState, Observed};

/// The action of a restart rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuleAction {
    /// Restart this container.
    Restart,
    /// Restart every container of the pod.
    RestartAllContainers,
}

/// The first rule of the container that matches `exit_code`: its index and action.
/// Rules apply only if the container has its own restart policy.
pub fn matched_rule(container: &Container, exit_code: i32) -> Option<(usize, RuleAction)> {
    container.restart_policy.as_ref()?;
    let rules = container.restart_policy_rules.iter().flatten();
    rules.enumerate().filter(|(_, rule)| rule_matches(rule, exit_code)).find_map(|(index, rule)| {
        match rule.action.as_str() {
            "Restart" => Some((index, RuleAction::Restart)),
            "RestartAllContainers" => Some((index, RuleAction::RestartAllContainers)),
            _ => None,
        }
    })
}

fn rule_matches(rule: &ContainerRestartRule, exit_code: i32) -> bool {
    let Some(codes) = &rule.exit_codes else {
        return false;
    };
    let listed = codes.values.iter().flatten().any(|code| *code == exit_code);
    match codes.operator.as_str() {
        "In" => listed,
        "NotIn" => !listed,
        _ => false,
    }
}

/// Whether policy and rules restart a container that exited with `exit_code`. See the table above.
pub fn policy_allows(pod: &Pod, container: &Container, exit_code: i32) -> bool {
    if matched_rule(container, exit_code).is_some() {
        return true;
    }
    match RestartPolicy::of_container(container).unwrap_or_else(|| pod.restart_policy()) {
        RestartPolicy::Always => true,
        RestartPolicy::OnFailure => exit_code != 0,
        RestartPolicy::Never => false,
    }
}

/// Whether any exit code leads to a restart, by policy or by a Restart rule.
pub fn is_restartable(pod: &Pod, container: &Container) -> bool {
    let own = RestartPolicy::of_container(container);
    let by_rule = own.is_some()
        && container.restart_policy_rules.iter().flatten().any(|rule| rule.action == "Restart");
    by_rule || own.unwrap_or_else(|| pod.restart_policy()) != RestartPolicy::Never
}

/// Whether to (re)start the container, based on its newest attempt.
pub fn should_start(pod: &Pod, container: &Container, observed: &Observed) -> bool {
    if pod.is_deleted() {
        return false;
    }
    match observed.container(&container.name).map(|seen| &seen.state) {
        None | Some(ContainerState::Created | ContainerState::Unknown) => true,
        Some(ContainerState::Running { .. }) => false,
        Some(ContainerState::Exited(exit)) => policy_allows(pod, container, exit.code),
    }
}

/// Whether a container of the pod has a RestartAllContainers rule.
pub fn could_restart_all(pod: &Pod) -> bool {
    pod.init_and_apps().any(|container| {
        container
            .restart_policy_rules
            .iter()
            .flatten()
            .any(|rule| rule.action == "RestartAllContainers")
    })
}

/// Whether the newest attempt of a container exited with a code for which a rule restarts the whole pod.
pub fn restart_all_matched(pod: &Pod, observed: &Observed) -> bool {
    pod.init_and_apps().any(|container| {
        let exit = observed.container(&container.name).and_then(|seen| seen.state.exit());
        exit.and_then(|exit| matched_rule(container, exit.code))
            .is_some_and(|(_, action)| action == RuleAction::RestartAllContainers)
    })
}

/// Whether the runtime has no init or app container left.
pub fn all_removed(pod: &Pod, observed: &Observed) -> bool {
    pod.init_and_apps().all(|container| observed.container(&container.name).is_none())
}

/// Whether to restart the whole pod: a rule matches an exit in the runtime or in the pod's last `status`, or a restart of the whole
/// pod is not complete (condition `AllContainersRestarting` of that status).
pub fn restarts_all(pod: &Pod, observed: &Observed, status: &PodStatus) -> bool {
    is_restarting_all(status)
        || restart_all_matched(pod, observed)
        || restart_all_reported(pod, observed, status)
}

/// Whether the whole pod is restarted according to a status alone.
pub fn restarts_all_reported(pod: &Pod, status: &PodStatus) -> bool {
    let exits = statuses(status).filter_map(|seen| {
        let exit = seen.state.as_ref()?.terminated.as_ref()?;
        let container = pod.init_and_apps().find(|container| container.name == seen.name)?;
        matched_rule(container, exit.exit_code)
    });
    is_restarting_all(status)
        || exits.into_iter().any(|(_, action)| action == RuleAction::RestartAllContainers)
}

fn is_restarting_all(status: &PodStatus) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == "AllContainersRestarting" && condition.status == "True")
}

fn statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    status.init_container_statuses.iter().chain(&status.container_statuses).flatten()
}

/// Like [`restart_all_matched`], but takes the exit codes from a status, for containers that have exited according to the runtime.
fn restart_all_reported(pod: &Pod, observed: &Observed, status: &PodStatus) -> bool {
    statuses(status)
        .filter_map(|seen| {
            let exit = seen.state.as_ref()?.terminated.as_ref()?;
            observed.container(&seen.name)?.state.exit()?;
            let container = pod.init_and_apps().find(|container| container.name == seen.name)?;
            matched_rule(container, exit.exit_code)
        })
        .any(|(_, action)| action == RuleAction::RestartAllContainers)
}
