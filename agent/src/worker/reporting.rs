//! Builds and publishes a worker's reports.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use api::pod::Pod;
use compact::Map;
use k8s_openapi::api::core::v1::{
    ContainerState as ApiState, ContainerStatus, PodStatus, ResourceStatus,
};

use super::Worker;
use crate::managers::claims::has_claims;
use crate::observed::{Observed, ObservedContainer};
use crate::reporting::causes::Causes;
use crate::reporting::report::transitions::Stage;
use crate::reporting::report::{ContainerPhase, ContainerReport, PodReport};
use crate::reporting::status::record::{is_same_but_for_times, recorded};
use crate::reporting::status::restarts::count_once;
use crate::reporting::status::transition::illegal_restart;
use crate::reporting::status::{Inputs, device_status, pod_status, shown_health};

/// The duration of each step of a container's last start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Timing {
    pub(super) pull: Option<Duration>,
    pub(super) create: Option<Duration>,
    pub(super) start: Option<Duration>,
}

/// The timings of a pod's containers.
#[derive(Clone, Debug, Default)]
pub(super) struct Timings {
    /// A list, because a map has room for eleven entries at least.
    by_container: Vec<(String, Timing)>,
}

impl Timings {
    pub(super) fn entry(&mut self, container: &str) -> &mut Timing {
        let mut known = self.by_container.iter();
        let known = known.position(|(name, _)| name == container);
        let place = known.unwrap_or_else(|| {
            let unknown = (container.to_owned(), Timing::default());
            self.by_container.push(unknown);
            self.by_container.len() - 1
        });
        &mut self.by_container[place].1
    }

    fn get(&self, container: &str) -> Timing {
        let mut known = self.by_container.iter();
        let known = known.find(|(name, _)| name == container);
        known.map(|(_, timing)| *timing).unwrap_or_default()
    }
}

/// Builds a pod's report from its status and the observed state.
#[must_use]
pub(crate) fn pod_report(
    pod: &Pod,
    status: &Arc<PodStatus>,
    observed: &Observed,
    timings: &Timings,
    stage: Stage,
) -> PodReport {
    let statuses: Map<&str, &ContainerStatus> = [
        &status.init_container_statuses,
        &status.container_statuses,
        &status.ephemeral_container_statuses,
    ]
    .into_iter()
    .flatten()
    .flatten()
    .map(|status| (status.name.as_str(), status))
    .collect();
    let containers = pod.all_containers().map(|(kind, container)| {
        let container_status = statuses.get(container.name.as_str());
        let seen = observed.container(&container.name);
        let timing = timings.get(&container.name);
        let (state, reason, message) = container_status
            .and_then(|container_status| container_status.state.as_ref())
            .map_or_else(waiting, describe_state);
        ContainerReport {
            name: container.name.clone(),
            kind,
            state,
            reason,
            message,
            exit_code: container_status.and_then(|container_status| exit_code(container_status)),
            refused: false,
            ready: container_status.is_some_and(|container_status| container_status.ready),
            restarts: container_status.map_or(0, |container_status| {
                u32::try_from(container_status.restart_count).unwrap_or(0)
            }),
            image: container.image.clone().unwrap_or_default(),
            container_id: seen.map(|seen| seen.id.to_string()).unwrap_or_default(),
            log_path: seen.and_then(|seen| seen.log_path.clone()),
            in_hook: None,
            pull: timing.pull,
            create: timing.create,
            start: timing.start,
        }
    });
    PodReport {
        uid: pod.uid().clone(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        status: Arc::clone(status),
        published: Arc::clone(status),
        finished: matches!(stage, Stage::Terminated | Stage::Removed),
        removed: stage == Stage::Removed,
        containers: containers.collect(),
    }
}

/// The id and the log of a running container.
fn running_log(seen: &ObservedContainer) -> Option<(String, PathBuf)> {
    let log = seen.log_path.clone().filter(|_| seen.state.is_running())?;
    Some((seen.id.to_string(), log))
}

fn waiting() -> (ContainerPhase, String, String) {
    (ContainerPhase::Waiting, String::new(), String::new())
}

fn describe_state(state: &ApiState) -> (ContainerPhase, String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => (ContainerPhase::Running, String::new(), String::new()),
        (None, Some(ended), _) => {
            (ContainerPhase::Terminated, text(&ended.reason), text(&ended.message))
        }
        (None, None, Some(waits)) => {
            (ContainerPhase::Waiting, text(&waits.reason), text(&waits.message))
        }
        (None, None, None) => waiting(),
    }
}

