//! Computes what happened to a pod between two listings.

use std::collections::BTreeMap;

use crate::causes::Causes;
use crate::cri::{ListedContainer, ListedSandbox, ListedState};
use crate::observed::{ContainerId, SandboxId};
use crate::report::ContainerPhase;

/// One pod's part of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// The pod's sandboxes, and whether each is ready.
    pub(crate) sandboxes: BTreeMap<SandboxId, bool>,
    /// The pod's containers with their names.
    pub(crate) containers: BTreeMap<ContainerId, (String, ListedState)>,
}

impl Listing {
    /// The states that a comparison distinguishes.
    pub(crate) fn of(sandboxes: &[ListedSandbox], containers: &[ListedContainer]) -> Self {
        let mut listing = Self::default();
        for sandbox in sandboxes {
            listing.add_sandbox(sandbox);
        }
        for container in containers {
            listing.add_container(container);
        }
        listing
    }

    pub(crate) fn add_sandbox(&mut self, sandbox: &ListedSandbox) {
        self.sandboxes.insert(sandbox.id.clone(), sandbox.ready);
    }

    /// Whether a container runs or a sandbox is ready.
    pub(crate) fn anything_runs(&self) -> bool {
        let mut containers = self.containers.values();
        self.sandboxes.values().any(|ready| *ready)
            || containers.any(|(_, state)| *state == ListedState::Running)
    }

    /// Whether a change of a container or sandbox is already shown.
    pub(crate) fn shows(&self, id: &str, change: Change) -> bool {
        let container = self.containers.get(&ContainerId::new(id));
        let container = container.map(|(_, state)| *state);
        let sandbox = self.sandboxes.get(&SandboxId::new(id)).copied();
        match change {
            Change::Started => {
                matches!(container, Some(ListedState::Running | ListedState::Exited))
                    || sandbox == Some(true)
            }
            Change::Died => container == Some(ListedState::Exited) || sandbox == Some(false),
            Change::Removed => container.is_none() && sandbox.is_none(),
            Change::Changed => false,
        }
    }

    /// Records another state of a container.
    pub(crate) fn set_state(&mut self, id: &ContainerId, state: ListedState) {
        if let Some((_, before)) = self.containers.get_mut(id) {
            *before = state;
        }
    }

    /// Forgets a container.
    pub(crate) fn remove_container(&mut self, id: &ContainerId) {
        self.containers.remove(id);
    }

    pub(crate) fn add_container(&mut self, container: &ListedContainer) {
        self.containers.insert(
            container.id.clone(),
            (container.name.clone(), container.state),
        );
    }
}

/// One difference between two listings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PodEvent {
    /// The container's name; `None` for a sandbox.
    pub(crate) container: Option<String>,
    /// The kind of change.
    pub(crate) change: Change,
}

/// A change of a container or sandbox, named as in the kubelet (Kubernetes 1.36, pleg).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is running now.
    Started,
    /// It exited, or became not ready.
    Died,
    /// It was created but not started, or its state is unknown.
    Changed,
    /// It was removed.
    Removed,
}

impl Change {
    /// The change as the cause of what it led to. Whatever is not running and did not exit counts as waiting.
    pub(crate) fn cause(self, container: &str) -> Causes {
        let (state, text) = match self {
            Self::Started => (ContainerPhase::Running, "started"),
            Self::Died => (ContainerPhase::Terminated, "exited"),
            Self::Changed => (ContainerPhase::Waiting, "changed"),
            Self::Removed => (ContainerPhase::Waiting, "was removed"),
        };
        Causes::container(container, state, text)
    }

    fn cause_of_pod(self) -> Causes {
        Causes::pod(match self {
            Self::Started => "sandbox started",
            Self::Died => "sandbox stopped",
            Self::Changed => "sandbox changed",
            Self::Removed => "sandbox was removed",
        })
    }
}

/// Returns the changes, containers before sandboxes.
#[must_use]
pub(crate) fn diff(old: &Listing, new: &Listing) -> Vec<PodEvent> {
    let mut events = Vec::new();
    for (id, (name, state)) in &new.containers {
        let before = old.containers.get(id).map(|(_, state)| *state);
        if before != Some(*state) {
            let change = match state {
                ListedState::Running => Change::Started,
                ListedState::Exited => Change::Died,
                ListedState::Created | ListedState::Unknown => Change::Changed,
            };
            events.push(PodEvent {
                container: Some(name.clone()),
                change,
            });
        }
    }
    for (id, (name, _)) in &old.containers {
        if !new.containers.contains_key(id) {
            events.push(PodEvent {
                container: Some(name.clone()),
                change: Change::Removed,
            });
        }
    }
    for (id, ready) in &new.sandboxes {
        if old.sandboxes.get(id) != Some(ready) {
            events.push(PodEvent {
                container: None,
                change: if *ready {
                    Change::Started
                } else {
                    Change::Died
                },
            });
        }
    }
    for id in old.sandboxes.keys() {
        if !new.sandboxes.contains_key(id) {
            events.push(PodEvent {
                container: None,
                change: Change::Removed,
            });
        }
    }
    events
}

/// The causes of what the changes led to.
pub(crate) fn causes(events: &[PodEvent]) -> Causes {
    let mut causes = Causes::default();
    for event in events {
        causes.add(match &event.container {
            Some(name) => event.change.cause(name),
            None => event.change.cause_of_pod(),
        });
    }
    causes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use rstest::rstest;

    use super::*;

    fn of(events: &[PodEvent]) -> String {
        causes(events).of_pod()
    }

    fn containers(of: &[(&str, ListedState)]) -> Listing {
        let containers = of
            .iter()
            .map(|(id, state)| (ContainerId::new(*id), ("app".to_owned(), *state)))
            .collect();
        Listing {
            containers,
            sandboxes: BTreeMap::new(),
        }
    }

    #[rstest]
    #[case(&[], &[], "")]
    #[case(&[], &[("a", ListedState::Created)], "app changed")]
    #[case(&[], &[("a", ListedState::Running)], "app started")]
    #[case(&[("a", ListedState::Created)], &[("a", ListedState::Running)], "app started")]
    #[case(&[("a", ListedState::Running)], &[("a", ListedState::Running)], "")]
    #[case(&[("a", ListedState::Running)], &[("a", ListedState::Exited)], "app exited")]
    #[case(&[("a", ListedState::Created)], &[("a", ListedState::Exited)], "app exited")]
    #[case(&[("a", ListedState::Running)], &[("a", ListedState::Unknown)], "app changed")]
    #[case(&[("a", ListedState::Exited)], &[], "app was removed")]
    #[case(&[("a", ListedState::Exited)], &[("b", ListedState::Running)], "app started, app was removed")]
    fn diff_reports_container_changes(
        #[case] old: &[(&str, ListedState)],
        #[case] new: &[(&str, ListedState)],
        #[case] expected: &str,
    ) {
        assert_eq!(of(&diff(&containers(old), &containers(new))), expected);
    }

    #[test]
    fn diff_reports_sandbox_changes() {
        let with = |ready| Listing {
            sandboxes: [(SandboxId::new("s"), ready)].into(),
            containers: BTreeMap::new(),
        };
        assert_eq!(
            of(&diff(&Listing::default(), &with(true))),
            "sandbox started"
        );
        assert_eq!(of(&diff(&with(true), &with(false))), "sandbox stopped");
        assert_eq!(
            of(&diff(&with(false), &Listing::default())),
            "sandbox was removed"
        );
        assert_eq!(diff(&with(true), &with(true)), []);
    }
}
