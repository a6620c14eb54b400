//! ◆ All records, and the changes to them. Pure.

use std::{ops::Bound, sync::Arc};

use rpds::RedBlackTreeMapSync;

use super::containers::Containers;
use crate::container::{Container, ContainerEvent, ContainerState, EventKind};
use crate::id::{ContainerId, SandboxId};
use crate::sandbox::{Sandbox, SandboxEvent, SandboxState, UnknownReason};

/// All records. A clone is cheap, because each change publishes one.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) sandboxes: RedBlackTreeMapSync<SandboxId, Arc<Sandbox>>,
    pub(crate) containers: Containers,
}

/// A change to the state.
#[derive(Debug)]
pub(crate) enum Change {
    AddSandbox(Box<Sandbox>),
    Sandbox(SandboxId, SandboxEvent),
    /// Removes a sandbox with all its containers.
    RemoveSandbox(SandboxId),
    AddContainer(Box<Container>),
    Container(ContainerId, ContainerEvent),
    RemoveContainer(ContainerId),
    /// A sandbox's keeper can be reached, or why it cannot.
    Keeper(SandboxId, Result<(), String>),
    /// Several changes in one step, so that no listing shows only some of them. A refused change does not affect the others.
    Batch(Vec<Change>),
}

/// Why a change was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum StateError {
    #[error("no such pod sandbox: {0:?}")]
    NoSandbox(String),
    #[error("id prefix {0:?} is ambiguous: use a longer one")]
    Ambiguous(String),
    #[error("no such container: {0:?}")]
    NoContainer(String),
    #[error(
        "the name {name:?} (attempt {attempt}) is in use by {id}: remove it first, or increment the attempt"
    )]
    NameTaken {
        name: String,
        attempt: u32,
        id: String,
        /// The request was the same and the sandbox is unused: the client may not have received the first response.
        same: bool,
    },
    #[error("pod sandbox {id} is not ready: {wanted} needs a running one")]
    SandboxNotReady { id: SandboxId, wanted: &'static str },
    #[error("container {id} is {state}: {wanted}")]
    WrongState { id: ContainerId, state: &'static str, wanted: &'static str },
    #[error("failed to save the record of {what} in {directory}: {why}")]
    NotSaved {
        what: String,
        directory: String,
        /// The operating system's error, and its effect.
        why: String,
        kind: std::io::ErrorKind,
    },
    #[error("the runtime is shutting down")]
    ShuttingDown,
}

/// The effects of a change.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Effects {
    pub(crate) records: Vec<Record>,
    pub(crate) events: Vec<(String, SandboxId, EventKind)>,
}

/// A record to write.
#[derive(Debug)]
pub(crate) enum Record {
    Sandbox(Arc<Sandbox>),
    /// Only the fields that change during its life.
    SandboxLife(Arc<Sandbox>),
    Container(Arc<Container>),
    /// Only the fields that change during its life.
    ContainerLife(Arc<Container>),
    NoSandbox(SandboxId),
    NoContainer(Arc<Container>),
}

impl Record {
    /// Names the record for the log, without the configuration, which may contain secrets.
    pub(super) fn names(&self) -> String {
        match self {
            Self::Sandbox(sandbox) | Self::SandboxLife(sandbox) => {
                format!("sandbox {}", sandbox.id)
            }
            Self::Container(container) | Self::ContainerLife(container) => {
                format!("container {}", container.id)
            }
            Self::NoSandbox(id) => format!("removal of sandbox {id}"),
            Self::NoContainer(container) => format!("removal of container {}", container.id),
        }
    }
}

