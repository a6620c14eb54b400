//! All records and the changes to them: pure.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    container::{Container, ContainerEvent, ContainerState, Told},
    id::{ContainerId, SandboxId},
    sandbox::{Sandbox, SandboxEvent, SandboxState},
};

/// Every record. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct State {
    pub(crate) sandboxes: BTreeMap<SandboxId, Arc<Sandbox>>,
    pub(crate) containers: BTreeMap<ContainerId, Arc<Container>>,
}

/// What may be asked of the store.
#[derive(Debug)]
pub(crate) enum Change {
    AddSandbox(Box<Sandbox>),
    Sandbox(SandboxId, SandboxEvent),
    /// Removes it with all its containers.
    RemoveSandbox(SandboxId),
    AddContainer(Box<Container>),
    Container(ContainerId, ContainerEvent),
    RemoveContainer(ContainerId),
}

/// Why a change was not made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Refused {
    #[error("no such pod sandbox: {0}")]
    NoSandbox(String),
    #[error("no such container: {0}")]
    NoContainer(String),
    #[error(
        "the name {name} (attempt {attempt}) is taken by {id}: remove that one first, or count the attempt up"
    )]
    NameTaken {
        name: String,
        attempt: u32,
        id: String,
    },
    #[error("pod sandbox {id} is not ready: {wanted} needs a running one")]
    SandboxNotReady { id: SandboxId, wanted: &'static str },
    #[error("container {id} is {state}: {wanted}")]
    WrongState {
        id: ContainerId,
        state: &'static str,
        wanted: &'static str,
    },
    #[error("the runtime is shutting down")]
    ShuttingDown,
}

/// What follows from a change.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Effects {
    pub(crate) records: Vec<Record>,
    pub(crate) news: Vec<(String, SandboxId, Told)>,
}

/// What is to be on disk.
#[derive(Debug)]
pub(crate) enum Record {
    Sandbox(Arc<Sandbox>),
    Container(Arc<Container>),
    NoSandbox(SandboxId),
    NoContainer(Arc<Container>),
}

impl State {
    pub(crate) fn apply(&mut self, change: Change) -> Result<Effects, Refused> {
        let mut effects = Effects::default();
        match change {
            Change::AddSandbox(sandbox) => {
                if let Some(other) = self.sandboxes.values().find(|s| s.key() == sandbox.key()) {
                    let (name, namespace, _, attempt) = sandbox.key();
                    return Err(Refused::NameTaken {
                        name: format!("{namespace}/{name}"),
                        attempt,
                        id: other.id.to_string(),
                    });
                }
                let sandbox = Arc::new(*sandbox);
                effects.records.push(Record::Sandbox(sandbox.clone()));
                self.sandboxes.insert(sandbox.id.clone(), sandbox);
            }
            Change::Sandbox(id, event) => {
                let Some(sandbox) = self.sandboxes.get_mut(&id) else {
                    return Err(Refused::NoSandbox(id.to_string()));
                };
                let before = sandbox.state;
                if Arc::make_mut(sandbox).on(event) {
                    effects.records.push(Record::Sandbox(sandbox.clone()));
                    let told: &[Told] = match (before, sandbox.state) {
                        (SandboxState::Creating, SandboxState::Ready) => {
                            &[Told::Created, Told::Started]
                        }
                        (SandboxState::Creating, _) => &[],
                        (SandboxState::Ready | SandboxState::NotReady, _) => &[Told::Stopped],
                    };
                    effects
                        .news
                        .extend(told.iter().map(|told| (id.to_string(), id.clone(), *told)));
                }
            }
            Change::RemoveSandbox(id) => {
                let containers: Vec<ContainerId> =
                    self.containers_of(&id).map(|c| c.id.clone()).collect();
                for container in containers {
                    self.remove_container(&container, &mut effects);
                }
                if let Some(sandbox) = self.sandboxes.remove(&id) {
                    effects.records.push(Record::NoSandbox(id.clone()));
                    if sandbox.visible() {
                        effects.news.push((id.to_string(), id, Told::Deleted));
                    }
                }
            }
            Change::AddContainer(container) => {
                let sandbox = self
                    .sandboxes
                    .get(&container.sandbox)
                    .ok_or_else(|| Refused::NoSandbox(container.sandbox.to_string()))?;
                if sandbox.state != SandboxState::Ready {
                    return Err(Refused::SandboxNotReady {
                        id: sandbox.id.clone(),
                        wanted: "a container",
                    });
                }
                if let Some(other) = self
                    .containers_of(&container.sandbox)
                    .find(|c| c.key() == container.key())
                {
                    let (name, attempt) = container.key();
                    return Err(Refused::NameTaken {
                        name: name.to_owned(),
                        attempt,
                        id: other.id.to_string(),
                    });
                }
                let container = Arc::new(*container);
                effects.records.push(Record::Container(container.clone()));
                self.containers.insert(container.id.clone(), container);
            }
            Change::Container(id, event) => {
                let Some(container) = self.containers.get_mut(&id) else {
                    return Err(Refused::NoContainer(id.to_string()));
                };
                let before = container.state;
                let told = Arc::make_mut(container).on(event);
                if container.state != before {
                    effects.records.push(Record::Container(container.clone()));
                }
                effects.news.extend(
                    told.into_iter()
                        .map(|told| (id.to_string(), container.sandbox.clone(), told)),
                );
            }
            Change::RemoveContainer(id) => self.remove_container(&id, &mut effects),
        }
        Ok(effects)
    }

