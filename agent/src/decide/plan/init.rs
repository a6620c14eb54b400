//! ◆ Decides the next init container, and which sidecars to restart.
//!
//! Exited init containers may have been removed, so the search goes backwards: the last init container that the runtime still has
//! is the current one, and all before it are done. An app container that was created or is running means that initialization is
//! complete. (An exited one does not: it may have exited before a reboot.)
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_container.go computeInitContainerActions.

use api::pod::{Pod, is_sidecar};
use k8s_openapi::api::core::v1::Container;

use crate::decide::plan::resize::{Outcome, Resize};
use crate::decide::plan::{Kill, KillReason, Pick, restart};
use crate::decide::resize::actuated::Actuated;
use crate::labels;
use crate::observed::{
    ContainerState, Exit, Observed, ObservedContainer, ProbeResult, ProbeResults,
};

/// The actions for the init containers.
#[derive(Debug, Default)]
pub(super) struct InitStep {
    /// Initialization is complete: continue with the app containers.
    pub(super) initialized: bool,
    /// The containers to start, in spec order.
    pub(super) start: Vec<Pick>,
    /// The containers to stop first.
    pub(super) kills: Vec<Kill>,
    /// An init container failed and is not restarted: terminate the pod.
    pub(super) failed_for_good: Option<String>,
    /// What the pod waits for.
    pub(super) waits_for: Option<String>,
    /// Running init containers whose CPU and memory change.
    pub(super) resize: Resize,
}

/// Decides the actions for the init containers.
pub(super) fn decide(pod: &Pod, observed: &Observed, actuated: Option<&Actuated>) -> InitStep {
    let mut step = progress(pod, observed);
    if step.failed_for_good.is_none() {
        step.resize_running(pod, observed, actuated);
    }
    step
}

fn progress(pod: &Pod, observed: &Observed) -> InitStep {
    let inits = pod.init_containers();
    let mut step = InitStep::default();
    if inits.is_empty() || apps_were_reached(pod, observed) {
        step.initialized = true;
        step.keep_sidecars(inits, observed);
        return step;
    }
    let Some(front) =
        inits.iter().rposition(|container| observed.container(&container.name).is_some())
    else {
        step.start.push(Pick::new(0, "the first init container"));
        return step;
    };

    step.keep_sidecars(&inits[..front], observed);
    let container = &inits[front];
    let Some(seen) = observed.container(&container.name) else {
        return step;
    };
    if is_sidecar(container) {
        if step.keep_sidecar(front, container, observed) == Sidecar::Started {
            step.passed(front, inits);
        }
    } else {
        step.advance(pod, front, container, seen);
    }
    compact::sort_by_key(&mut step.start, |pick| pick.index);
    step
}

/// Whether a sidecar has started, so that the next container may start.
#[derive(PartialEq, Eq)]
enum Sidecar {
    Started,
    NotYet,
}

impl InitStep {
    /// The init container at `front` is done: continue with the next one, or finish.
    fn passed(&mut self, front: usize, inits: &[Container]) {
        if front + 1 == inits.len() {
            self.initialized = true;
        } else {
            self.start.push(Pick::new(
                front + 1,
                format!("init container {} is done", inits[front].name),
            ));
        }
    }

    /// Decides about an init container at the front that is not a sidecar.
    fn advance(
        &mut self,
        pod: &Pod,
        front: usize,
        container: &Container,
        seen: &ObservedContainer,
    ) {
        let name = &container.name;
        match &seen.state {
            ContainerState::Created => {
                self.start.push(Pick::new(front, "it was created but never started"))
            }
            ContainerState::Running { .. } => {
                self.waits_for = Some(format!("init container {name} is running"))
            }
            ContainerState::Exited(exit) if !has_failed(exit) => {
                self.passed(front, pod.init_containers())
            }
            ContainerState::Exited(exit) => {
                if !pod.is_deleted() && restart::policy_allows(pod, container, exit.code) {
                    self.start
                        .push(Pick::new(front, format!("it failed with exit code {}", exit.code)));
                } else {
                    self.give_up(format!(
                        "init container {name} failed with exit code {}",
                        exit.code
                    ));
                }
            }
            ContainerState::Unknown => {
                if restart::is_restartable(pod, container) {
                    self.replace_unknown(front, seen);
                } else {
                    self.give_up(format!("the state of init container {name} is unknown"));
                }
            }
        }
    }

    /// The pod cannot succeed any more: start and restart nothing.
    fn give_up(&mut self, why: String) {
        *self = Self {
            failed_for_good: Some(format!("{why} and will not be restarted")),
            ..Self::default()
        };
    }

    /// Keeps the sidecars running that were started before.
    fn keep_sidecars(&mut self, inits: &[Container], observed: &Observed) {
        for (index, container) in
            inits.iter().enumerate().filter(|(_, container)| is_sidecar(container))
        {
            self.keep_sidecar(index, container, observed);
        }
    }