impl State {
    pub(crate) fn apply(&mut self, change: Change) -> Result<Effects, StateError> {
        let mut effects = Effects::default();
        match change {
            Change::AddSandbox(sandbox) => {
                if let Some(other) = self.sandboxes.values().find(|s| s.key() == sandbox.key()) {
                    let (name, namespace, _, attempt) = sandbox.key();
                    return Err(StateError::NameTaken {
                        name: format!("{namespace}/{name}"),
                        attempt,
                        id: other.id.to_string(),
                        same: other.is_same_request(&sandbox)
                            && self.containers_of(&other.id).next().is_none(),
                    });
                }
                let sandbox = Arc::new(*sandbox);
                effects.records.push(Record::Sandbox(sandbox.clone()));
                self.sandboxes.insert_mut(sandbox.id.clone(), sandbox);
            }
            Change::Sandbox(id, event) => {
                let Some(sandbox) = self.sandboxes.get_mut(&id) else {
                    return Err(StateError::NoSandbox(id.to_string()));
                };
                let before = sandbox.state;
                let record = match event {
                    SandboxEvent::Resources(_) => Record::Sandbox,
                    SandboxEvent::Ready(_) | SandboxEvent::Stopped => Record::SandboxLife,
                };
                if Arc::make_mut(sandbox).on(event) {
                    effects.records.push(record(sandbox.clone()));
                    let kinds: &[EventKind] = match (before, sandbox.state) {
                        (SandboxState::Creating, SandboxState::Ready) => {
                            &[EventKind::Created, EventKind::Started]
                        }
                        (SandboxState::Creating, _) => &[],
                        (SandboxState::Ready, SandboxState::Ready) => &[],
                        (SandboxState::Ready | SandboxState::NotReady, _) => &[EventKind::Stopped],
                    };
                    effects
                        .events
                        .extend(kinds.iter().map(|kind| (id.to_string(), id.clone(), *kind)));
                }
            }
            Change::RemoveSandbox(id) => {
                let containers: Vec<ContainerId> =
                    self.containers_of(&id).map(|c| c.id.clone()).collect();
                for container in containers {
                    self.remove_container(&container, &mut effects);
                }
                if let Some(sandbox) = self.sandboxes.get(&id).cloned() {
                    self.sandboxes.remove_mut(&id);
                    effects.records.push(Record::NoSandbox(id.clone()));
                    if sandbox.visible() {
                        effects.events.push((id.to_string(), id, EventKind::Deleted));
                    }
                }
            }
            Change::AddContainer(container) => {
                let sandbox = self
                    .sandboxes
                    .get(&container.sandbox)
                    .ok_or_else(|| StateError::NoSandbox(container.sandbox.to_string()))?;
                if sandbox.state != SandboxState::Ready {
                    return Err(StateError::SandboxNotReady {
                        id: sandbox.id.clone(),
                        wanted: "a container",
                    });
                }
                if let Some(other) =
                    self.containers_of(&container.sandbox).find(|c| c.key() == container.key())
                {
                    let (name, attempt) = container.key();
                    return Err(StateError::NameTaken {
                        name: name.to_owned(),
                        attempt,
                        id: other.id.to_string(),
                        same: other.is_same_request(&container),
                    });
                }
                let container = Arc::new(*container);
                effects.records.push(Record::Container(container.clone()));
                self.containers.insert(container);
            }
            Change::Container(id, event) => {
                let Some(container) = self.containers.get_mut(&id) else {
                    return Err(StateError::NoContainer(id.to_string()));
                };
                let before = container.state;
                let limited = matches!(event, ContainerEvent::Limited(..));
                let kinds = Arc::make_mut(container).on(event);
                if limited {
                    effects.records.push(Record::Container(container.clone()));
                } else if container.state != before {
                    let record = Record::ContainerLife(container.clone());
                    effects.records.push(record);
                }
                effects.events.extend(
                    kinds.into_iter().map(|kind| (id.to_string(), container.sandbox.clone(), kind)),
                );
            }
            Change::RemoveContainer(id) => self.remove_container(&id, &mut effects),
            Change::Keeper(id, reached) => self.keeper(&id, reached.err()),
            Change::Batch(changes) => {
                for change in changes {
                    if let Ok(more) = self.apply(change) {
                        effects.records.extend(more.records);
                        effects.events.extend(more.events);
                    }
                }
            }
        }
        // Never overwrite an unreadable record.
        effects.records.retain(|record| match record {
            Record::Sandbox(sandbox) | Record::SandboxLife(sandbox) => {
                !is_damaged(sandbox.unknown_reason.as_ref())
            }
            Record::Container(container) | Record::ContainerLife(container) => {
                !is_damaged(container.unknown_reason.as_ref())
            }
            Record::NoSandbox(_) | Record::NoContainer(_) => true,
        });
        Ok(effects)
    }

