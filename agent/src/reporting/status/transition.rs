//! ◆ Whether a container's status leaves the terminated state although nothing restarts it: such a status is wrong, and is
//! discarded.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/status/status_manager.go checkContainerStateTransition.

use api::pod::{Pod, RestartPolicy, is_sidecar};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use crate::decide::plan::restart;

/// The container that a new status shows as restarted although it must not be.
pub(crate) fn illegal_restart(pod: &Pod, old: &PodStatus, new: &PodStatus) -> Option<String> {
    // A pod that restarts as a whole runs all containers again.
    if pod.restart_policy() == RestartPolicy::Always || restart::could_restart_all(pod) {
        return None;
    }
    let apps = wrong(pod, pod.containers(), &old.container_statuses, &new.container_statuses);
    apps.or_else(|| {
        wrong(
            pod,
            pod.init_containers(),
            &old.init_container_statuses,
            &new.init_container_statuses,
        )
    })
}

fn wrong(
    pod: &Pod,
    containers: &[Container],
    old: &Option<Vec<ContainerStatus>>,
    new: &Option<Vec<ContainerStatus>>,
) -> Option<String> {
    let exit_code = |status: &ContainerStatus| {
        let exit = status.state.as_ref()?.terminated.as_ref()?;
        Some(exit.exit_code)
    };
    let stays_ended = |old: &&ContainerStatus| {
        let Some(code) = exit_code(old) else {
            return false;
        };
        let container = containers.iter().find(|known| known.name == old.name);
        let restarts = container.is_some_and(|container| {
            is_sidecar(container) || restart::policy_allows(pod, container, code)
        });
        let by_pod = code != 0 && pod.restart_policy() == RestartPolicy::OnFailure;
        !restarts && !by_pod
    };
    let ended = old.iter().flatten().filter(stays_ended);
    ended
        .flat_map(|old| {
            let new = new.iter().flatten();
            new.filter(|new| new.name == old.name && exit_code(new).is_none())
        })
        .map(|new| new.name.clone())
        .next()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;
    use crate::fixtures;

    fn status(of: &str, code: Option<i32>) -> PodStatus {
        let state = match code {
            Some(code) => json!({"terminated": {"exitCode": code}}),
            None => json!({"waiting": {}}),
        };
        let status = json!({"name": "c", "state": state, "ready": false, "restartCount": 0, "image": "", "imageID": ""});
        serde_json::from_value(json!({of: [status]})).unwrap()
    }

    const RULE: &str =
        r#"[{"action": "Restart", "exitCodes": {"operator": "In", "values": [42]}}]"#;
    const ALL: &str =
        r#"[{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [9]}}]"#;

    #[rstest]
    #[case::ended_for_good("Never", None, "[]", Some(0), None, true)]
    #[case::failed_for_good("Never", None, "[]", Some(1), None, true)]
    #[case::succeeded("OnFailure", None, "[]", Some(0), None, true)]
    #[case::failed("OnFailure", None, "[]", Some(1), None, false)]
    #[case::always("Always", None, "[]", Some(0), None, false)]
    #[case::own_policy("Never", Some("Always"), "[]", Some(0), None, false)]
    #[case::rule_matches("Never", Some("Never"), RULE, Some(42), None, false)]
    #[case::rule_does_not_match("Never", Some("Never"), RULE, Some(43), None, true)]
    #[case::all_could_restart("Never", Some("Never"), ALL, Some(0), None, false)]
    #[case::ended_again("Never", None, "[]", Some(0), Some(1), false)]
    #[case::had_not_ended("Never", None, "[]", None, None, false)]
    fn ended_container_stays_ended_unless_it_is_restarted(
        #[case] policy: &str,
        #[case] own: Option<&str>,
        #[case] rules: &str,
        #[case] before: Option<i32>,
        #[case] after: Option<i32>,
        #[case] wrong: bool,
    ) {
        let rules: Value = serde_json::from_str(rules).unwrap();
        let container = json!({"name": "c", "restartPolicy": own, "restartPolicyRules": rules});
        for (spec, list) in
            [("containers", "containerStatuses"), ("initContainers", "initContainerStatuses")]
        {
            let is_sidecar = spec == "initContainers" && own == Some("Always");
            let mut pod = json!({"spec": {"restartPolicy": policy, "containers": []}});
            pod["spec"][spec] = json!([container]);
            let pod = fixtures::pod(pod);
            let found = illegal_restart(&pod, &status(list, before), &status(list, after));
            assert_eq!(found.is_some(), wrong && !is_sidecar, "{spec}");
        }
    }
}
