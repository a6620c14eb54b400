//! The API objects that pods refer to, as a read-only view.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use k8s_openapi::api::core::v1::{ConfigMap, Secret, Service};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use tokio::sync::watch;

use crate::manifest::Object;

/// ConfigMaps, Secrets and Services by namespace.
pub trait Objects: Send + Sync {
    /// The ConfigMap of that name.
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>>;

    /// The Secret of that name.
    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>>;

    /// The Services of the namespace, by name.
    fn services(&self, namespace: &str) -> Vec<Arc<Service>>;

    /// The Services of all namespaces.
    fn all_services(&self) -> Vec<Arc<Service>>;

    /// Sees that objects changed, from now on; `None` if they never do.
    fn changes(&self) -> Option<watch::Receiver<u64>> {
        None
    }
}

/// Namespace and name.
type Key = (String, String);

/// Objects in memory.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectMap {
    config_maps: BTreeMap<Key, Arc<ConfigMap>>,
    secrets: BTreeMap<Key, Arc<Secret>>,
    services: BTreeMap<Key, Arc<Service>>,
}

fn key(metadata: &ObjectMeta) -> Key {
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = metadata.name.clone().unwrap_or_default();
    (namespace.to_owned(), name)
}

fn get<T>(map: &BTreeMap<Key, Arc<T>>, namespace: &str, name: &str) -> Option<Arc<T>> {
    map.get(&(namespace.to_owned(), name.to_owned())).cloned()
}

impl ObjectMap {
    /// Adds the objects of another map; those replace the ones of their names.
    pub fn merge(&mut self, other: Self) {
        self.config_maps.extend(other.config_maps);
        self.secrets.extend(other.secrets);
        self.services.extend(other.services);
    }

    /// Adds a ConfigMap, or replaces the one of that name.
    pub fn insert_config_map(&mut self, object: ConfigMap) {
        self.config_maps
            .insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds a Secret, or replaces the one of that name.
    pub fn insert_secret(&mut self, object: Secret) {
        self.secrets.insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds a Service, or replaces the one of that name.
    pub fn insert_service(&mut self, object: Service) {
        self.services
            .insert(key(&object.metadata), Arc::new(object));
    }
}

impl Extend<Object> for ObjectMap {
    /// A later object replaces an earlier one of the same name.
    fn extend<T: IntoIterator<Item = Object>>(&mut self, objects: T) {
        for object in objects {
            match object {
                Object::ConfigMap(map) => self.insert_config_map(map),
                Object::Secret(secret) => self.insert_secret(secret),
                Object::Service(service) => self.insert_service(*service),
                // Pods live in namespaces, and name accounts, without them.
                Object::Namespace(_) | Object::ServiceAccount(_) => {}
            }
        }
    }
}

impl Objects for ObjectMap {
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        get(&self.config_maps, namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        get(&self.secrets, namespace, name)
    }

    fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
        let from = (namespace.to_owned(), String::new());
        self.services
            .range(from..)
            .take_while(|((of, _), _)| of == namespace)
            .map(|(_, service)| Arc::clone(service))
            .collect()
    }

    fn all_services(&self) -> Vec<Arc<Service>> {
        self.services.values().map(Arc::clone).collect()
    }
}

/// Objects in memory that can be replaced while pods use them.
#[derive(Debug, Default)]
pub struct ObjectStore {
    current: RwLock<Arc<ObjectMap>>,
    /// Counts the replacements.
    version: watch::Sender<u64>,
}

impl ObjectStore {
    /// A store with these objects.
    #[must_use]
    pub fn new(objects: ObjectMap) -> Self {
        Self {
            current: RwLock::new(Arc::new(objects)),
            version: watch::Sender::new(0),
        }
    }

    /// Replaces all objects.
    pub fn set(&self, objects: ObjectMap) {
        let objects = Arc::new(objects);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = objects;
        self.version.send_modify(|version| *version += 1);
    }

    fn current(&self) -> Arc<ObjectMap> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }
}

impl Objects for ObjectStore {
    fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        self.current().config_map(namespace, name)
    }

    fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        self.current().secret(namespace, name)
    }

    fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
        self.current().services(namespace)
    }

    fn all_services(&self) -> Vec<Arc<Service>> {
        self.current().all_services()
    }

    fn changes(&self) -> Option<watch::Receiver<u64>> {
        Some(self.version.subscribe())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn objects_are_found_by_namespace_and_name() {
        let mut objects = ObjectMap::default();
        for (namespace, name) in [("a", "x"), ("a", "y"), ("b", "z")] {
            objects.insert_service(Service {
                metadata: ObjectMeta {
                    namespace: Some(namespace.to_owned()),
                    name: Some(name.to_owned()),
                    ..ObjectMeta::default()
                },
                ..Service::default()
            });
        }
        let names: Vec<_> = objects
            .services("a")
            .iter()
            .map(|service| service.metadata.name.clone().unwrap())
            .collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(objects.config_map("a", "x"), None);
    }
}