    /// Records whether a sandbox's keeper can be reached, or why it cannot. An unreadable record's reason takes
    /// precedence.
    fn keeper(&mut self, id: &SandboxId, why: Option<String>) {
        let unknown_reason = why.map(UnknownReason::Keeper);
        if let Some(sandbox) = self.sandboxes.get_mut(id)
            && sandbox.state == SandboxState::Ready
            && !is_damaged(sandbox.unknown_reason.as_ref())
        {
            Arc::make_mut(sandbox).unknown_reason.clone_from(&unknown_reason);
        }
        let asked = |c: &&Arc<Container>| !c.ended() && !is_damaged(c.unknown_reason.as_ref());
        let containers = self.containers_of(id).filter(asked);
        let containers: Vec<ContainerId> = containers.map(|c| c.id.clone()).collect();
        for container in containers {
            if let Some(container) = self.containers.get_mut(&container) {
                let container = Arc::make_mut(container);
                container.unknown_reason.clone_from(&unknown_reason);
            }
        }
    }

    fn remove_container(&mut self, id: &ContainerId, effects: &mut Effects) {
        if let Some(container) = self.containers.remove(id) {
            if container.visible() {
                effects.events.push((
                    id.to_string(),
                    container.sandbox.clone(),
                    EventKind::Deleted,
                ));
            }
            effects.records.push(Record::NoContainer(container));
        }
    }

    /// The containers of a sandbox, visible or not.
    pub(crate) fn containers_of<'a>(
        &'a self,
        sandbox: &'a SandboxId,
    ) -> impl Iterator<Item = &'a Arc<Container>> {
        self.containers.of(sandbox)
    }

    /// The sandbox with this ID: a full ID, or an unambiguous prefix.
    pub(crate) fn sandbox(&self, id: &str) -> Result<&Arc<Sandbox>, StateError> {
        by_prefix(&self.sandboxes, id, Sandbox::visible)?
            .ok_or_else(|| StateError::NoSandbox(id.to_owned()))
    }

    /// The container with this ID: a full ID, or an unambiguous prefix.
    pub(crate) fn container(&self, id: &str) -> Result<&Arc<Container>, StateError> {
        by_prefix(self.containers.by_id(), id, Container::visible)?
            .ok_or_else(|| StateError::NoContainer(id.to_owned()))
    }

    /// [`Self::sandbox`] for calls for which a missing sandbox is not an error.
    pub(crate) fn sandbox_if_there(&self, id: &str) -> Result<Option<&Arc<Sandbox>>, StateError> {
        by_prefix(&self.sandboxes, id, Sandbox::visible)
    }

    /// [`Self::container`] for calls for which a missing container is not an error.
    pub(crate) fn container_if_there(
        &self,
        id: &str,
    ) -> Result<Option<&Arc<Container>>, StateError> {
        by_prefix(self.containers.by_id(), id, Container::visible)
    }
}

fn by_prefix<'a, K, V>(
    records: &'a RedBlackTreeMapSync<K, Arc<V>>,
    id: &str,
    visible: impl Fn(&V) -> bool,
) -> Result<Option<&'a Arc<V>>, StateError>
where
    K: Ord + std::borrow::Borrow<str>,
{
    if let Some(found) = records.get(id) {
        return Ok(visible(found).then_some(found));
    }
    if id.is_empty() {
        return Ok(None);
    }
    let mut candidates = records
        .range::<str, _>((Bound::Included(id), Bound::Unbounded))
        .take_while(|(key, _)| (*key).borrow().starts_with(id))
        .filter(|(_, value)| visible(value))
        .map(|(_, value)| value);
    match (candidates.next(), candidates.next()) {
        (Some(_), Some(_)) => Err(StateError::Ambiguous(id.to_owned())),
        (first, _) => Ok(first),
    }
}

fn is_damaged(unknown_reason: Option<&UnknownReason>) -> bool {
    matches!(unknown_reason, Some(UnknownReason::Record(_)))
}

