//! Statuses of containers.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses, pkg/kubelet/prober/prober_manager.go.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
    ContainerUser, LinuxContainerUser, PodStatus, VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{self, ContainerId, Observed, ObservedContainer, ProbeResult};
use crate::plan::restart;
use crate::pod::{Pod, is_sidecar};
use crate::status::Inputs;

/// Has an app container been made in the pod's current sandbox, and not ended?
pub(super) fn has_initialized(pod: &Pod, observed: &Observed) -> bool {
    let Some(sandbox) = observed.sandboxes.first() else { return false };
    pod.containers().iter().any(|app| {
        let mut attempts = observed.containers.iter().filter(|seen| seen.name == app.name);
        attempts.any(|seen| seen.sandbox_id == sandbox.id)
    })
}

/// Statuses of the app containers, by name.
pub(super) fn apps(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    let mut statuses = statuses(inputs, old.container_statuses.as_deref(), inputs.pod.containers(), false);
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// Statuses of the init containers, in spec order.
pub(super) fn inits(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    statuses(inputs, old.init_container_statuses.as_deref(), inputs.pod.init_containers(), true)
}

/// Statuses of the ephemeral containers, by name.
pub(super) fn ephemeral(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    let containers = inputs.pod.ephemeral_containers();
    let mut statuses = statuses(inputs, old.ephemeral_container_statuses.as_deref(), containers, false);
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

fn statuses(
    inputs: &Inputs<'_>,
    old: Option<&[ContainerStatus]>,
    containers: &[Container],
    init: bool,
) -> Vec<ContainerStatus> {
    let old: BTreeMap<&str, &ContainerStatus> =
        old.into_iter().flatten().map(|status| (status.name.as_str(), status)).collect();
    let one = |container: &Container| status(inputs, container, old.get(container.name.as_str()).copied(), init);
    containers.iter().map(one).collect()
}

fn status(inputs: &Inputs<'_>, container: &Container, old: Option<&ContainerStatus>, init: bool) -> ContainerStatus {
    let mut attempts = inputs.observed.containers.iter().filter(|seen| seen.name == container.name);
    let mut status = match attempts.next() {
        Some(seen) => {
            let mut status = seen_status(inputs, seen, old);
            status.volume_mounts = volume_mounts(inputs, container);
            status.last_state = match attempts.next() {
                Some(before) => seen_status(inputs, before, old).state,
                None => None,
            };
            status
        }
        None => unseen_status(inputs, container, old, init),
    };
    waits_instead(inputs, container, init, &mut status);
    status
}

fn container_id(inputs: &Inputs<'_>, id: &ContainerId) -> String {
    format!("{}://{id}", inputs.observed.runtime_name)
}

/// The status of one attempt that the runtime knows.
fn seen_status(inputs: &Inputs<'_>, seen: &ObservedContainer, old: Option<&ContainerStatus>) -> ContainerStatus {
    let was_running = old.and_then(|old| old.state.as_ref()).is_some_and(|state| state.running.is_some());
    let mut restarts = i32::try_from(seen.restart_count).unwrap_or(i32::MAX);
    let state = match &seen.state {
        observed::ContainerState::Running { started_at } => running(*started_at),
        observed::ContainerState::Exited(exit) => terminated(ContainerStateTerminated {
            container_id: Some(container_id(inputs, &seen.id)),
            exit_code: exit.code,
            finished_at: Some(Time(exit.finished_at)),
            message: filled(&exit.message),
            reason: filled(&exit.reason),
            signal: None,
            started_at: exit.started_at.map(Time),
        }),
        observed::ContainerState::Unknown if was_running => {
            restarts = old.map_or(restarts, |old| old.restart_count + 1);
            terminated(lost("The container could not be located when the pod was terminated"))
        }
        observed::ContainerState::Created | observed::ContainerState::Unknown => waiting("", ""),
    };
    ContainerStatus {
        name: seen.name.clone(),
        restart_count: restarts,
        image: seen.image.clone(),
        image_id: seen.image_ref.clone(),
        container_id: Some(container_id(inputs, &seen.id)),
        state: Some(state),
        user: seen.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: (!user.supplemental_groups.is_empty()).then(|| user.supplemental_groups.clone()),
            }),
        }),
        ..ContainerStatus::default()
    }
}

