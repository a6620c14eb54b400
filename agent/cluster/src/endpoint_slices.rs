//! The controller of EndpointSlices: watches Services and pods in the store, and updates the slices of the Services that a change
//! affects.
//!
//! Source: Kubernetes 1.36, pkg/controller/endpointslice/endpointslice_controller.go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use crate::controllers::endpoints;
use crate::delete::DeleteOptions;
use crate::error::Error;
use crate::followed::Followed;
use crate::key::Key;
use crate::kind::Kind;
use crate::object::Object;
use crate::store::Store;
use crate::write::Part;

/// Maintains the EndpointSlices of a store.
#[derive(Debug)]
pub struct EndpointSlices {
    store: Store,
    services: Followed,
    pods: Followed,
    /// The slices of each Service.
    slices: BTreeMap<Key, BTreeSet<Key>>,
}

impl EndpointSlices {
    /// Creates the controller, which watches the store from its beginning.
    ///
    /// # Errors
    ///
    /// Never, unless more changes happen meanwhile than the store records.
    pub fn new(store: &Store) -> Result<Self, Error> {
        Ok(Self {
            services: Followed::new(store, Kind::of("v1", "Service"))?,
            pods: Followed::new(store, Kind::pod())?,
            store: store.clone(),
            slices: BTreeMap::new(),
        })
    }

    /// Handles the changes since the last call, and writes the slices of the affected Services. Returns these Services.
    ///
    /// # Errors
    ///
    /// If the store rejects a write. Its Services are not updated again before they, or their pods, change.
    pub fn sync(&mut self, now: Timestamp) -> Result<BTreeSet<Key>, Error> {
        let mut touched = BTreeSet::new();
        let changed_pods = self.pods.changes(&self.store)?;
        for (before, after) in self.services.changes(&self.store)? {
            touched.extend(before.or(after).map(|service| service.key.clone()));
        }
        for service in self.services.objects.values() {
            let is_behind = |pod: &Option<Arc<Object>>| {
                pod.as_ref().is_some_and(|pod| endpoints::chooses(&service.value, &pod.value))
            };
            if changed_pods.iter().any(|(before, after)| is_behind(before) || is_behind(after)) {
                touched.insert(service.key.clone());
            }
        }
        let mut refused = None;
        for key in &touched {
            if let Err(error) = self.write(key, now) {
                refused = Some(error);
            }
        }
        refused.map_or(Ok(touched), Err)
    }

    /// Writes the slices of one Service, or removes those of a removed one.
    fn write(&mut self, of: &Key, now: Timestamp) -> Result<(), Error> {
        let service = self.services.objects.get(of);
        let from = Key::pod(&of.namespace, "");
        let in_namespace = |key: &Key| key.namespace == of.namespace;
        let pods = self.pods.objects.range(from..).take_while(|(key, _)| in_namespace(key));
        let pods = pods.map(|(_, pod)| &pod.value);
        let wanted = service.map(|service| endpoints::slices(&service.value, pods));
        let mut before = self.slices.remove(of).unwrap_or_default();
        let (mut kept, mut refused) = (BTreeSet::new(), None);
        for slice in wanted.into_iter().flatten() {
            let written = Key::of(&slice).and_then(|key| {
                before.remove(&key);
                self.put(&key, slice, now)?;
                Ok(key)
            });
            match written {
                Ok(key) => drop(kept.insert(key)),
                Err(error) => refused = Some(error),
            }
        }
        for key in before {
            match self.store.delete(&key, &DeleteOptions::now(), now) {
                // Another client may have deleted it.
                Ok(_) | Err(Error::NotFound(_)) => {}
                Err(error) => refused = Some(error),
            }
        }
        if !kept.is_empty() {
            self.slices.insert(of.clone(), kept);
        }
        refused.map_or(Ok(()), Err)
    }

    fn put(&self, key: &Key, slice: Value, now: Timestamp) -> Result<(), Error> {
        match self.store.get(key) {
            Ok(_) => self.store.update(slice, Part::Main),
            Err(_) => self.store.create(slice, now),
        }
        .map(drop)
    }
}
