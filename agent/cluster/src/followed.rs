//! The objects of one kind as a controller follows them in the store.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Error;
use crate::key::Key;
use crate::kind::Kind;
use crate::object::Object;
use crate::selection::Selection;
use crate::state::Event;
use crate::store::{Store, Watch};

/// Objects of one kind as they were last.
type Objects = BTreeMap<Key, Arc<Object>>;

/// An object as it was and as it is.
pub(crate) type Changed = (Option<Arc<Object>>, Option<Arc<Object>>);

/// The objects of a kind, as they were when they were last looked at.
#[derive(Debug)]
pub(crate) struct Followed {
    selection: Selection,
    watch: Watch,
    pub(crate) objects: Objects,
    /// Those of the first list, until they are looked at.
    first: Vec<Arc<Object>>,
}

impl Followed {
    /// Follows the objects from now on; those that there are, are the first changes.
    pub(crate) fn new(store: &Store, kind: Kind) -> Result<Self, Error> {
        let selection = Selection::of(kind);
        let list = store.list(&selection);
        let watch = store.watch(selection.clone(), list.version)?;
        Ok(Self { selection, watch, objects: Objects::new(), first: list.items })
    }

    /// What has changed, as it was and as it is.
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
                // The store does not remember what was missed.
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
