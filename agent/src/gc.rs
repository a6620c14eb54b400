//! ◆ Selects the dead containers and sandboxes of a live pod that can be removed.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_gc.go and pod_container_deletor.go: one dead container per
//! name is kept, and the newest sandbox.

use std::collections::BTreeSet;

use crate::observed::{ContainerId, ContainerState, Observed, SandboxId};

/// The objects to remove, oldest last.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Garbage {
    /// Dead containers that are not the newest of their name.
    pub(crate) containers: Vec<ContainerId>,
    /// Sandboxes that are not ready, not the newest, and contain no kept container.
    pub(crate) sandboxes: Vec<SandboxId>,
}

impl Garbage {
    /// Whether there is nothing to remove.
    pub(crate) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }
}

/// Finds the garbage of a live pod.
pub(crate) fn garbage(observed: &Observed) -> Garbage {
    let mut garbage = Garbage::default();
    let mut ended = BTreeSet::new();
    let mut used = BTreeSet::new();
    for container in &observed.containers {
        let superseded = match container.state {
            ContainerState::Exited(_) | ContainerState::Unknown => {
                !ended.insert(container.name.as_str())
            }
            ContainerState::Created | ContainerState::Running { .. } => false,
        };
        if superseded {
            garbage.containers.push(container.id.clone());
        } else {
            used.insert(&container.sandbox_id);
        }
    }
    let old = observed
        .sandboxes
        .iter()
        .skip(1)
        .filter(|sandbox| !sandbox.ready && !used.contains(&sandbox.id));
    garbage
        .sandboxes
        .extend(old.map(|sandbox| sandbox.id.clone()));
    garbage
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::observed::{Exit, NetworkMode, ObservedContainer, ObservedSandbox};

    fn container(id: &str, name: &str, sandbox: &str, running: bool) -> ObservedContainer {
        let at = Timestamp::UNIX_EPOCH;
        let exit = Exit {
            code: 0,
            reason: String::new(),
            message: String::new(),
            started_at: None,
            finished_at: at,
        };
        ObservedContainer {
            id: ContainerId::new(id),
            name: name.to_owned(),
            sandbox_id: SandboxId::new(sandbox),
            state: if running {
                ContainerState::Running { started_at: at }
            } else {
                ContainerState::Exited(exit)
            },
            created_at: at,
            restart_count: 0,
            image: String::new(),
            image_ref: String::new(),
            hash: String::new(),
            log_path: None,
            user: None,
            mounts: Vec::new(),
        }
    }

    fn sandbox(id: &str, ready: bool) -> ObservedSandbox {
        ObservedSandbox {
            id: SandboxId::new(id),
            ready,
            attempt: 0,
            created_at: Timestamp::UNIX_EPOCH,
            network: NetworkMode::Pod,
            ips: None,
        }
    }

    #[test]
    fn newest_exited_container_and_newest_sandbox_are_kept() {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        observed.sandboxes = vec![
            sandbox("s3", true),
            sandbox("s2", false),
            sandbox("s1", false),
        ];
        observed.containers = vec![
            container("a3", "a", "s3", true),
            container("a2", "a", "s2", false),
            container("b1", "b", "s1", false),
            container("a1", "a", "s1", false),
        ];
        let found = garbage(&observed);
        assert_eq!(found.containers, [ContainerId::new("a1")]);
        assert_eq!(
            found.sandboxes,
            [],
            "s1 and s2 hold the last ends of b and a"
        );
        observed.containers.truncate(2);
        assert_eq!(garbage(&observed).sandboxes, [SandboxId::new("s1")]);
        observed.sandboxes[0].ready = false;
        assert!(!garbage(&observed).sandboxes.contains(&SandboxId::new("s3")));
    }

    #[test]
    fn empty_observation_has_no_garbage() {
        assert!(garbage(&Observed::nothing(Timestamp::UNIX_EPOCH)).is_empty());
    }
}
