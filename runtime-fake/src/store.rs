//! The store: one task owns the records of every sandbox and container. It receives changes as messages and
//! publishes the state through a watch channel. A change is on disk before any reader sees it.

mod containers;
mod damaged;
mod disk;
mod document;
mod state;
#[cfg(test)]
mod versions;

use std::{path::Path, sync::Arc};

use jiff::Timestamp;
use tokio::sync::{broadcast, mpsc, oneshot, watch};

use crate::{container::EventKind, id::SandboxId};

pub use disk::OpenError;
pub(crate) use disk::{Directory, container_dir, sandbox_dir};
pub(crate) use state::{Change, State, StateError, state_name};

/// The number of events that a slow subscriber may lag behind; beyond it, the subscriber gets the number of missed events.
const EVENT_CAPACITY: usize = 4096;

/// An event, with the state right after it.
#[derive(Debug, Clone)]
pub(crate) struct StoreEvent {
    /// The container's ID, or the sandbox's for an event of the sandbox itself.
    pub(crate) about: String,
    /// The sandbox of the event.
    pub(crate) sandbox: SandboxId,
    pub(crate) kind: EventKind,
    /// When the store received it: the same for every subscriber.
    pub(crate) at: Timestamp,
    pub(crate) state: Arc<State>,
}

struct Command {
    change: Change,
    done: oneshot::Sender<Result<(), StateError>>,
}

/// A handle to the store; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Store {
    commands: mpsc::Sender<Command>,
    states: watch::Receiver<Arc<State>>,
    events: broadcast::Sender<StoreEvent>,
}

impl Store {
    /// Starts the task that owns `state`, which was read from `directory`.
    pub(crate) fn start(directory: Directory, state: State) -> Self {
        let (commands, inbox) = mpsc::channel(64);
        let (publish, states) = watch::channel(Arc::new(state));
        let events = broadcast::Sender::new(EVENT_CAPACITY);
        tasks::spawn(own(directory, inbox, publish, events.clone()));
        Self { commands, states, events }
    }

    /// Applies `change`. When this returns, the change is on disk and in [`Self::state`].
    pub(crate) async fn apply(&self, change: Change) -> Result<(), StateError> {
        let (done, answer) = oneshot::channel();
        if self.commands.send(Command { change, done }).await.is_err() {
            return Err(StateError::ShuttingDown);
        }
        answer.await.unwrap_or(Err(StateError::ShuttingDown))
    }

    /// The current state.
    pub(crate) fn state(&self) -> Arc<State> {
        self.states.borrow().clone()
    }

    /// Waits until `reached` holds.
    pub(crate) async fn wait(
        &self,
        mut reached: impl FnMut(&State) -> bool,
    ) -> Result<(), StateError> {
        let mut states = self.states.clone();
        let waited = states.wait_for(|state| reached(state)).await;
        waited.map(drop).map_err(|_| StateError::ShuttingDown)
    }

    /// Subscribes to all events from now on, in order.
    pub(crate) fn subscribe(&self) -> broadcast::Receiver<StoreEvent> {
        self.events.subscribe()
    }
}

async fn own(
    directory: Directory,
    mut inbox: mpsc::Receiver<Command>,
    publish: watch::Sender<Arc<State>>,
    events: broadcast::Sender<StoreEvent>,
) {
    let mut state = State::clone(&publish.borrow());
    while let Some(Command { change, done }) = inbox.recv().await {
        let adds = matches!(change, Change::AddSandbox(_) | Change::AddContainer(_));
        let result = state.apply(change).and_then(|effects| {
            // Write small files to the page cache here: handing them to another thread would take longer.
            for record in &effects.records {
                match directory.write(record) {
                    Ok(()) => {}
                    // No process of the new object runs yet: fail rather than lose the object at a restart.
                    Err(error) if adds => {
                        state = State::clone(&publish.borrow());
                        return Err(StateError::NotSaved {
                            what: record.names(),
                            directory: directory.path().display().to_string(),
                            why: error.to_string(),
                            kind: error.kind(),
                        });
                    }
                    // Keep the new state in memory; after a restart the daemon finds the older record and gets the state from the
                    // keeper.
                    Err(error) => {
                        tracing::error!(record = record.names(), %error, "failed to write record");
                    }
                }
            }
            let now = Arc::new(state.clone());
            publish.send_replace(now.clone());
            for (about, sandbox, kind) in effects.events {
                tracing::info!(about = about.get(..13).unwrap_or(&about), ?kind, "changed");
                // There may be no subscriber.
                let _ = events.send(StoreEvent {
                    about,
                    sandbox,
                    kind,
                    at: Timestamp::now(),
                    state: now.clone(),
                });
            }
            Ok(())
        });
        let _ = done.send(result);
    }
}

/// Opens the state directory and reads its records.
pub(crate) fn open(path: &Path) -> Result<(Directory, State), OpenError> {
    let directory = Directory::open(path)?;
    let state = directory.read()?;
    Ok((directory, state))
}
