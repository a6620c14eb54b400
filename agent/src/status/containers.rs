//! Container statuses.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus,
    VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::observed::{self, ContainerId, Observed, ObservedContainer};
use crate::plan::restart;
use crate::pod::{Pod, is_sidecar};
use crate::status::Inputs;

/// Whether an app container was created in the pod's current sandbox and that sandbox is still usable.
pub(super) fn has_initialized(pod: &Pod, observed: &Observed) -> bool {
    let Some(sandbox) = observed.sandboxes.first().filter(|sandbox| sandbox.ready) else {
        return false;
    };
    pod.containers().iter().any(|app| {
        let mut attempts = observed
            .containers
            .iter()
            .filter(|seen| seen.name == app.name);
        attempts.any(|seen| seen.sandbox_id == sandbox.id)
    })
}

/// Statuses of the app containers, by name.
pub(super) fn apps(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    let mut statuses = statuses(
        inputs,
        old.container_statuses.as_deref(),
        inputs.pod.containers(),
        false,
    );
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

/// Statuses of the init containers, in spec order.
pub(super) fn inits(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    statuses(
        inputs,
        old.init_container_statuses.as_deref(),
        inputs.pod.init_containers(),
        true,
    )
}

/// Statuses of the ephemeral containers, by name.
pub(super) fn ephemeral(inputs: &Inputs<'_>, old: &PodStatus) -> Vec<ContainerStatus> {
    let containers = inputs.pod.ephemeral_containers();
    let mut statuses = statuses(
        inputs,
        old.ephemeral_container_statuses.as_deref(),
        containers,
        false,
    );
    statuses.sort_by(|a, b| a.name.cmp(&b.name));
    statuses
}

fn statuses(
    inputs: &Inputs<'_>,
    old: Option<&[ContainerStatus]>,
    containers: &[Container],
    init: bool,
) -> Vec<ContainerStatus> {
    let old: BTreeMap<&str, &ContainerStatus> = old
        .into_iter()
        .flatten()
        .map(|status| (status.name.as_str(), status))
        .collect();
    let one = |container: &Container| {
        status(
            inputs,
            container,
            old.get(container.name.as_str()).copied(),
            init,
        )
    };
    containers.iter().map(one).collect()
}

fn status(
    inputs: &Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
    init: bool,
) -> ContainerStatus {
    let mut attempts = inputs
        .observed
        .containers
        .iter()
        .filter(|seen| seen.name == container.name);
    let mut status = match attempts.next() {
        Some(seen) => {
            let mut status = seen_status(inputs, seen, old);
            // Mounts do not change during a container's life: keep the ones reported before its creation.
            status.volume_mounts = old.and_then(|old| old.volume_mounts.clone());
            match attempts.next() {
                Some(before) => {
                    remember(&mut status, old);
                    status.last_state = seen_status(inputs, before, old).state;
                }
                None => remember(&mut status, old),
            }
            status
        }
        None if init
            && !is_sidecar(container)
            && apps_were_made(inputs)
            && (inputs.restarting_all || !has_ended(old)) =>
        {
            return forgotten_init(inputs, container, old);
        }
        None => unseen_status(inputs, container, old),
    };
    waits_instead(inputs, container, init, &mut status);
    status
}

fn has_ended(old: Option<&ContainerStatus>) -> bool {
    old.and_then(|old| old.state.as_ref())
        .is_some_and(|state| state.terminated.is_some())
}

/// The runtime has only the newest attempt; earlier ones are in the last status.
fn remember(status: &mut ContainerStatus, old: Option<&ContainerStatus>) {
    let Some(old) = old else { return };
    let replaced = old.container_id != status.container_id && has_ended(Some(old));
    status.last_state = if replaced {
        old.state.clone()
    } else {
        old.last_state.clone()
    };
    let runs = status
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some());
    status.restart_count = status
        .restart_count
        .max(old.restart_count + i32::from(replaced && runs));
}

fn container_id(inputs: &Inputs<'_>, id: &ContainerId) -> String {
    format!("{}://{id}", inputs.observed.runtime_name)
}

/// The status of an attempt that the runtime has.
fn seen_status(
    inputs: &Inputs<'_>,
    seen: &ObservedContainer,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let was_running = old
        .and_then(|old| old.state.as_ref())
        .is_some_and(|state| state.running.is_some());
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
            terminated(lost(
                "The container could not be located when the pod was terminated",
            ))
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
        // Kept until `ready` sets it.
        started: old.and_then(|old| old.started),
        user: seen.user.as_ref().map(|user| ContainerUser {
            linux: Some(LinuxContainerUser {
                uid: user.uid,
                gid: user.gid,
                supplemental_groups: (!user.supplemental_groups.is_empty())
                    .then(|| user.supplemental_groups.clone()),
            }),
        }),
        ..ContainerStatus::default()
    }
}

fn blank(container: &Container, state: ContainerState) -> ContainerStatus {
    ContainerStatus {
        name: container.name.clone(),
        image: container.image.clone().unwrap_or_default(),
        state: Some(state),
        volume_mounts: volume_mounts(container),
        ..ContainerStatus::default()
    }
}

