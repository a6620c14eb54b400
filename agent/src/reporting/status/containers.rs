//! Container statuses.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go convertToAPIContainerStatuses.

use api::pod::{Pod, is_sidecar};
use compact::Map;
use k8s_openapi::api::core::v1::{
    Container, ContainerState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, ContainerUser, LinuxContainerUser, PodStatus,
    VolumeMount, VolumeMountStatus,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use crate::decide::plan::restart;
use crate::observed::{self, Observed, ObservedContainer};
use crate::reporting::status::{Inputs, resources};

/// Whether an app container was created in the pod's current sandbox and that sandbox is still usable.
pub(super) fn has_initialized(pod: &Pod, observed: &Observed) -> bool {
    let Some(sandbox) = observed.sandboxes.first().filter(|sandbox| sandbox.ready) else {
        return false;
    };
    pod.containers().iter().any(|app| {
        let mut attempts = observed.containers.iter().filter(|seen| seen.name == app.name);
        attempts.any(|seen| seen.sandbox_id == sandbox.id)
    })
}

/// Statuses of the app containers, by name.
pub(super) fn apps(inputs: &Inputs<'_>, old: &PodStatus, restarting: bool) -> Vec<ContainerStatus> {
    let mut statuses = statuses(
        inputs,
        old.container_statuses.as_deref(),
        inputs.pod.containers(),
        false,
        restarting,
    );
    compact::sort_by(&mut statuses, |a, b| a.name.cmp(&b.name));
    statuses
}

/// Statuses of the init containers, in spec order.
pub(super) fn inits(
    inputs: &Inputs<'_>,
    old: &PodStatus,
    restarting: bool,
) -> Vec<ContainerStatus> {
    statuses(
        inputs,
        old.init_container_statuses.as_deref(),
        inputs.pod.init_containers(),
        true,
        restarting,
    )
}

/// Statuses of the ephemeral containers, by name.
pub(super) fn ephemeral(
    inputs: &Inputs<'_>,
    old: &PodStatus,
    restarting: bool,
) -> Vec<ContainerStatus> {
    let containers = inputs.pod.ephemeral_containers();
    let mut statuses = statuses(
        inputs,
        old.ephemeral_container_statuses.as_deref(),
        containers,
        false,
        restarting,
    );
    compact::sort_by(&mut statuses, |a, b| a.name.cmp(&b.name));
    statuses
}

fn statuses(
    inputs: &Inputs<'_>,
    old: Option<&[ContainerStatus]>,
    containers: &[Container],
    init: bool,
    restarting: bool,
) -> Vec<ContainerStatus> {
    let old: Map<&str, &ContainerStatus> =
        old.into_iter().flatten().map(|status| (status.name.as_str(), status)).collect();
    let one = |container: &Container| {
        let conversion = Conversion {
            inputs,
            container,
            old: old.get(container.name.as_str()).copied(),
            restarting,
        };
        conversion.status(init)
    };
    containers.iter().map(one).collect()
}

/// The inputs of one container's status.
struct Conversion<'a> {
    inputs: &'a Inputs<'a>,
    container: &'a Container,
    /// The previous status of the container.
    old: Option<&'a ContainerStatus>,
    /// Whether a RestartAllContainers rule is restarting the whole pod.
    restarting: bool,
}

/// The message of an init container that the runtime no longer has although app containers exist.
pub(super) const COMPLETED_UNSEEN: &str = "Unable to get init container status from container runtime and pod has been \
                                           initialized, treat it as exited normally";
/// The reason of a container that is removed because the whole pod restarts.
pub(super) const RESTARTING: &str = "RestartingAllContainers";
const REMOVED: &str = "The container is removed because RestartAllContainers in place";

