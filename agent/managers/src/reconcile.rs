//! Updates the CPUs of running containers in the runtime: the shared CPUs change when others become exclusive.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/cm/cpumanager/cpu_manager.go reconcileState.

use agent::AgentView;
use agent::observed::ContainerId;
use agent::pod_spec::spec::Resources;
use k8s_openapi::api::core::v1::ContainerStatus;
use tokio::time::{MissedTickBehavior, interval};

use crate::NodeManagers;
use crate::cpu::set::format;

/// Reconciles all containers in each period. Never returns.
pub(crate) async fn run(managers: NodeManagers, agent: AgentView) {
    let mut ticks = interval(managers.0.reconcile_period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        once(&managers, &agent).await;
    }
}

async fn once(managers: &NodeManagers, agent: &AgentView) {
    for pod in agent.active_pods() {
        let status = agent.reports().borrow().get(pod.uid()).map(|report| report.status.clone());
        let Some(status) = status else {
            continue;
        };
        let lists = [&status.init_container_statuses, &status.container_statuses];
        for container in lists.into_iter().flatten().flatten() {
            if let Some(id) = running(container) {
                reconcile(managers, pod.uid().as_str(), &container.name, &id).await;
            }
        }
    }
}

/// The ID of a running container.
fn running(status: &ContainerStatus) -> Option<ContainerId> {
    status.state.as_ref()?.running.as_ref()?;
    let (_, id) = status.container_id.as_deref()?.split_once("://")?;
    Some(ContainerId::new(id))
}

async fn reconcile(managers: &NodeManagers, uid: &str, container: &str, id: &ContainerId) {
    let Some(cpus) = managers.0.cpus.pending_update(uid, container) else {
        return;
    };
    let limits = Resources { cpuset_cpus: format(&cpus), ..Resources::default() };
    match managers.0.cri.update_container(id, &limits).await {
        Ok(()) => managers.0.cpus.set_applied(uid, container, cpus),
        Err(error) => {
            let cpus = limits.cpuset_cpus;
            tracing::error!(pod = uid, container, cpus, %error, "failed to update the CPUs of a container");
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    #[rstest]
    #[case::running(json!({"running": {}}), Some("1"))]
    #[case::ended(json!({"terminated": {"exitCode": 0}}), None)]
    #[case::waiting(json!({"waiting": {}}), None)]
    fn containers_that_run_have_an_id(#[case] state: Value, #[case] id: Option<&str>) {
        let status = json!({"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0,
            "containerID": "crib://1", "state": state});
        let status: ContainerStatus = serde_json::from_value(status).unwrap();
        assert_eq!(running(&status), id.map(ContainerId::new));
    }
}