/// The status of an init container that the runtime no longer has although app containers exist: it completed.
fn forgotten_init(
    inputs: &Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let message = "Unable to get init container status from container runtime and pod has been initialized, treat it as \
                   exited normally";
    let exit = ContainerStateTerminated {
        reason: filled("Completed"),
        message: filled(message),
        ..Default::default()
    };
    let mut status = blank(container, terminated(exit.clone()));
    if let Some(old) = old {
        if has_ended(Some(old)) {
            status = ContainerStatus {
                state: Some(terminated(exit)),
                ..old.clone()
            };
        }
        status.restart_count = old.restart_count;
        status.last_state = old.last_state.clone();
        if inputs.restarting_all {
            removed_for_restart(&mut status, old);
        } else {
            lost_while_running(inputs, &mut status, old);
        }
    }
    status
}

const RESTARTING: &str = "RestartingAllContainers";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";

/// A container that was removed because the whole pod restarts counts as killed.
fn removed_for_restart(status: &mut ContainerStatus, old: &ContainerStatus) {
    let old_state = old.state.clone().unwrap_or_default();
    let is_waiting = status
        .state
        .as_ref()
        .is_some_and(|state| state.waiting.is_some());
    if let Some(waiting) = &old_state.waiting {
        if is_waiting && waiting.reason.as_deref() == Some(RESTARTING) {
            status.state = Some(self::waiting(RESTARTING, REMOVED));
        }
        return;
    }
    if is_waiting {
        status.state = Some(waiting(RESTARTING, REMOVED));
    }
    status.last_state = Some(terminated(ContainerStateTerminated {
        exit_code: 137,
        reason: filled(RESTARTING),
        message: filled(REMOVED),
        ..Default::default()
    }));
    status.restart_count += 1;
}

/// The status of a container that the runtime does not have: not created yet, or removed.
fn unseen_status(
    inputs: &Inputs<'_>,
    container: &Container,
    old: Option<&ContainerStatus>,
) -> ContainerStatus {
    let reason = if inputs.pod.init_containers().is_empty() {
        "ContainerCreating"
    } else {
        "PodInitializing"
    };
    let mut status = blank(container, waiting(reason, ""));
    let Some(old) = old else { return status };
    if has_ended(Some(old)) {
        // It may have been removed since: keep its last status.
        status = old.clone();
    }
    status.restart_count = old.restart_count;
    status.last_state = old.last_state.clone();
    if inputs.restarting_all {
        removed_for_restart(&mut status, old);
    } else {
        lost_while_running(inputs, &mut status, old);
    }
    status
}

/// A container that was running in the last status and is gone has stopped; it must not look as if it never ran.
fn lost_while_running(inputs: &Inputs<'_>, status: &mut ContainerStatus, old: &ContainerStatus) {
    let was_running = old
        .state
        .as_ref()
        .is_some_and(|state| state.running.is_some());
    let had_ended = status
        .last_state
        .as_ref()
        .is_some_and(|last| last.terminated.is_some());
    if was_running && !had_ended {
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        status.last_state = Some(terminated(lost(message)));
        if !inputs.pod.is_deleted() {
            status.restart_count += 1;
        }
    }
}

/// Whether the runtime has an app container of the pod, in any state.
fn apps_were_made(inputs: &Inputs<'_>) -> bool {
    inputs
        .pod
        .containers()
        .iter()
        .filter_map(|app| inputs.observed.container(&app.name))
        .any(|seen| match seen.state {
            observed::ContainerState::Created
            | observed::ContainerState::Running { .. }
            | observed::ContainerState::Exited(_) => true,
            observed::ContainerState::Unknown => false,
        })
}

/// A container whose start failed is waiting, with the reason of the failure.
fn waits_instead(
    inputs: &Inputs<'_>,
    container: &Container,
    init: bool,
    status: &mut ContainerStatus,
) {
    let exit = inputs
        .observed
        .container(&container.name)
        .and_then(|seen| seen.state.exit());
    if init && exit.is_some_and(|exit| exit.code == 0) {
        return;
    }
    if !restart::should_start(inputs.pod, container, inputs.observed) {
        return;
    }
    let Some(error) = inputs.start_errors.get(&container.name) else {
        return;
    };
    if status
        .state
        .as_ref()
        .is_some_and(|state| state.terminated.is_some())
    {
        status.last_state = status.state.take();
    }
    status.state = Some(waiting(&error.reason, &error.message));
}

fn running(started_at: jiff::Timestamp) -> ContainerState {
    let running = ContainerStateRunning {
        started_at: Some(Time(started_at)),
    };
    ContainerState {
        running: Some(running),
        ..ContainerState::default()
    }
}

fn waiting(reason: &str, message: &str) -> ContainerState {
    let waiting = ContainerStateWaiting {
        reason: filled(reason),
        message: filled(message),
    };
    ContainerState {
        waiting: Some(waiting),
        ..ContainerState::default()
    }
}

fn terminated(exit: ContainerStateTerminated) -> ContainerState {
    ContainerState {
        terminated: Some(exit),
        ..ContainerState::default()
    }
}

/// The termination of a container whose exit was not observed.
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

fn volume_mounts(container: &Container) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container
        .volume_mounts
        .as_ref()
        .filter(|mounts| !mounts.is_empty())?;
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only,
        // Reported before the container is created, when no recursive mount exists yet.
        recursive_read_only: (mount.read_only == Some(true)).then(|| "Disabled".to_owned()),
        ..VolumeMountStatus::default()
    };
    Some(mounts.iter().map(one).collect())
}