/// The latest termination: of the current state, or else of the last state.
fn exit_code(container_status: &ContainerStatus) -> Option<i32> {
    let ended = |state: &Option<ApiState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    ended(&container_status.state).or_else(|| ended(&container_status.last_state))
}

impl Worker {
    /// Logs, once, that the pod is already running, because an earlier agent started it.
    pub(super) fn log_adoption(&self, observed: &Observed) {
        if self.reported.last.is_none() && !observed.sandboxes.is_empty() {
            let running = observed.running().len();
            tracing::info!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), running, "adopted pod");
        }
    }

    /// Reports the pod's current state, with the last published status. Orphans are not reported.
    pub(super) fn report(&mut self, observed: &Observed, stage: Stage, causes: Causes) {
        let Some(pod) = self.pod.clone() else { return };
        let adjusted = self.as_reported(&pod, observed);
        let shown = adjusted.as_ref().unwrap_or(observed);
        let published = self.reported.published.status();
        // The first report continues from the published status, because a pod has one start time.
        let previous = self.reported.last.as_ref().or(self.reported.published.known());
        let status = self.status_of(&pod, shown, previous.map(Arc::as_ref), stage);
        // An idle pod keeps one status: the current one equals the published one, except for times.
        let status = if is_same_but_for_times(&status, &published) {
            Arc::clone(&published)
        } else {
            Arc::new(status)
        };
        let mut report = pod_report(&pod, &status, shown, &self.timings, stage);
        report.published = published;
        for container in &mut report.containers {
            if self.hooks.pending.contains(&container.name) {
                container.in_hook = observed.container(&container.name).and_then(running_log);
            }
            if container.state != ContainerPhase::Waiting {
                continue;
            }
            let begins =
                matches!(container.reason.as_str(), "ContainerCreating" | "PodInitializing");
            let of_pod = self.start_errors.of_pod().filter(|_| begins);
            if let Some(failed) = of_pod {
                container.reason.clone_from(&failed.error.reason);
                container.message.clone_from(&failed.error.message);
            }
            let failed = of_pod.or_else(|| self.start_errors.of(&container.name));
            container.refused = failed.is_some_and(|failed| failed.refused);
        }
        self.shared.status_store.publish(report, stage, causes);
        self.reported.last = Some(status);
    }

    /// The observed state as the status shows it, if that differs: a container counts as running once its postStart hook has
    /// succeeded, and the deadline is compared with the current time.
    fn as_reported(&self, pod: &Pod, observed: &Observed) -> Option<Observed> {
        let has_deadline = pod.spec().active_deadline_seconds.is_some();
        if self.hooks.pending.is_empty() && !has_deadline {
            return None;
        }
        let mut adjusted = observed.clone();
        adjusted.at = self.shared.clock.now();
        for name in &self.hooks.pending {
            adjusted.containers.retain(|seen| seen.name != *name || !seen.state.is_running());
        }
        Some(adjusted)
    }

    /// Reports the pod as removed, with its last reported status.
    pub(super) fn report_removed(&mut self) {
        let Some(pod) = &self.pod else {
            tracing::info!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), "removed orphaned pod");
            return;
        };
        let nothing = Observed::nothing(self.shared.clock.now());
        let stage = Stage::Removed;
        let unseen = pod_report(pod, &Arc::default(), &nothing, &self.timings, stage);
        let cause = Causes::pod("containers, sandboxes and directories were removed");
        self.shared.status_store.publish_removed(unseen, cause);
    }

    /// The status of the observed state, after `previous`.
    pub(super) fn status_of(
        &self,
        pod: &Pod,
        observed: &Observed,
        previous: Option<&PodStatus>,
        stage: Stage,
    ) -> PodStatus {
        let start_errors = pod
            .all_containers()
            .filter_map(|(_, container)| {
                Some((container.name.clone(), self.start_errors.of(&container.name)?.error.clone()))
            })
            .collect();
        let has_ended = matches!(stage, Stage::Terminated | Stage::Removed);
        let actuated = self.resizing.actuated.now();
        let mut status = pod_status(&Inputs {
            pod,
            observed,
            previous,
            start_errors: &start_errors,
            terminated: has_ended,
            probes_registered: self.probes.are_registered(),
            agent_started_at: Some(self.shared.started_at),
            node_ips: &self.shared.host_ips(),
            prefers_ipv6: self.shared.config.node_ips.first().is_some_and(|ip| ip.contains(':')),
            recursive_read_only: self.shared.has_recursive_read_only(pod),
            stop_signals: self.shared.config.container_stop_signals,
            features: self.shared.config.features,
            actuated: Some(&actuated),
            resize: Some(&self.resizing.conditions),
        });
        if let Some(previous) = previous {
            count_once(previous, &mut status);
        }
        for container in status.container_statuses.iter_mut().flatten() {
            container.allocated_resources_status = self.health_of(pod, &container.name);
        }
        if let Some(eviction) = &self.termination.eviction {
            eviction.record(pod, has_ended, &mut status);
        }
        if stage == Stage::Removed || !observed.is_empty() {
            // A removed status had them too (Kubernetes 1.36, pkg/kubelet/kubelet.go preserveDataFromBeforeStopping).
            let before = previous.or(self.reported.last.as_deref());
            keep_addresses(&mut status, before, observed);
        }
        if let Some(previous) = previous.or(pod.api().status.as_ref())
            && let Some(container) = illegal_restart(pod, previous, &status)
        {
            tracing::error!(pod = %pod.full_name(), container, "kept the last status: terminated container cannot return to a non-terminated state");
            return previous.clone();
        }
        recorded(pod, status, previous, self.shared.clock.now())
    }

    /// The health of the devices that a container has, of device plugins and of claims; `None`: it has none (Kubernetes 1.36, gates
    /// ResourceHealthStatus and ResourceHealthStatusMessage, pkg/kubelet/cm/container_manager_linux.go UpdateAllocatedResourcesStatus).
    fn health_of(&self, pod: &Pod, container: &str) -> Option<Vec<ResourceStatus>> {
        let mut statuses = device_status(self.shared.managers.health(self.uid(), container));
        let claims = self.shared.claim_manager.as_ref().filter(|_| has_claims(pod));
        let mut specs = pod.spec().containers.iter();
        if let Some(claims) = claims
            && let Some(spec) = specs.find(|spec| spec.name == container)
        {
            statuses.extend(claims.health(pod, spec));
        }
        shown_health(statuses, self.shared.config.features)
    }
}

/// Keeps the last addresses of a pod whose sandboxes have all ended, as long as the runtime has any part of it (Kubernetes 1.36,
/// pkg/kubelet/pleg/generic.go).
fn keep_addresses(status: &mut PodStatus, previous: Option<&PodStatus>, observed: &Observed) {
    let ready = observed.sandboxes.iter().any(|sandbox| sandbox.ready);
    if let Some(previous) = previous
        && !ready
        && status.pod_ips.is_none()
    {
        status.pod_ip.clone_from(&previous.pod_ip);
        status.pod_ips.clone_from(&previous.pod_ips);
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    #[test]
    fn ended_pod_keeps_its_last_address() {
        let previous = PodStatus {
            pod_ip: Some("10.0.0.7".to_owned()),
            pod_ips: Some(Vec::new()),
            ..PodStatus::default()
        };
        let ended = Observed::nothing(Timestamp::UNIX_EPOCH);
        let mut status = PodStatus::default();
        keep_addresses(&mut status, None, &ended);
        assert_eq!(status.pod_ip, None);
        keep_addresses(&mut status, Some(&previous), &ended);
        assert_eq!(status.pod_ip, previous.pod_ip);
    }
}