impl Conversion<'_> {
    fn status(&self, init: bool) -> ContainerStatus {
        let mut attempts =
            self.inputs.observed.containers.iter().filter(|seen| seen.name == self.container.name);
        let mut status = match attempts.next() {
            Some(newest) => {
                let mut status = self.seen(newest);
                if let Some(before) = attempts.next() {
                    status.last_state = self.seen(before).state;
                }
                status
            }
            None => self.unseen(),
        };
        if init && self.completed_unseen(&status) {
            status.state = Some(terminated(ContainerStateTerminated {
                reason: filled("Completed"),
                message: filled(COMPLETED_UNSEEN),
                ..ContainerStateTerminated::default()
            }));
        } else {
            self.wait_instead(init, &mut status);
        }
        status
    }

    fn old_state(&self) -> ContainerState {
        self.old.and_then(|old| old.state.clone()).unwrap_or_default()
    }

    /// The status of an attempt that exists in the runtime.
    fn seen(&self, seen: &ObservedContainer) -> ContainerStatus {
        let id = format!("{}://{}", self.inputs.observed.runtime_name, seen.id);
        let reported = i32::try_from(seen.restart_count).unwrap_or(i32::MAX);
        let old_state = self.old_state();
        let mut restarts = reported.max(self.old.map_or(0, |old| old.restart_count));
        // RestartAllContainers removes earlier attempts from the runtime, so only the previous status has them.
        let last_exit = self.old.and_then(|old| {
            let replaced = old.container_id.as_ref() != Some(&id);
            let last = old.last_state.as_ref().and_then(|last| last.terminated.clone());
            old_state.terminated.clone().filter(|_| replaced).or(last)
        });
        let state = match &seen.state {
            observed::ContainerState::Running { started_at } => {
                if let Some(old) = self.old
                    && old_state.terminated.is_some()
                    && old.restart_count >= reported
                {
                    restarts = old.restart_count.saturating_add(1);
                }
                running(*started_at)
            }
            observed::ContainerState::Exited(exit) => terminated(ContainerStateTerminated {
                container_id: Some(id.clone()),
                exit_code: exit.code,
                finished_at: Some(Time(exit.finished_at)),
                message: filled(&exit.message),
                reason: filled(&exit.reason),
                signal: None,
                started_at: exit.started_at.map(Time),
            }),
            observed::ContainerState::Unknown if old_state.running.is_some() => {
                restarts = self.old.map_or(restarts, |old| old.restart_count.saturating_add(1));
                let reason = if self.restarting { RESTARTING } else { LOST };
                terminated(killed(reason, NOT_LOCATED))
            }
            observed::ContainerState::Created | observed::ContainerState::Unknown => {
                waiting("", "")
            }
        };
        ContainerStatus {
            name: seen.name.clone(),
            restart_count: restarts,
            image: seen.image.clone(),
            image_id: seen.image_ref.clone(),
            container_id: Some(id.clone()),
            last_state: last_exit.map(terminated),
            // A running container that had started keeps `started` until `ready` has probe results.
            started: self.old.filter(|_| seen.state.is_running()).and_then(|old| old.started),
            state: Some(state),
            user: seen.user.as_ref().map(user),
            stop_signal: seen
                .stop_signal
                .as_deref()
                .filter(|_| self.inputs.stop_signals)
                .map(str::to_owned),
            resources: Some(resources::of_container(
                self.container,
                seen,
                self.old.filter(|old| {
                    old_state.running.is_some() && old.container_id.as_ref() == Some(&id)
                }),
                self.inputs.actuated.map(|actuated| actuated.container(&self.container.name)),
            )),
            allocated_resources: self
                .container
                .resources
                .as_ref()
                .and_then(|resources| resources.requests.clone()),
            // Mounts do not change during a container's life: keep the ones reported before its creation.
            volume_mounts: self.old.and_then(|old| old.volume_mounts.clone()),
            ..ContainerStatus::default()
        }
    }

    /// The status of a container that the runtime does not have: not created yet, or removed.
    fn unseen(&self) -> ContainerStatus {
        let reason = if self.inputs.pod.init_containers().is_empty() {
            "ContainerCreating"
        } else {
            "PodInitializing"
        };
        let blank = ContainerStatus {
            name: self.container.name.clone(),
            image: self.container.image.clone().unwrap_or_default(),
            state: Some(waiting(reason, "")),
            volume_mounts: volume_mounts(self.container, self.inputs.recursive_read_only),
            ..ContainerStatus::default()
        };
        let Some(old) = self.old else { return blank };
        let old_state = self.old_state();
        let mut status = if old_state.terminated.is_some() {
            old.clone()
        } else {
            ContainerStatus {
                restart_count: old.restart_count,
                last_state: old.last_state.clone(),
                ..blank
            }
        };
        if self.restarting && old_state.waiting.is_none() {
            // It was removed because the whole pod restarts, and counts as killed.
            status.state = Some(waiting(RESTARTING, REMOVED));
            let last = status.last_state.get_or_insert_default();
            last.terminated = Some(killed(RESTARTING, REMOVED));
            status.restart_count = old.restart_count.saturating_add(1);
        } else if old_state.terminated.is_none() && old_state.running.is_some() {
            self.note_loss(&mut status);
        }
        status
    }

    /// A container that was running in the previous status and no longer exists has stopped; it must not appear as never started.
    fn note_loss(&self, status: &mut ContainerStatus) {
        let last = status.last_state.get_or_insert_default();
        if last.terminated.is_some() {
            return;
        }
        let message = "The container could not be located when the pod was deleted.  The container used to be Running";
        last.terminated = Some(killed(LOST, message));
        if !self.inputs.pod.is_deleted() {
            status.restart_count = status.restart_count.saturating_add(1);
        }
    }

    /// Whether the runtime no longer has this init container although app containers exist: it has completed.
    fn completed_unseen(&self, status: &ContainerStatus) -> bool {
        let is_waiting = status.state.as_ref().is_some_and(|state| state.waiting.is_some());
        is_waiting
            && !is_sidecar(self.container)
            && self.inputs.observed.container(&self.container.name).is_none()
            && apps_were_made(self.inputs)
    }

    /// A container whose start failed is waiting, with the reason of the failure.
    fn wait_instead(&self, init: bool, status: &mut ContainerStatus) {
        let exit =
            self.inputs.observed.container(&self.container.name).and_then(|seen| seen.state.exit());
        if init && exit.is_some_and(|exit| exit.code == 0) {
            return;
        }
        if !restart::should_start(self.inputs.pod, self.container, self.inputs.observed) {
            return;
        }
        let Some(error) = self.inputs.start_errors.get(&self.container.name) else {
            return;
        };
        if status.state.as_ref().is_some_and(|state| state.terminated.is_some()) {
            status.last_state = status.state.take();
        }
        status.state = Some(waiting(&error.reason, &error.message));
    }
}

