//! ◆ Computes what happened to a pod between two listings.

use crate::cri::{ListedContainer, ListedSandbox, ListedState};
use crate::observed::{ContainerId, SandboxId};
use crate::reporting::causes::Causes;
use crate::reporting::report::ContainerPhase;

/// One pod's part of a listing. The fields are lists, because a pod has few entries, and a map would take a thousand bytes for
/// them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Listing {
    /// Sorted by id.
    sandboxes: Vec<(SandboxId, bool)>,
    /// Sorted by id, with their names.
    containers: Vec<(ContainerId, (String, ListedState))>,
}

impl Listing {
    /// Creates the listing from the states that a comparison distinguishes.
    pub(crate) fn of(sandboxes: &[ListedSandbox], containers: &[ListedContainer]) -> Self {
        let mut listing = Self::default();
        for sandbox in sandboxes {
            listing.add_sandbox(sandbox.id.clone(), sandbox.ready);
        }
        for container in containers {
            listing.add_container(container.id.clone(), container.name.clone(), container.state);
        }
        listing
    }

    /// Adds a sandbox, or changes its state.
    pub(crate) fn add_sandbox(&mut self, id: SandboxId, ready: bool) {
        put(&mut self.sandboxes, id, ready);
    }

    /// Adds a container, or changes its state.
    pub(crate) fn add_container(&mut self, id: ContainerId, name: String, state: ListedState) {
        put(&mut self.containers, id, (name, state));
    }

    /// The pod's sandboxes, and whether each is ready.
    pub(crate) fn sandboxes(&self) -> impl Iterator<Item = (&SandboxId, bool)> {
        self.sandboxes.iter().map(|(id, ready)| (id, *ready))
    }

    /// The pod's containers with their names and states.
    pub(crate) fn containers(&self) -> impl Iterator<Item = (&ContainerId, &str, ListedState)> {
        let containers = self.containers.iter();
        containers.map(|(id, (name, state))| (id, name.as_str(), *state))
    }

    /// The name and state of a container.
    pub(crate) fn container(&self, id: &str) -> Option<(&str, ListedState)> {
        let mut containers = self.containers();
        let (_, name, state) = containers.find(|(seen, ..)| seen.as_str() == id)?;
        Some((name, state))
    }

    /// Whether a sandbox is ready; `None` if there is no such sandbox.
    fn sandbox(&self, id: &str) -> Option<bool> {
        let mut sandboxes = self.sandboxes();
        let (_, ready) = sandboxes.find(|(seen, _)| seen.as_str() == id)?;
        Some(ready)
    }

    /// Whether a container runs or a sandbox is ready.
    pub(crate) fn anything_runs(&self) -> bool {
        self.sandboxes().any(|(_, ready)| ready)
            || self.containers().any(|(.., state)| state == ListedState::Running)
    }

    /// Whether the listing already shows a change of a container or sandbox.
    pub(crate) fn shows(&self, id: &str, change: Change) -> bool {
        let container = self.container(id).map(|(_, state)| state);
        let sandbox = self.sandbox(id);
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

    /// Changes the state of a container.
    pub(crate) fn set_state(&mut self, id: &ContainerId, state: ListedState) {
        if let Some((_, (_, before))) = self.containers.iter_mut().find(|(seen, _)| seen == id) {
            *before = state;
        }
    }

    /// Removes a container.
    pub(crate) fn remove_container(&mut self, id: &ContainerId) {
        self.containers.retain(|(seen, _)| seen != id);
    }
}

/// Inserts `value` sorted by `id`, or replaces the existing value.
fn put<K: Ord, V>(list: &mut Vec<(K, V)>, id: K, value: V) {
    match list.binary_search_by(|(seen, _)| seen.cmp(&id)) {
        Ok(at) => list[at].1 = value,
        Err(at) => {
            list.reserve_exact(1);
            list.insert(at, (id, value));
        }
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

impl PodEvent {
    fn of_container(name: &str, change: Change) -> Self {
        Self { container: Some(name.to_owned()), change }
    }

    fn of_sandbox(change: Change) -> Self {
        Self { container: None, change }
    }
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
    /// The change as a cause. A container that neither runs nor has exited counts as waiting.
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
    for (id, name, state) in new.containers() {
        let before = old.container(id.as_str()).map(|(_, state)| state);
        if before != Some(state) {
            let change = match state {
                ListedState::Running => Change::Started,
                ListedState::Exited => Change::Died,
                ListedState::Created | ListedState::Unknown => Change::Changed,
            };
            events.push(PodEvent::of_container(name, change));
        }
    }
    for (id, name, _) in old.containers() {
        if new.container(id.as_str()).is_none() {
            events.push(PodEvent::of_container(name, Change::Removed));
        }
    }
    for (id, ready) in new.sandboxes() {
        if old.sandbox(id.as_str()) != Some(ready) {
            let started = ready.then_some(Change::Started);
            events.push(PodEvent::of_sandbox(started.unwrap_or(Change::Died)));
        }
    }
    for (id, _) in old.sandboxes() {
        if new.sandbox(id.as_str()).is_none() {
            events.push(PodEvent::of_sandbox(Change::Removed));
        }
    }
    events
}

/// The changes as causes.
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
        let mut listing = Listing::default();
        for (id, state) in of {
            listing.add_container(ContainerId::new(*id), "app".to_owned(), *state);
        }
        listing
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
        let with = |ready| {
            let mut listing = Listing::default();
            listing.add_sandbox(SandboxId::new("s"), ready);
            listing
        };
        assert_eq!(of(&diff(&Listing::default(), &with(true))), "sandbox started");
        assert_eq!(of(&diff(&with(true), &with(false))), "sandbox stopped");
        assert_eq!(of(&diff(&with(false), &Listing::default())), "sandbox was removed");
        assert_eq!(diff(&with(true), &with(true)), []);
    }

    #[test]
    fn listings_are_equal_in_any_order_and_keep_the_last_state() {
        let one = containers(&[("a", ListedState::Running), ("b", ListedState::Exited)]);
        let other = containers(&[
            ("b", ListedState::Running),
            ("a", ListedState::Running),
            ("b", ListedState::Exited),
        ]);
        assert_eq!(one, other);
        assert_eq!(other.container("b"), Some(("app", ListedState::Exited)));
    }
}
