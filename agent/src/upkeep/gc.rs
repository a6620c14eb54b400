//! ◆ Selects the dead containers and sandboxes of a live pod that can be removed.
//!
//! Source: Kubernetes 1.36, pkg/kubelet/kuberuntime/kuberuntime_gc.go and pod_container_deletor.go: one dead container per
//! name is kept, and the newest sandbox.

pub(crate) mod collector;
pub(crate) mod limits;

use compact::{Map, Set};
use jiff::Timestamp;

use self::limits::DeadContainerLimits;
use crate::decide::plan::Holds;
use crate::observed::{ContainerId, ContainerState, Observed, SandboxId};

/// The objects to remove, oldest last.
#[must_use]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Garbage {
    /// Dead containers that are not the newest of their name, with their names.
    pub(crate) containers: Vec<(ContainerId, String)>,
    /// Sandboxes that are not ready, not the newest, and contain no kept container.
    pub(crate) sandboxes: Vec<SandboxId>,
}

impl Garbage {
    /// Whether there is nothing to remove.
    pub(crate) fn is_empty(&self) -> bool {
        self.containers.is_empty() && self.sandboxes.is_empty()
    }
}

/// Finds the garbage of a live pod, except deferred removals.
pub(crate) fn garbage(
    observed: &Observed,
    limits: DeadContainerLimits,
    holds: &Holds,
    now: Timestamp,
) -> Garbage {
    let mut garbage = Garbage::default();
    let mut seen = Set::new();
    let mut ended: Map<&str, usize> = Map::new();
    let mut used = Set::new();
    for container in &observed.containers {
        let newest = seen.insert(container.name.as_str());
        let superseded = match container.state {
            ContainerState::Exited(_) | ContainerState::Unknown => {
                let ended = ended.entry(container.name.as_str()).or_default();
                *ended += 1;
                *ended > limits.kept_by_worker()
            }
            // A killed agent did not start it, and the next one created another.
            ContainerState::Created => !newest,
            ContainerState::Running { .. } => false,
        };
        if superseded {
            if !holds.holds_container(&container.id, now) {
                garbage.containers.push((container.id.clone(), container.name.clone()));
            }
        } else {
            used.insert(&container.sandbox_id);
        }
    }
    let old = observed
        .sandboxes
        .iter()
        .skip(1)
        .filter(|sandbox| !sandbox.ready && !used.contains(&sandbox.id))
        .filter(|sandbox| !holds.holds_sandbox(&sandbox.id, now));
    garbage.sandboxes.extend(old.map(|sandbox| sandbox.id.clone()));
    garbage
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::fixtures::{self, sandbox};
    use crate::observed::ObservedContainer;

    fn container(id: &str, name: &str, sandbox: &str, running: bool) -> ObservedContainer {
        let state = match running {
            true => fixtures::running(),
            false => ContainerState::Exited(fixtures::exit(0)),
        };
        let sandbox_id = SandboxId::new(sandbox);
        ObservedContainer { sandbox_id, ..fixtures::container(id, name, state) }
    }

    fn garbage(observed: &Observed) -> Garbage {
        keeping(observed, 1)
    }

    fn keeping(observed: &Observed, per_container: i64) -> Garbage {
        let limits = DeadContainerLimits { per_container, ..DeadContainerLimits::default() };
        super::garbage(observed, limits, &Holds::default(), Timestamp::UNIX_EPOCH)
    }

    #[test]
    fn created_container_is_garbage_once_a_newer_attempt_exists() {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        let mut created = container("a1", "a", "s1", false);
        created.state = ContainerState::Created;
        observed.containers = vec![created];
        assert!(garbage(&observed).is_empty());
        observed.containers.insert(0, container("a2", "a", "s1", true));
        assert_eq!(garbage(&observed).containers, [(ContainerId::new("a1"), "a".to_owned())]);
    }

    #[test]
    fn newest_exited_container_and_newest_sandbox_are_kept() {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        observed.sandboxes = vec![sandbox("s3", true), sandbox("s2", false), sandbox("s1", false)];
        observed.containers = vec![
            container("a3", "a", "s3", true),
            container("a2", "a", "s2", false),
            container("b1", "b", "s1", false),
            container("a1", "a", "s1", false),
        ];
        let found = garbage(&observed);
        assert_eq!(found.containers, [(ContainerId::new("a1"), "a".to_owned())]);
        assert_eq!(found.sandboxes, [], "s1 and s2 hold the last ends of b and a");
        observed.containers.truncate(2);
        assert_eq!(garbage(&observed).sandboxes, [SandboxId::new("s1")]);
        observed.sandboxes[0].ready = false;
        assert!(!garbage(&observed).sandboxes.contains(&SandboxId::new("s3")));
    }

    #[test]
    fn ended_attempts_are_kept_up_to_the_limit() {
        let mut observed = Observed::nothing(Timestamp::UNIX_EPOCH);
        let attempt = |id: &str| container(id, "a", "s1", false);
        observed.containers = vec![attempt("a4"), attempt("a3"), attempt("a2"), attempt("a1")];
        let removed = |limit: i64| {
            let found = keeping(&observed, limit).containers.into_iter();
            found.map(|(id, _)| id.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(removed(3), ["a1"]);
        assert_eq!(removed(1), ["a3", "a2", "a1"]);
        let usual = removed(1);
        assert_eq!(removed(0), usual, "the newest one says how it ended");
        assert_eq!(removed(-1), usual, "as in a kubelet");
    }

    #[test]
    fn empty_observation_has_no_garbage() {
        assert!(garbage(&Observed::nothing(Timestamp::UNIX_EPOCH)).is_empty());
    }
}
