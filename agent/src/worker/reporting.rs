//! Builds and publishes a worker's reports.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerState as ApiState, ContainerStatus, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::Worker;
use crate::causes::Causes;
use crate::observed::Observed;
use crate::pod::Pod;
use crate::report::transitions::Stage;
use crate::report::{ContainerPhase, ContainerReport, PodReport};
use crate::status::{Inputs, pod_status};

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
    by_container: BTreeMap<String, Timing>,
}

impl Timings {
    pub(super) fn entry(&mut self, name: &str) -> &mut Timing {
        self.by_container.entry(name.to_owned()).or_default()
    }
}

/// Builds a pod's report from its status and the observed state.
#[must_use]
pub(super) fn pod_report(
    pod: &Pod,
    status: &PodStatus,
    observed: &Observed,
    timings: &Timings,
    stage: Stage,
) -> PodReport {
    let statuses: BTreeMap<&str, &ContainerStatus> = [
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
        let said = statuses.get(container.name.as_str());
        let seen = observed.container(&container.name);
        let timing = timings
            .by_container
            .get(&container.name)
            .copied()
            .unwrap_or_default();
        let (state, reason, message) = said
            .and_then(|said| said.state.as_ref())
            .map_or_else(waiting, in_words);
        ContainerReport {
            name: container.name.clone(),
            kind,
            state,
            reason,
            message,
            exit_code: said.and_then(|said| exit_code(said)),
            refused: false,
            restarts: said.map_or(0, |said| u32::try_from(said.restart_count).unwrap_or(0)),
            image: container.image.clone().unwrap_or_default(),
            container_id: seen.map(|seen| seen.id.to_string()).unwrap_or_default(),
            log_path: seen.and_then(|seen| seen.log_path.clone()),
            pull: timing.pull,
            create: timing.create,
            start: timing.start,
        }
    });
    PodReport {
        uid: pod.uid().clone(),
        namespace: pod.namespace().to_owned(),
        name: pod.name().to_owned(),
        status: status.clone(),
        finished: matches!(stage, Stage::Terminated | Stage::Removed),
        removed: stage == Stage::Removed,
        containers: containers.collect(),
    }
}

fn waiting() -> (ContainerPhase, String, String) {
    (ContainerPhase::Waiting, String::new(), String::new())
}

fn in_words(state: &ApiState) -> (ContainerPhase, String, String) {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    match (&state.running, &state.terminated, &state.waiting) {
        (Some(_), _, _) => (ContainerPhase::Running, String::new(), String::new()),
        (None, Some(ended), _) => (
            ContainerPhase::Terminated,
            text(&ended.reason),
            text(&ended.message),
        ),
        (None, None, Some(waits)) => (
            ContainerPhase::Waiting,
            text(&waits.reason),
            text(&waits.message),
        ),
        (None, None, None) => waiting(),
    }
}

/// The latest termination: of the current state, or else of the last state.
fn exit_code(said: &ContainerStatus) -> Option<i32> {
    let ended = |state: &Option<ApiState>| Some(state.as_ref()?.terminated.as_ref()?.exit_code);
    ended(&said.state).or_else(|| ended(&said.last_state))
}

impl Worker {
    /// Reports the pod's present state. Orphans are not reported.
    pub(super) fn report(&mut self, observed: &Observed, stage: Stage, causes: Causes) {
        let Some(pod) = self.pod.clone() else { return };
        let status = self.status_of(&pod, observed, stage);
        let mut report = pod_report(&pod, &status, observed, &self.timings, stage);
        for container in &mut report.containers {
            let deferral = self.start_backoff.of(&container.name);
            container.refused = container.state == ContainerPhase::Waiting
                && deferral.is_some_and(|deferral| deferral.refused);
        }
        self.shared
            .status_store
            .publish(report.clone(), stage, causes);
        self.last = Some(report);
    }

    /// Reports the pod as removed, with its last reported status.
    pub(super) fn report_removed(&mut self) {
        let Some(pod) = &self.pod else {
            tracing::info!(pod = %format_args!("{}/{}", self.pod_ref.namespace, self.pod_ref.name), "removed orphaned pod");
            return;
        };
        // A pod that was never observed was never reported.
        let last = self.last.take().unwrap_or_else(|| {
            let nothing = Observed::nothing(self.shared.clock.now());
            pod_report(
                pod,
                &PodStatus::default(),
                &nothing,
                &self.timings,
                Stage::Removed,
            )
        });
        let report = PodReport {
            finished: true,
            removed: true,
            ..last
        };
        self.shared.status_store.publish(
            report,
            Stage::Removed,
            Causes::pod("containers, sandboxes and directories were removed"),
        );
    }

    fn status_of(&self, pod: &Pod, observed: &Observed, stage: Stage) -> PodStatus {
        let previous = self.last.as_ref().map(|last| &last.status);
        let start_errors = pod
            .all_containers()
            .filter_map(|(_, container)| {
                Some((
                    container.name.clone(),
                    self.start_backoff.of(&container.name)?.error.clone(),
                ))
            })
            .collect();
        let status = pod_status(&Inputs {
            pod,
            observed,
            previous,
            start_errors: &start_errors,
            terminated: matches!(stage, Stage::Terminated | Stage::Removed),
            restarting_all: self.history.restart_all,
            // Probes are not implemented: a running container counts as started and ready.
            probes_registered: false,
            agent_started_at: Some(self.shared.started_at),
            node_ips: &self.shared.config.node_ips,
        });
        stamped(status, previous, self.shared.clock.now())
    }
}

/// Sets the times that only the reporter knows: each condition's last transition, and when the pod was first seen.
fn stamped(mut status: PodStatus, previous: Option<&PodStatus>, now: Timestamp) -> PodStatus {
    for condition in status.conditions.iter_mut().flatten() {
        let before = previous
            .and_then(|previous| previous.conditions.as_ref())
            .and_then(|before| before.iter().find(|before| before.type_ == condition.type_))
            .filter(|before| before.status == condition.status);
        condition.last_transition_time = match before {
            Some(before) => before.last_transition_time.clone(),
            None => Some(Time(now)),
        };
    }
    status.start_time = previous
        .and_then(|previous| previous.start_time.clone())
        .or(Some(Time(now)));
    status
}
