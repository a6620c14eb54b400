//! The store that tasks share. Reads and writes are short and never wait; watches wait for changes.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use crate::delete::{DeleteOptions, Deleted};
use crate::error::Error;
use crate::key::Key;
use crate::object::Object;
use crate::patch::Patch;
use crate::selection::Selection;
use crate::state::{Event, List, State};
use crate::write::{self, Part};

/// The number of changes that a store records for its watchers.
const HISTORY: usize = 4096;

/// The objects of one cluster. Clones share the store.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// The version of the latest change.
    version: watch::Sender<u64>,
}

impl Store {
    /// Creates a store without objects. Generated names and uids depend on `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self::with_history(seed, HISTORY)
    }

    /// Creates a store that records the last `changes` changes. A watcher that falls further behind must list again.
    #[must_use]
    pub fn with_history(seed: u64, changes: usize) -> Self {
        let state = State::new(seed, changes);
        let version = watch::Sender::new(state.version());
        Self(Arc::new(Shared { state: Mutex::new(state), version }))
    }

    /// The object with this key.
    pub fn get(&self, key: &Key) -> Result<Arc<Object>, Error> {
        self.state().get(key)
    }

    /// The objects of a selection.
    #[must_use]
    pub fn list(&self, selection: &Selection) -> List {
        self.state().list(selection)
    }

    /// The changes of a selection after a version from a list or an earlier watch. [`Error::Expired`] if the store no longer has
    /// them: list again.
    pub fn watch(&self, selection: Selection, after: u64) -> Result<Watch, Error> {
        let state = self.state();
        if after > state.version() {
            let message =
                format!("Too large resource version: {after}, current: {}", state.version());
            return Err(Error::BadRequest(message));
        }
        state.changes(&selection, after)?;
        drop(state);
        let version = self.0.version.subscribe();
        Ok(Watch { store: self.clone(), selection, after, new: VecDeque::new(), version })
    }

    /// Adds an object. It gets a uid if it has none, and a name if it has only `generateName`. If its status is a subresource, the
    /// given status is ignored.
    pub fn create(&self, value: Value, now: Timestamp) -> Result<Arc<Object>, Error> {
        self.write(|state| state.create(value, now))
    }

    /// Replaces a part of the object with this key. A uid or a version in the value must match the object's. Without a difference
    /// there is no new version. A deleted object is removed with its last finalizer.
    pub fn update(&self, value: Value, part: Part) -> Result<Arc<Object>, Error> {
        self.write(|state| state.update(value, part))
    }

    /// Changes a part of an object's current version. No other write comes between; `change` must not call the store.
    pub fn change(
        &self,
        key: &Key,
        part: Part,
        change: impl FnOnce(&mut Value) -> Result<(), Error>,
    ) -> Result<Arc<Object>, Error> {
        self.write(|state| {
            let mut value = state.get(key)?.value.clone();
            change(&mut value)?;
            if Key::of(&value)? != *key {
                let why = "metadata.name, metadata.namespace, kind: field is immutable";
                return Err(Error::invalid(key, why));
            }
            state.update(value, part)
        })
    }

    /// Patches a part of an object's current version. A uid or a version in the patch must match the object's.
    pub fn patch(&self, key: &Key, part: Part, patch: &Patch) -> Result<Arc<Object>, Error> {
        self.change(key, part, |value| patch.apply(key, value))
    }

    /// Sets the number of an object's pods, as the subresource `scale` does. With `expected`, the current number must be this one.
    pub fn scale(
        &self,
        key: &Key,
        replicas: i32,
        expected: Option<i32>,
    ) -> Result<Arc<Object>, Error> {
        self.change(key, Part::Main, |value| write::scale(key, value, replicas, expected))
    }

    /// Assigns a pod to a node.
    pub fn bind(&self, key: &Key, node: &str, now: Timestamp) -> Result<Arc<Object>, Error> {
        self.write(|state| state.bind(key, node, now))
    }

    /// Deletes an object: it is removed, or gets a deletion time. A pod is removed when its node deletes it without a grace period.
    pub fn delete(
        &self,
        key: &Key,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Result<Deleted, Error> {
        self.write(|state| state.delete(key, options, now))
    }

    fn write<T>(&self, write: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let result = write(&mut state);
        let version = state.version();
        drop(state);
        // Two writers may arrive here in the reverse order.
        self.0.version.send_if_modified(|latest| {
            let is_new = *latest < version;
            *latest = version.max(*latest);
            is_new
        });
        result
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of a writer leaves the objects consistent: a change is recorded when it is complete.
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The changes of a selection, in the order of the writes.
#[derive(Debug)]
pub struct Watch {
    store: Store,
    selection: Selection,
    after: u64,
    new: VecDeque<Event>,
    version: watch::Receiver<u64>,
}

impl Watch {
    /// Waits for the next change. [`Error::Expired`] if more changes were made meanwhile than the store records: list again.
    /// Cancel-safe.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            if let Some(event) = self.try_next()? {
                return Ok(event);
            }
            // The watch itself holds the store, so that its sender exists.
            let _ = self.version.changed().await;
        }
    }

    /// The next change, if there is one.
    pub fn try_next(&mut self) -> Result<Option<Event>, Error> {
        if self.new.is_empty() {
            self.version.mark_unchanged();
            let state = self.store.state();
            self.new = state.changes(&self.selection, self.after)?.into();
            self.after = state.version();
        }
        Ok(self.new.pop_front())
    }

    /// The version after which another watch continues where this one is.
    #[must_use]
    pub fn version(&self) -> u64 {
        match self.new.front() {
            Some(event) => event.object().version - 1,
            None => self.after,
        }
    }
}
