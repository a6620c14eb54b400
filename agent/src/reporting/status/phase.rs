//! Computes the phase of a pod from the statuses of its containers.
//!
//! | init containers | app containers | phase |
//! |---|---|---|
//! | one failed and is not restarted | any | Failed |
//! | one has not finished | any | Pending |
//! | done | one never started | Pending |
//! | done | one running, none unknown | Running |
//! | done | all exited, one will be restarted | Running |
//! | done | all exited with 0, none restarted | Succeeded |
//! | done | all exited, none restarted | Failed |
//! | done | one unknown | Pending |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go getPhase.

use api::pod::{Pod, is_sidecar};
use k8s_openapi::api::core::v1::{Container, ContainerStatus};

use crate::decide::plan::restart;

/// The state of a container, as far as the phase depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Unknown,
    Waiting,
    Running {
        started: bool,
    },
    /// Exited with this code.
    Ended {
        code: i32,
        /// It will be restarted.
        waits: bool,
        /// It was stopped because the whole pod restarts.
        reset: bool,
    },
}

/// The reason of an exit due to a restart of the whole pod.
const RESET: &str = "RestartingAllContainers";

fn progress(statuses: &[ContainerStatus], container: &Container) -> Option<Progress> {
    let status = statuses.iter().find(|status| status.name == container.name)?;
    let state = status.state.clone().unwrap_or_default();
    let last = status.last_state.as_ref().and_then(|last| last.terminated.as_ref());
    Some(if state.running.is_some() {
        Progress::Running { started: status.started == Some(true) }
    } else if let Some(exit) = &state.terminated {
        Progress::Ended {
            code: exit.exit_code,
            waits: false,
            reset: exit.reason.as_deref() == Some(RESET),
        }
    } else if state.waiting.is_none() {
        Progress::Unknown
    } else if let Some(exit) = last {
        Progress::Ended {
            code: exit.exit_code,
            waits: true,
            reset: exit.reason.as_deref() == Some(RESET),
        }
    } else {
        Progress::Waiting
    })
}

/// Computes the phase of a pod. `statuses` are those of its init and app containers. `terminated`: the agent has terminated
/// the pod. `has_initialized`: an app container exists in its current sandbox.
pub fn phase(
    pod: &Pod,
    statuses: &[ContainerStatus],
    terminated: bool,
    has_initialized: bool,
) -> &'static str {
    let mut pending_init = false;
    let mut init_failed = false;
    let (mut unknown, mut waiting, mut running) = (false, false, false);
    for init in pod.init_containers() {
        let progress = progress(statuses, init);
        if is_sidecar(init) {
            match progress {
                None => unknown = true,
                Some(Progress::Running { started }) => {
                    running = true;
                    pending_init |= !started && !has_initialized;
                }
                // An exited sidecar does not affect the phase.
                Some(Progress::Ended { .. }) => {}
                Some(Progress::Waiting) => {
                    waiting = true;
                    pending_init |= !has_initialized;
                }
                Some(Progress::Unknown) => {
                    unknown = true;
                    pending_init |= !has_initialized;
                }
            }
        } else {
            match progress {
                Some(Progress::Ended { code: 0, .. }) => {}
                Some(Progress::Ended { code, reset, .. }) => {
                    init_failed |= !reset && !restart::policy_allows(pod, init, code);
                }
                None | Some(Progress::Unknown | Progress::Waiting | Progress::Running { .. }) => {
                    pending_init = true
                }
            }
        }
    }

    let (mut stopped, mut succeeded, mut restartable) = (0, 0, false);
    for app in pod.containers() {
        match progress(statuses, app) {
            None | Some(Progress::Unknown) => unknown = true,
            Some(Progress::Waiting) => waiting = true,
            Some(Progress::Running { .. }) => running = true,
            Some(Progress::Ended { code, waits, reset }) => {
                stopped += 1;
                // A container that waits for its restart has not succeeded, regardless of its last exit code.
                succeeded += usize::from(code == 0 && !waits);
                restartable |= reset || restart::policy_allows(pod, app, code);
            }
        }
    }

    if init_failed {
        "Failed"
    } else if pending_init || waiting {
        "Pending"
    } else if running && !unknown {
        "Running"
    } else if stopped > 0 && !running && !unknown {
        let for_good = !restartable || (terminated && !pod.is_static());
        match (for_good, stopped == succeeded) {
            (false, _) => "Running",
            (true, true) => "Succeeded",
            (true, false) => "Failed",
        }
    } else {
        "Pending"
    }
}