    fn keep_sidecar(
        &mut self,
        index: usize,
        container: &Container,
        observed: &Observed,
    ) -> Sidecar {
        let Some(seen) = observed.container(&container.name) else {
            self.start.push(Pick::new(index, "the sidecar is gone"));
            return Sidecar::NotYet;
        };
        let probes = observed.probes.get(&seen.id).copied().unwrap_or_default();
        match &seen.state {
            ContainerState::Created => {
                self.start.push(Pick::new(index, "it was created but never started"))
            }
            ContainerState::Exited(exit) => {
                self.start
                    .push(Pick::new(index, format!("the sidecar exited with code {}", exit.code)));
            }
            ContainerState::Unknown => self.replace_unknown(index, seen),
            ContainerState::Running { .. } => {
                return self.keep_running(index, container, seen, probes);
            }
        }
        Sidecar::NotYet
    }

    /// Checks a running sidecar: its startup probe decides whether the next container may start, its liveness probe
    /// whether the sidecar is replaced.
    fn keep_running(
        &mut self,
        index: usize,
        container: &Container,
        seen: &ObservedContainer,
        probes: ProbeResults,
    ) -> Sidecar {
        let name = &container.name;
        if container.startup_probe.is_some() && probes.startup != Some(ProbeResult::Success) {
            if probes.startup == Some(ProbeResult::Failure) {
                let message = format!("Init container {name} failed startup probe");
                self.replace(index, seen, KillReason::StartupProbe, message);
            } else {
                self.waits_for =
                    Some(format!("the startup probe of sidecar {name} has not succeeded yet"));
            }
            return Sidecar::NotYet;
        }
        if seen.hash != labels::container_hash(container) {
            let message = format!("Init container {name} definition changed");
            self.replace(index, seen, KillReason::DefinitionChanged, message);
        } else if container.liveness_probe.is_some()
            && probes.liveness == Some(ProbeResult::Failure)
        {
            let message = format!("Init container {name} failed liveness probe");
            self.replace(index, seen, KillReason::LivenessProbe, message);
        }
        Sidecar::Started
    }

    /// Resizes running containers, from the last one to the first: sidecars that have started, and the init container at the front.
    fn resize_running(&mut self, pod: &Pod, observed: &Observed, actuated: Option<&Actuated>) {
        for (index, container) in pod.init_containers().iter().enumerate().rev() {
            let Some(seen) = observed.container(&container.name) else {
                continue;
            };
            let is_considered = seen.state.is_running()
                && self.kills.iter().all(|kill| kill.id != seen.id)
                && if is_sidecar(container) {
                    has_started_and_is_live(container, seen, observed)
                } else {
                    !self.initialized
                };
            if !is_considered {
                continue;
            }
            if self.resize.consider(pod, container, seen, actuated) == Outcome::Restarted {
                let message = format!("Container {} resize requires restart", container.name);
                self.replace(index, seen, KillReason::DefinitionChanged, message);
            }
        }
        compact::sort_by_key(&mut self.start, |pick| pick.index);
    }

    fn replace_unknown(&mut self, index: usize, seen: &ObservedContainer) {
        let message = "Init container is in \"unknown\" state, try killing it before restart";
        self.replace(index, seen, KillReason::Unknown, message.to_owned());
    }

    fn replace(
        &mut self,
        index: usize,
        seen: &ObservedContainer,
        reason: KillReason,
        message: String,
    ) {
        self.kills.push(Kill {
            id: seen.id.clone(),
            name: seen.name.clone(),
            reason,
            message,
            restarts: true,
        });
        self.start.push(Pick::new(index, "the last attempt is replaced"));
    }
}

/// Whether a running sidecar has started and is live, according to its probes.
fn has_started_and_is_live(
    container: &Container,
    seen: &ObservedContainer,
    observed: &Observed,
) -> bool {
    let probes = observed.probes.get(&seen.id).copied().unwrap_or_default();
    let started = container.startup_probe.is_none() || probes.startup == Some(ProbeResult::Success);
    started && (container.liveness_probe.is_none() || probes.liveness.is_some())
}

/// Whether an app container was already created in this sandbox.
fn apps_were_reached(pod: &Pod, observed: &Observed) -> bool {
    pod.containers().iter().filter_map(|container| observed.container(&container.name)).any(
        |seen| match seen.state {
            ContainerState::Created | ContainerState::Running { .. } => true,
            ContainerState::Exited(_) | ContainerState::Unknown => false,
        },
    )
}

/// Whether an init container failed. An OOM-killed one has failed, regardless of its exit code.
fn has_failed(exit: &Exit) -> bool {
    exit.code != 0 || exit.reason == "OOMKilled"
}