/// The status of a container that the runtime does not know: not made yet, or forgotten.
fn unseen_status(
    inputs: &Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
    init: bool,
) -> ContainerStatus {
    let reason = if inputs.pod.init_containers().is_empty() { "ContainerCreating" } else { "PodInitializing" };
    let mut status = ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(waiting(reason, "")),
        volume_mounts: volume_mounts(inputs, container),
        ..ContainerStatus::default()
    };
    let Some(old) = old else { return status };
    let old_state = old.state.clone().unwrap_or_default();
    if init && old_state.terminated.is_some() {
        // Ended init containers may be removed at any time; what was known of them stays known.
        return old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    let had_ended = status.last_state.as_ref().is_some_and(|last| last.terminated.is_some());
    if old_state.running.is_some() && !had_ended {
        // It ran and is gone: it has stopped, and must not look as if it had never been.
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(terminated(lost(message)));
        if !inputs.pod.is_deleted() {
            status.restart_count += 1;
        }
    }
    status
}

/// A container that is to be started and could not be is waiting, for the reason that was found.
fn waits_instead(inputs: &Inputs<'_>, container: &Container, init: bool, status: &mut ContainerStatus) {
    let exit = inputs.observed.container(&container.name).and_then(|seen| seen.state.exit());
    if init && exit.is_some_and(|exit| exit.code == 0) {
        return;
    }
    if !restart::should_start(inputs.pod, container, inputs.observed) {
        return;
    }
    let Some(error) = inputs.start_errors.get(&container.name) else { return };
    if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&error.reason, &error.message));
}

fn running(started_at: jiff::Timestamp) -> ContainerState {
    let running = ContainerStateRunning { started_at: Some(Time(started_at)) };
    ContainerState { running: Some(running), ..ContainerState::default() }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting { reason: filled(reason), message: filled(message) };
    ContainerState { waiting: Some(waiting), ..ContainerState::default() }
}

fn terminated(exit: ContainerStateTerminated) -> ContainerState {
    ContainerState { terminated: Some(exit), ..ContainerState::default() }
}

/// The end of a container that nobody saw end.
fn lost(message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: filled("ContainerStatusUnknown"),
        message: filled(message),
        ..ContainerStateTerminated::default()
    }
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn volume_mounts(inputs: &Inputs<'_>, container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        recursive_read_only: (mount.read_only == Some(true)).then(|| {
            let recursive = match mount.recursive_read_only.as_deref() {
                Some("Enabled") => true,
                Some("IfPossible") => inputs.recursive_read_only,
                Some(_) | None => false,
            };
            if recursive { "Enabled" } else { "Disabled" }.to_owned()
        }),
        ..VolumeMountStatus::default()
    };
    Some(mounts.iter().map(one).collect())
}

/// Which probe of a container is meant.
#[derive(Clone, Copy)]
enum Probe {
    Startup,
    Readiness,
}

/// Sets `started` and `ready`: by the probes where there are any, else by whether it runs.
pub(super) fn mark_ready(inputs: &Inputs<'_>, status: &mut PodStatus) {
    for (statuses, containers, init) in [
        (&mut status.container_statuses, inputs.pod.containers(), false),
        (&mut status.init_container_statuses, inputs.pod.init_containers(), true),
    ] {
        for status in statuses.iter_mut().flatten() {
            let Some(container) = containers.iter().find(|container| container.name == status.name) else { continue };
            let state = status.state.clone().unwrap_or_default();
            let runs = state.running.is_some();
            let started = runs && passed(inputs, container, status, Probe::Startup);
            status.started = Some(started);
            if init && !is_sidecar(container) {
                if state.terminated.is_some_and(|exit| exit.exit_code == 0) {
                    status.ready = true;
                }
            } else if started {
                status.ready = passed(inputs, container, status, Probe::Readiness);
            }
        }
    }
}

/// Has the probe succeeded, or is there none to succeed?
fn passed(inputs: &Inputs<'_>, container: &Container, status: &ContainerStatus, probe: Probe) -> bool {
    let id = status.container_id.as_deref().and_then(|id| id.split_once("://")).map(|(_, id)| ContainerId::new(id));
    let results = id.and_then(|id| inputs.observed.probes.get(&id)).copied().unwrap_or_default();
    let (result, exists) = match probe {
        Probe::Startup => (results.startup, container.startup_probe.is_some()),
        Probe::Readiness => (results.readiness, container.readiness_probe.is_some()),
    };
    let is_probed = exists && inputs.probes_registered;
    match (probe, result) {
        (_, Some(ProbeResult::Success)) => true,
        (Probe::Startup, Some(_)) => false,
        (Probe::Readiness, Some(_)) | (_, None) => !is_probed,
    }
}
