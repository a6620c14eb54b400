//! ◆ The objects, their versions, and the last changes. Pure: the caller passes the time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use api::generated_names::GeneratedNames;
use jiff::Timestamp;
use serde_json::Value;

use crate::delete::{self, DeleteOptions, Deleted, Deletion};
use crate::error::Error;
use crate::key::Key;
use crate::object::{Object, metadata, set_metadata};
use crate::selection::Selection;
use crate::write::{self, Part};

/// A change, as a watcher of a selection sees it.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// An object was added to the selection.
    Added(Arc<Object>),
    /// An object of the selection has changed.
    Modified(Arc<Object>),
    /// An object left the selection: it was removed, or changed to this.
    Deleted(Arc<Object>),
}

impl Event {
    /// The object after the change.
    #[must_use]
    pub fn object(&self) -> &Arc<Object> {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => object,
        }
    }
}

/// The objects of a selection at one time.
#[derive(Clone, Debug, PartialEq)]
pub struct List {
    /// The version of the store at this time: a watch from there on misses nothing.
    pub version: u64,
    /// The objects, by kind, namespace and name.
    pub items: Vec<Arc<Object>>,
}

/// A write that changed an object. Its version is given by its place in the history.
#[derive(Debug)]
struct Change {
    before: Option<Arc<Object>>,
    after: Arc<Object>,
    removed: bool,
}

/// The objects, and the last changes.
#[derive(Debug)]
pub(crate) struct State {
    version: u64,
    objects: BTreeMap<Key, Arc<Object>>,
    /// The last changes, one for each version.
    history: VecDeque<Change>,
    capacity: usize,
    names: GeneratedNames,
}

impl State {
    /// Creates a state without objects. It records the last `capacity` changes; generated names and uids depend on `seed`.
    pub(crate) fn new(seed: u64, capacity: usize) -> Self {
        let names = GeneratedNames::new(seed);
        // As in etcd, 0 is not a version: for a client it means any version.
        Self { version: 1, objects: BTreeMap::new(), history: VecDeque::new(), capacity, names }
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn get(&self, key: &Key) -> Result<Arc<Object>, Error> {
        let object = self.objects.get(key).cloned();
        object.ok_or_else(|| Error::NotFound(key.clone()))
    }

    pub(crate) fn list(&self, selection: &Selection) -> List {
        let objects = self.objects.values().filter(|object| selection.has(object));
        List { version: self.version, items: objects.cloned().collect() }
    }

    /// The changes in the selection after a version.
    pub(crate) fn changes(&self, selection: &Selection, after: u64) -> Result<Vec<Event>, Error> {
        let oldest = self.version - u64::try_from(self.history.len()).unwrap_or_default();
        if after < oldest {
            return Err(Error::Expired { requested: after, oldest });
        }
        let seen = usize::try_from(after - oldest).unwrap_or(usize::MAX);
        let new = self.history.iter().skip(seen);
        Ok(new.filter_map(|change| event(change, selection)).collect())
    }

    pub(crate) fn create(
        &mut self,
        mut value: Value,
        now: Timestamp,
    ) -> Result<Arc<Object>, Error> {
        let mut key = Key::of(&value)?;
        let version = metadata(&value, "resourceVersion").and_then(Value::as_str);
        if version.is_some_and(|version| !version.is_empty()) {
            let message = "resourceVersion should not be set on objects to be created";
            return Err(Error::BadRequest(message.to_owned()));
        }
        if key.name.is_empty() {
            let prefix = metadata(&value, "generateName").and_then(Value::as_str);
            let Some(prefix) = prefix.filter(|prefix| !prefix.is_empty()) else {
                let why = "metadata.name: Required value: name or generateName is required";
                return Err(Error::invalid(&key, why));
            };
            key.name = self.names.generate(prefix).into();
            set_metadata(&mut value, "name", Some(Value::from(&*key.name)));
        }
        if !key.namespace.is_empty() {
            set_metadata(&mut value, "namespace", Some(Value::from(&*key.namespace)));
        }
        if self.objects.contains_key(&key) {
            return Err(Error::AlreadyExists(key));
        }
        // Objects of manifests keep their uid, so that a later run finds their directories.
        let own = metadata(&value, "uid").and_then(Value::as_str).filter(|uid| !uid.is_empty());
        let uid = match own {
            Some(uid) => uid.to_owned(),
            None => self.names.uid(&key.kind.resource(), &key.name),
        };
        let value = write::created(&key, value, uid, now);
        Ok(self.keep(key, None, value))
    }

    pub(crate) fn update(&mut self, value: Value, part: Part) -> Result<Arc<Object>, Error> {
        let key = Key::of(&value)?;
        let old = self.get(&key)?;
        let Some(new) = write::updated(&old, value, part)? else {
            return Ok(old);
        };
        if delete::is_released(&old, &new) {
            return Ok(self.remove(key, old, new));
        }
        Ok(self.keep(key, Some(old), new))
    }

    pub(crate) fn bind(
        &mut self,
        key: &Key,
        node: &str,
        now: Timestamp,
    ) -> Result<Arc<Object>, Error> {
        let old = self.get(key)?;
        let new = write::bound(&old, node, now)?;
        Ok(self.keep(key.clone(), Some(old), new))
    }

    pub(crate) fn delete(
        &mut self,
        key: &Key,
        options: &DeleteOptions,
        now: Timestamp,
    ) -> Result<Deleted, Error> {
        let old = self.get(key)?;
        Ok(match delete::deletion(&old, options, now)? {
            Deletion::Pending => Deleted { object: old, removed: false },
            Deletion::Marked(new) => {
                Deleted { object: self.keep(key.clone(), Some(old), new), removed: false }
            }
            Deletion::Removed(new) => {
                Deleted { object: self.remove(key.clone(), old, new), removed: true }
            }
        })
    }

    fn keep(&mut self, key: Key, before: Option<Arc<Object>>, value: Value) -> Arc<Object> {
        let object = self.next(key.clone(), value);
        self.objects.insert(key, object.clone());
        self.record(Change { before, after: object.clone(), removed: false });
        object
    }

    fn remove(&mut self, key: Key, before: Arc<Object>, value: Value) -> Arc<Object> {
        self.objects.remove(&key);
        let object = self.next(key, value);
        self.record(Change { before: Some(before), after: object.clone(), removed: true });
        object
    }

    fn next(&mut self, key: Key, mut value: Value) -> Arc<Object> {
        self.version += 1;
        let version = self.version;
        set_metadata(&mut value, "resourceVersion", Some(Value::String(version.to_string())));
        Arc::new(Object { key, version, value })
    }

    fn record(&mut self, change: Change) {
        self.history.push_back(change);
        if self.history.len() > self.capacity {
            self.history.pop_front();
        }
    }
}

/// A change as a watcher of the selection sees it.
fn event(change: &Change, selection: &Selection) -> Option<Event> {
    let was_in = change.before.as_ref().is_some_and(|before| selection.has(before));
    let is_in = !change.removed && selection.has(&change.after);
    let object = || Arc::clone(&change.after);
    match (was_in, is_in) {
        (false, true) => Some(Event::Added(object())),
        (true, true) => Some(Event::Modified(object())),
        (true, false) => Some(Event::Deleted(object())),
        (false, false) => None,
    }
}
