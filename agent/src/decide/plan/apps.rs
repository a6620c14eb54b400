//! ◆ Decides which app containers to start, keep or stop.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_manager.go computePodActions.

use api::pod::{Pod, RestartPolicy};
use k8s_openapi::api::core::v1::Container;

use crate::decide::plan::resize::{Outcome, Resize};
use crate::decide::plan::{Kill, KillReason, Pick, restart};
use crate::decide::resize::actuated::Actuated;
use crate::labels;
use crate::observed::{ContainerState, Observed, ObservedContainer, ProbeResult};

/// The actions for the app containers.
#[derive(Debug, Default)]
pub(super) struct AppStep {
    pub(super) start: Vec<Pick>,
    pub(super) kills: Vec<Kill>,
    /// The number of containers that keep running.
    pub(super) kept: usize,
}

/// Decides the actions for the app containers after initialization, and adds containers to be resized to `resize`.
pub(super) fn decide(
    pod: &Pod,
    observed: &Observed,
    actuated: Option<&Actuated>,
    resize: &mut Resize,
) -> AppStep {
    let mut step = AppStep::default();
    for (index, container) in pod.containers().iter().enumerate() {
        match observed.container(&container.name) {
            Some(seen) if seen.state.is_running() => {
                if !step.stopped(pod, observed, index, container, seen) {
                    let outcome = resize.consider(pod, container, seen, actuated);
                    step.keep(index, container, seen, outcome);
                }
            }
            seen => step.not_running(pod, observed, index, container, seen),
        }
    }
    step
}

impl AppStep {
    fn not_running(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        index: usize,
        container: &Container,
        seen: Option<&ObservedContainer>,
    ) {
        if !restart::should_start(pod, container, observed) {
            return;
        }
        let reason = match seen.map(|seen| (&seen.id, &seen.state)) {
            None => "for the first time".to_owned(),
            Some((id, ContainerState::Unknown)) => {
                // It may still be running: two attempts of a container must never run at the same time.
                self.kills.push(Kill {
                    id: id.clone(),
                    name: container.name.clone(),
                    reason: KillReason::Unknown,
                    message: "Container is in \"unknown\" state, try killing it before restart"
                        .to_owned(),
                    restarts: true,
                });
                "the last attempt is replaced".to_owned()
            }
            Some((_, ContainerState::Exited(exit))) => {
                format!("it exited with code {}", exit.code)
            }
            Some((_, ContainerState::Created | ContainerState::Running { .. })) => {
                "it was created but never started".to_owned()
            }
        };
        self.start.push(Pick::new(index, reason));
    }

    /// Keeps a running container that needs no stop, unless its resize requires a restart.
    fn keep(
        &mut self,
        index: usize,
        container: &Container,
        seen: &ObservedContainer,
        outcome: Outcome,
    ) {
        match outcome {
            Outcome::Kept => self.kept += 1,
            Outcome::Restarted => {
                self.start.push(Pick::new(index, "it is resized"));
                self.kills.push(Kill {
                    id: seen.id.clone(),
                    name: container.name.clone(),
                    reason: KillReason::DefinitionChanged,
                    message: format!("Container {} resize requires restart", container.name),
                    restarts: true,
                });
            }
        }
    }

    /// Stops a running container if it must stop. Returns whether it does.
    fn stopped(
        &mut self,
        pod: &Pod,
        observed: &Observed,
        index: usize,
        container: &Container,
        seen: &ObservedContainer,
    ) -> bool {
        let Some((reason, what, always)) = kill_reason(container, seen, observed) else {
            return false;
        };
        // Restart rules do not apply: they match exit codes, and there is none yet.
        let policy = RestartPolicy::of_container(container).unwrap_or_else(|| pod.restart_policy());
        let restarts = always || policy != RestartPolicy::Never;
        let mut message = format!("Container {} {what}", container.name);
        if restarts {
            message.push_str(", will be restarted");
            self.start.push(Pick::new(index, what));
        }
        self.kills.push(Kill {
            id: seen.id.clone(),
            name: container.name.clone(),
            reason,
            message,
            restarts,
        });
        true
    }
}

/// Why a running container must stop: reason, message, and whether it is restarted regardless of its policy.
fn kill_reason(
    container: &Container,
    seen: &ObservedContainer,
    observed: &Observed,
) -> Option<(KillReason, &'static str, bool)> {
    let probes = observed.probes.get(&seen.id).copied().unwrap_or_default();
    if seen.hash != labels::container_hash(container) {
        Some((KillReason::DefinitionChanged, "definition changed", true))
    } else if probes.liveness == Some(ProbeResult::Failure) {
        Some((KillReason::LivenessProbe, "failed liveness probe", false))
    } else if probes.startup == Some(ProbeResult::Failure) {
        Some((KillReason::StartupProbe, "failed startup probe", false))
    } else {
        None
    }
}