/// A state in words, for errors.
pub(crate) const fn state_name(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Creating => "being created",
        ContainerState::Created => "created, not started",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Lost => "lost",
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use cri::v1::{PodSandboxConfig, PodSandboxMetadata};
    use jiff::Timestamp;

    use super::*;

    fn sandbox(name: &str) -> Sandbox {
        let metadata = PodSandboxMetadata { name: name.to_owned(), ..Default::default() };
        Sandbox {
            id: SandboxId::random(),
            config: PodSandboxConfig { metadata: Some(metadata), ..Default::default() },
            runtime_handler: String::new(),
            state: SandboxState::Creating,
            created_at: Timestamp::UNIX_EPOCH,
            addresses: Vec::new(),
            cgroup: None,
            labels: None,
            unknown_reason: None,
        }
    }

    fn events_of(state: &mut State, change: Change) -> Vec<EventKind> {
        let events = state.apply(change).unwrap().events;
        events.into_iter().map(|(.., kind)| kind).collect()
    }

    #[test]
    fn sandbox_events_begin_when_ready() {
        let mut state = State::default();
        let made = sandbox("a");
        let id = made.id.clone();
        assert_eq!(events_of(&mut state, Change::AddSandbox(Box::new(made))), []);
        assert!(state.sandbox(id.as_str()).is_err());
        let ready = Change::Sandbox(id.clone(), SandboxEvent::Ready(Vec::new()));
        assert_eq!(events_of(&mut state, ready), [EventKind::Created, EventKind::Started]);
        let stopped = || Change::Sandbox(id.clone(), SandboxEvent::Stopped);
        assert_eq!(events_of(&mut state, stopped()), [EventKind::Stopped]);
        assert_eq!(events_of(&mut state, stopped()), []);
        let removed = Change::RemoveSandbox(id.clone());
        assert_eq!(events_of(&mut state, removed), [EventKind::Deleted]);
        assert_eq!(events_of(&mut state, Change::RemoveSandbox(id)), []);
    }

    #[test]
    fn changes_together_have_the_effects_of_each() {
        let mut state = State::default();
        let added = sandbox("a");
        let id = added.id.clone();
        let _ = state.apply(Change::AddSandbox(Box::new(added)));
        let refused = Change::RemoveContainer(ContainerId::from_record("none"));
        let missing = Change::Container(
            ContainerId::from_record("none"),
            ContainerEvent::Lost(jiff::Timestamp::UNIX_EPOCH),
        );
        let together = Change::Batch(vec![
            refused,
            Change::Sandbox(id.clone(), SandboxEvent::Ready(Vec::new())),
            missing,
            Change::Sandbox(id, SandboxEvent::Stopped),
        ]);
        assert_eq!(
            events_of(&mut state, together),
            [EventKind::Created, EventKind::Started, EventKind::Stopped]
        );
    }

    #[test]
    fn duplicate_name_is_refused() {
        let mut state = State::default();
        let _ = state.apply(Change::AddSandbox(Box::new(sandbox("a")))).unwrap();
        let again = state.apply(Change::AddSandbox(Box::new(sandbox("a"))));
        assert!(matches!(again, Err(StateError::NameTaken { .. })));
        assert!(state.apply(Change::AddSandbox(Box::new(sandbox("b")))).is_ok());
    }

    #[test]
    fn id_prefix_resolves_when_unique() {
        let mut state = State::default();
        // Of 17 IDs at least two begin with the same digit.
        for number in 0..17 {
            let made = sandbox(&number.to_string());
            let id = made.id.clone();
            let _ = state.apply(Change::AddSandbox(Box::new(made))).unwrap();
            let _ = state.apply(Change::Sandbox(id, SandboxEvent::Ready(Vec::new()))).unwrap();
        }
        let ids: Vec<String> = state.sandboxes.keys().map(ToString::to_string).collect();
        let digit = |id: &str| id[..1].to_owned();
        let shared =
            ids.iter().find(|id| ids.iter().filter(|o| digit(o) == digit(id)).count() > 1).unwrap();
        let ambiguous = StateError::Ambiguous(digit(shared));
        assert_eq!(state.sandbox_if_there(&digit(shared)).unwrap_err(), ambiguous);
        assert_eq!(state.sandbox(&shared[..40]).unwrap().id.as_str(), shared);
        assert!(state.sandbox_if_there("no id").unwrap().is_none());
        assert_eq!(state.sandbox("").unwrap_err(), StateError::NoSandbox(String::new()));
    }
}
