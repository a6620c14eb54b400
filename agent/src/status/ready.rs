//! Computes which containers are started and ready.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/prober/prober_manager.go UpdatePodStatus.

use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use crate::observed::{ContainerId, ProbeResult, ProbeResults};
use crate::pod::is_sidecar;
use crate::status::Inputs;

/// Sets `started` and `ready`: from the probes if there are any, or else from whether the container runs.
pub(super) fn mark_ready(inputs: &Inputs<'_>, old: &PodStatus, status: &mut PodStatus) {
    for (statuses, known, containers, init) in [
        (
            &mut status.container_statuses,
            &old.container_statuses,
            inputs.pod.containers(),
            false,
        ),
        (
            &mut status.init_container_statuses,
            &old.init_container_statuses,
            inputs.pod.init_containers(),
            true,
        ),
    ] {
        for status in statuses.iter_mut().flatten() {
            let Some(container) = containers
                .iter()
                .find(|container| container.name == status.name)
            else {
                continue;
            };
            let known = known
                .iter()
                .flatten()
                .find(|known| known.name == status.name);
            let state = status.state.clone().unwrap_or_default();
            let started = state.running.is_some() && is_started(inputs, container, status, known);
            status.started = Some(started);
            if init && !is_sidecar(container) {
                if state.terminated.is_some_and(|exit| exit.exit_code == 0) {
                    status.ready = true;
                }
            } else if started {
                let since = state
                    .running
                    .and_then(|running| running.started_at)
                    .map(|time| time.0);
                status.ready = is_ready(inputs, container, status, old, since);
            }
        }
    }
}

fn results(inputs: &Inputs<'_>, status: &ContainerStatus) -> ProbeResults {
    let id = status
        .container_id
        .as_deref()
        .and_then(|id| id.split_once("://"))
        .map(|(_, id)| ContainerId::new(id));
    id.and_then(|id| inputs.observed.probes.get(&id))
        .copied()
        .unwrap_or_default()
}

/// Whether a running container has started: its startup probe succeeded, or none is run.
fn is_started(
    inputs: &Inputs<'_>,
    container: &Container,
    status: &ContainerStatus,
    known: Option<&ContainerStatus>,
) -> bool {
    match results(inputs, status).startup {
        Some(result) => result == ProbeResult::Success,
        None if container.startup_probe.is_some() && inputs.probes_registered => {
            known.is_some_and(|known| known.started == Some(true))
        }
        None => true,
    }
}

/// Whether a started container is ready: its readiness probe succeeded, or none is run.
fn is_ready(
    inputs: &Inputs<'_>,
    container: &Container,
    status: &ContainerStatus,
    old: &PodStatus,
    since: Option<jiff::Timestamp>,
) -> bool {
    if results(inputs, status).readiness == Some(ProbeResult::Success) {
        return true;
    }
    if container.readiness_probe.is_none() {
        return true;
    }
    if since
        .zip(inputs.agent_started_at)
        .is_some_and(|(since, agent)| since < agent)
    {
        // The container is older than this agent: keep its readiness until it is probed again.
        return old
            .conditions
            .iter()
            .flatten()
            .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    }
    !inputs.probes_registered
}
