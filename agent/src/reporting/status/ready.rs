//! Computes which containers are started and ready.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/prober/prober_manager.go UpdatePodStatus.

use api::pod::is_sidecar;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodStatus};

use crate::observed::{ContainerId, ProbeResult, ProbeResults};
use crate::reporting::status::Inputs;

/// A container that started this long before the agent was started by an earlier agent.
const EARLIER_AGENT: SignedDuration = SignedDuration::from_secs(10);

/// Sets `started` and `ready`: from the probes if there are any, or else from whether the container runs.
pub(super) fn mark_ready(inputs: &Inputs<'_>, status: &mut PodStatus) {
    for (statuses, containers, init) in [
        (&mut status.container_statuses, inputs.pod.containers(), false),
        (&mut status.init_container_statuses, inputs.pod.init_containers(), true),
    ] {
        for status in statuses.iter_mut().flatten() {
            let Some(container) = containers.iter().find(|container| container.name == status.name)
            else {
                continue;
            };
            let state = status.state.clone().unwrap_or_default();
            let started = state.running.is_some() && is_started(inputs, container, status);
            status.started = Some(started);
            if init && !is_sidecar(container) {
                if state.terminated.is_some_and(|exit| exit.exit_code == 0) {
                    status.ready = true;
                }
            } else if started {
                let since = state.running.and_then(|running| running.started_at);
                status.ready = is_ready(inputs, container, status, since.map(|time| time.0));
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
    id.and_then(|id| inputs.observed.probes.get(&id)).copied().unwrap_or_default()
}

/// Whether a running container has started: its startup probe succeeded, it had started before, or it has no such probe.
fn is_started(inputs: &Inputs<'_>, container: &Container, status: &ContainerStatus) -> bool {
    match results(inputs, status).startup {
        Some(result) => result == ProbeResult::Success,
        None if status.started == Some(true) => true,
        None => container.startup_probe.is_none() || !inputs.probes_registered,
    }
}

/// Whether a started container is ready: its readiness probe succeeded, or it has no such probe.
fn is_ready(
    inputs: &Inputs<'_>,
    container: &Container,
    status: &ContainerStatus,
    since: Option<Timestamp>,
) -> bool {
    let readiness = results(inputs, status).readiness;
    if readiness == Some(ProbeResult::Success) || container.readiness_probe.is_none() {
        return true;
    }
    let outlived_agent = since
        .zip(inputs.agent_started_at)
        .is_some_and(|(since, agent)| agent.duration_since(since) > EARLIER_AGENT);
    if !outlived_agent {
        return !inputs.probes_registered;
    }
    // An earlier agent probed it: the API server's status of the pod stays valid until it is probed again.
    let reported = inputs.pod.api().status.as_ref();
    let was_ready = reported
        .and_then(|status| status.conditions.as_ref())
        .into_iter()
        .flatten()
        .any(|condition| condition.type_ == "Ready" && condition.status == "True");
    was_ready && (readiness.is_none() || !inputs.probes_registered)
}