    fn remove_container(&mut self, id: &ContainerId, effects: &mut Effects) {
        if let Some(container) = self.containers.remove(id) {
            if container.visible() {
                effects
                    .news
                    .push((id.to_string(), container.sandbox.clone(), Told::Deleted));
            }
            effects.records.push(Record::NoContainer(container));
        }
    }

    /// The containers of a sandbox, visible or not.
    pub(crate) fn containers_of<'a>(
        &'a self,
        sandbox: &'a SandboxId,
    ) -> impl Iterator<Item = &'a Arc<Container>> {
        self.containers
            .values()
            .filter(move |c| c.sandbox == *sandbox)
    }

    /// The sandbox that a client means by `id`: a whole id, or the beginning of just one.
    pub(crate) fn sandbox(&self, id: &str) -> Result<&Arc<Sandbox>, Refused> {
        by_prefix(&self.sandboxes, id, Sandbox::visible)
            .ok_or_else(|| Refused::NoSandbox(id.to_owned()))
    }

    /// The container that a client means by `id`: a whole id, or the beginning of just one.
    pub(crate) fn container(&self, id: &str) -> Result<&Arc<Container>, Refused> {
        by_prefix(&self.containers, id, Container::visible)
            .ok_or_else(|| Refused::NoContainer(id.to_owned()))
    }
}

fn by_prefix<'a, K, V>(
    records: &'a BTreeMap<K, Arc<V>>,
    id: &str,
    visible: impl Fn(&V) -> bool,
) -> Option<&'a Arc<V>>
where
    K: Ord + std::borrow::Borrow<str>,
{
    if let Some(found) = records.get(id) {
        return visible(found).then_some(found);
    }
    if id.is_empty() {
        return None;
    }
    let mut candidates = records
        .iter()
        .filter(|(key, value)| (*key).borrow().starts_with(id) && visible(value))
        .map(|(_, value)| value);
    candidates.next().filter(|_| candidates.next().is_none())
}

/// A state in words, for errors.
pub(crate) const fn words(state: ContainerState) -> &'static str {
    match state {
        ContainerState::Creating => "being created",
        ContainerState::Created => "created, not started",
        ContainerState::Running => "running",
        ContainerState::Exited => "exited",
        ContainerState::Lost => "lost",
    }
}
