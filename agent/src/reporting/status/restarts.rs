//! The restart counts of containers, if a status is computed more than once while the whole pod restarts. ◆
//!
//! While the whole pod restarts, a removed init container appears as completed as long as app containers exist. A kubelet adds one
//! restart each time that it computes a status then (Kubernetes 1.36, pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses).

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, PodStatus};

use super::containers::{COMPLETED_UNSEEN, RESTARTING};

/// Keeps the restart counts of `previous` that already include the restart.
pub(crate) fn count_once(previous: &PodStatus, status: &mut PodStatus) {
    for before in previous.init_container_statuses.iter().flatten() {
        let mut all = status.init_container_statuses.iter_mut().flatten();
        let Some(now) = all.find(|now| now.name == before.name) else {
            continue;
        };
        let waits = now.state.as_ref().and_then(|state| state.waiting.as_ref());
        let is_waiting = waits.is_some_and(|it| it.reason.as_deref() == Some(RESTARTING));
        if is_counted(before) && (is_counted(now) || is_waiting) {
            now.restart_count = before.restart_count;
        }
    }
}

/// Whether a status shows a removed init container both as completed and as killed.
fn is_counted(status: &ContainerStatus) -> bool {
    let exit = |state: &Option<ContainerState>| state.as_ref()?.terminated.clone();
    let completed = exit(&status.state).and_then(|exit| exit.message);
    let killed = exit(&status.last_state).and_then(|exit| exit.reason);
    completed.as_deref() == Some(COMPLETED_UNSEEN) && killed.as_deref() == Some(RESTARTING)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use compact::Map;
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::fixtures;
    use crate::node::Features;
    use crate::observed::{ContainerState as SeenState, Observed, ObservedContainer};
    use crate::reporting::status::{Inputs, pod_status};

    #[test]
    fn restart_of_all_containers_counts_once_while_init_container_is_removed() {
        let rules = json!([{
            "action": "RestartAllContainers",
            "exitCodes": {"operator": "In", "values": [42]},
        }]);
        let spec = json!({
            "restartPolicy": "Never",
            "initContainers": [{"name": "init", "image": "i"}],
            "containers": [
                {"name": "main", "image": "i", "restartPolicy": "Never", "restartPolicyRules": rules},
            ],
        });
        let pod = fixtures::pod_of("u", "p", spec);
        let exited = |name: &str, code: i32| {
            fixtures::container(name, name, SeenState::Exited(fixtures::exit(code)))
        };
        let look = |containers: Vec<ObservedContainer>| Observed {
            containers,
            ..Observed::nothing(Timestamp::UNIX_EPOCH)
        };
        let without_init = look(vec![exited("main", 42)]);
        let looks = [
            look(vec![exited("main", 42), exited("init", 0)]),
            without_init.clone(),
            without_init.clone(),
            without_init,
            look(Vec::new()),
        ];
        let mut status: Option<PodStatus> = None;
        let mut counts = Vec::new();
        for observed in &looks {
            let mut next = pod_status(&Inputs {
                pod: &pod,
                observed,
                previous: status.as_ref(),
                start_errors: &Map::new(),
                terminated: false,
                probes_registered: false,
                agent_started_at: None,
                node_ips: &[],
                prefers_ipv6: false,
                recursive_read_only: false,
                stop_signals: false,
                features: Features::default(),
                actuated: None,
                resize: None,
            });
            if let Some(previous) = &status {
                count_once(previous, &mut next);
            }
            let init = &next.init_container_statuses.as_ref().unwrap()[0];
            counts.push(init.restart_count);
            status = Some(next);
        }
        assert_eq!(counts, [0, 1, 1, 1, 1]);
    }
}
