//! ◆ Compares successful calls with the state observed afterwards. A call without effect would be repeated immediately and
//! endlessly: it is deferred like a failed call.

use crate::decide::plan::HoldKey;
use crate::observed::{ContainerId, ContainerState, Observed, SandboxId};

/// A call that succeeded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompletedCall {
    /// RunPodSandbox.
    RunSandbox(SandboxId),
    /// StopPodSandbox.
    StopSandbox(SandboxId),
    /// RemovePodSandbox.
    RemoveSandbox(SandboxId),
    /// StartContainer.
    Start {
        /// The container's name.
        name: String,
        /// Its id.
        id: ContainerId,
        /// The key of its restart series.
        backoff_key: String,
    },
    /// StopContainer.
    Stop {
        /// The container's name.
        name: String,
        /// Its id.
        id: ContainerId,
    },
    /// RemoveContainer.
    Remove {
        /// The container's name.
        name: String,
        /// Its id.
        id: ContainerId,
    },
}

/// A call that succeeded without effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IneffectiveCall {
    /// The action to defer.
    pub key: HoldKey,
    /// The container; `None` for the pod as a whole.
    pub container: Option<String>,
    /// The reason, as if the call had failed.
    pub reason: &'static str,
    /// The message.
    pub message: String,
}

/// The calls that had no effect. `observed` is the state after the calls.
pub fn without_effect(done: &[CompletedCall], observed: &Observed) -> Vec<IneffectiveCall> {
    done.iter().filter_map(|done| one_without_effect(done, observed)).collect()
}

fn one_without_effect(done: &CompletedCall, observed: &Observed) -> Option<IneffectiveCall> {
    let container = |id: &ContainerId| observed.containers.iter().find(|seen| seen.id == *id);
    let sandbox = |id: &SandboxId| observed.sandboxes.iter().find(|seen| seen.id == *id);
    let of_pod = |key, reason, message: &str| IneffectiveCall {
        key,
        container: None,
        reason,
        message: message.to_owned(),
    };
    let of_container = |name: &String, key, reason, message: &str| IneffectiveCall {
        key,
        container: Some(name.clone()),
        reason,
        message: message.to_owned(),
    };
    match done {
        CompletedCall::RunSandbox(id) => (!sandbox(id).is_some_and(|seen| seen.ready)).then(|| {
            let message = "RunPodSandbox succeeded, but the sandbox is not ready";
            of_pod(HoldKey::Pod, "CreatePodSandboxError", message)
        }),
        CompletedCall::StopSandbox(id) => sandbox(id).is_some_and(|seen| seen.ready).then(|| {
            let message = "StopPodSandbox succeeded, but the sandbox is still ready";
            of_pod(HoldKey::Pod, "KillPodSandboxError", message)
        }),
        CompletedCall::RemoveSandbox(id) => sandbox(id).map(|_| {
            let message = "RemovePodSandbox succeeded, but the sandbox still exists";
            of_pod(HoldKey::Sandbox(id.clone()), "KillPodSandboxError", message)
        }),
        CompletedCall::Start { name, id, backoff_key } => {
            let was_started =
                container(id).is_some_and(|seen| seen.state != ContainerState::Created);
            (!was_started).then(|| {
                let message = "StartContainer succeeded, but the container was not started";
                let key = HoldKey::Start(backoff_key.clone());
                of_container(name, key, "RunContainerError", message)
            })
        }
        CompletedCall::Stop { name, id } => {
            container(id).is_some_and(|seen| seen.state.is_running()).then(|| {
                let message = "StopContainer succeeded, but the container is still running";
                let key = HoldKey::Container(id.clone());
                of_container(name, key, "KillContainerError", message)
            })
        }
        CompletedCall::Remove { name, id } => container(id).map(|_| {
            let message = "RemoveContainer succeeded, but the container still exists";
            let key = HoldKey::Container(id.clone());
            of_container(name, key, "KillContainerError", message)
        }),
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::fixtures;

    fn observed(ready: bool, state: Option<ContainerState>) -> Observed {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        observed.sandboxes.push(fixtures::sandbox("s", ready));
        observed.containers.extend(state.map(|state| fixtures::container("c", "app", state)));
        observed
    }

    #[test]
    fn calls_without_effect_are_found() {
        let running = || Some(fixtures::running());
        let (name, id) = ("app".to_owned(), ContainerId::new("c"));
        let sandbox = SandboxId::new("s");
        let start = CompletedCall::Start {
            name: name.clone(),
            id: id.clone(),
            backoff_key: "k".to_owned(),
        };
        let stop = CompletedCall::Stop { name: name.clone(), id: id.clone() };
        let remove = CompletedCall::Remove { name, id };
        let created = || Some(ContainerState::Created);
        let table = [
            (CompletedCall::RunSandbox(sandbox.clone()), observed(true, None), false),
            (CompletedCall::RunSandbox(sandbox.clone()), observed(false, None), true),
            (CompletedCall::StopSandbox(sandbox.clone()), observed(false, None), false),
            (CompletedCall::StopSandbox(sandbox.clone()), observed(true, None), true),
            (CompletedCall::RemoveSandbox(sandbox), observed(false, None), true),
            (start.clone(), observed(true, running()), false),
            (start.clone(), observed(true, Some(ContainerState::Unknown)), false),
            (start.clone(), observed(true, created()), true),
            (start, observed(true, None), true),
            (stop.clone(), observed(true, running()), true),
            (stop.clone(), observed(true, created()), false),
            (stop, observed(true, None), false),
            (remove.clone(), observed(true, created()), true),
            (remove, observed(true, None), false),
        ];
        for (done, observed, expected) in table {
            let found = without_effect(std::slice::from_ref(&done), &observed);
            assert_eq!(!found.is_empty(), expected, "{done:?} {observed:?}");
        }
    }
}
