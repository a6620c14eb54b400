//! The objects of one kind in the store, as followed by a controller.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::kind::Kind;
use crate::object::Object;
use crate::selection::Selection;
use crate::state::Event;
use crate::store::{Store, Watch};

/// The last versions of objects of one kind.
type Objects = BTreeMap<Key, Arc<Object>>;

/// The versions of an object before and after a change.
pub(crate) type Changed = (Option<Arc<Object>>, Option<Arc<Object>>);

/// The objects of a kind, as of the last call of [`Followed::changes`].
#[derive(Debug)]
pub(crate) struct Followed {
    selection: Selection,
    watch: Watch,
    pub(crate) objects: Objects,
    /// The objects of the first list, until the first call.
    first: Vec<Arc<Object>>,
}

impl Followed {
    /// Watches the objects from now on; existing objects are the first changes.
    pub(crate) fn new(store: &Store, kind: Kind) -> Result<Self, Error> {
        let selection = Selection::of(kind);
        let list = store.list(&selection);
        let watch = store.watch(selection.clone(), list.version)?;
        Ok(Self { selection, watch, objects: Objects::new(), first: list.items })
    }

    /// The changes since the last call, each with the previous and the new version.
    pub(crate) fn changes(&mut self, store: &Store) -> Result<Vec<Changed>, Error> {
        let mut changes = Vec::new();
        for object in std::mem::take(&mut self.first) {
            changes.push(self.set(object));
        }
        loop {
            match self.watch.try_next() {
                Ok(Some(Event::Added(object) | Event::Modified(object))) => {
                    changes.push(self.set(object));
                }
                Ok(Some(Event::Deleted(object))) => {
                    changes.push((self.objects.remove(&object.key), None));
                }
                Ok(None) => return Ok(changes),
                // The store no longer has the missed changes.
                Err(_) => {
                    let list = store.list(&self.selection);
                    self.watch = store.watch(self.selection.clone(), list.version)?;
                    let before = std::mem::take(&mut self.objects);
                    let gone = before.into_values().map(|object| (Some(object), None));
                    changes.extend(gone);
                    for object in list.items {
                        changes.push(self.set(object));
                    }
                }
            }
        }
    }

    fn set(&mut self, object: Arc<Object>) -> Changed {
        let before = self.objects.insert(object.key.clone(), Arc::clone(&object));
        (before, Some(object))
    }
}
