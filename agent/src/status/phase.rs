//! The phase of a pod, from the statuses of its containers.
//!
//! | init containers | app containers | phase |
//! |---|---|---|
//! | one failed and is not started again | any | Failed |
//! | one has not finished | any | Pending |
//! | over | one never started | Pending |
//! | over | one runs, none unknown | Running |
//! | over | all stopped, one will be started again | Running |
//! | over | all stopped for good, all with 0 | Succeeded |
//! | over | all stopped for good | Failed |
//! | over | something unknown | Pending |
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kubelet_pods.go getPhase.

use k8s_openapi::api::core::v1::{Container, ContainerStatus};

use crate::plan::restart;
use crate::pod::{Pod, is_sidecar};

/// How far one container is, as far as the phase depends on it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Progress {
    Unknown,
    Waiting,
    Running {
        started: bool,
    },
    /// Ended with this exit code.
    Ended {
        code: i32,
        /// It is about to be started again.
        waits: bool,
        /// It was ended because the whole pod starts again.
        reset: bool,
    },
}

/// The reason of an exit that a restart of the whole pod brought about.
const RESET: &str = "RestartingAllContainers";

fn progress(statuses: &[ContainerStatus], container: &Container) -> Option<Progress> {
    let status = statuses
        .iter()
        .find(|status| status.name == container.name)?;
    let state = status.state.clone().unwrap_or_default();
    let last = status
        .last_state
        .as_ref()
        .and_then(|last| last.terminated.as_ref());
    Some(if state.running.is_some() {
        Progress::Running {
            started: status.started == Some(true),
        }
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

/// The phase of a pod. `statuses` are those of its init and app containers, `terminated` says that the agent has ended
/// the pod, `has_initialized` that an app container exists in its current sandbox.
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
                // A sidecar that ended says nothing of the pod.
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
                // One that waits to be started again has not succeeded, whatever its last exit code.
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