/// Whether the runtime has an app container of the pod, in any state.
fn apps_were_made(inputs: &Inputs<'_>) -> bool {
    inputs.pod.containers().iter().filter_map(|app| inputs.observed.container(&app.name)).any(
        |seen| match seen.state {
            observed::ContainerState::Created
            | observed::ContainerState::Running { .. }
            | observed::ContainerState::Exited(_) => true,
            observed::ContainerState::Unknown => false,
        },
    )
}

fn user(seen: &observed::ContainerUser) -> ContainerUser {
    ContainerUser {
        linux: Some(LinuxContainerUser {
            uid: seen.uid,
            gid: seen.gid,
            supplemental_groups: (!seen.supplemental_groups.is_empty())
                .then(|| seen.supplemental_groups.clone()),
        }),
    }
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

/// The reason of an exit that was not observed.
const LOST: &str = "ContainerStatusUnknown";

const NOT_LOCATED: &str = "The container could not be located when the pod was terminated";

/// The termination of a container of a terminated pod, if its exit is unknown.
pub(super) fn lost() -> ContainerStateTerminated {
    killed(LOST, NOT_LOCATED)
}

/// The termination of a container that was killed, or no longer exists.
fn killed(reason: &str, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: filled(reason),
        message: filled(message),
        ..ContainerStateTerminated::default()
    }
}

fn filled(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn volume_mounts(container: &Container, recursive: bool) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|mounts| !mounts.is_empty())?;
    let one = |mount: &VolumeMount| VolumeMountStatus {
        name: mount.name.clone(),
        mount_path: mount.mount_path.clone(),
        read_only: mount.read_only.filter(|read_only| *read_only),
        recursive_read_only: (mount.read_only == Some(true)).then(|| {
            let is = recursive && requests_recursive_read_only(mount);
            if is { "Enabled" } else { "Disabled" }.to_owned()
        }),
        ..VolumeMountStatus::default()
    };
    Some(mounts.iter().map(one).collect())
}

/// Whether a read-only mount must be recursive if the runtime supports it.
fn requests_recursive_read_only(mount: &VolumeMount) -> bool {
    let is_private =
        mount.mount_propagation.as_deref().is_none_or(|propagation| propagation == "None");
    is_private && matches!(mount.recursive_read_only.as_deref(), Some("IfPossible" | "Enabled"))
}
