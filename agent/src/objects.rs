//! The API objects that pods refer to.

pub mod directory;

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use api::manifest::endpoints::mirrors;
use api::manifest::storage::claims_of_pod;
use api::manifest::{Object, Workload, WorkloadObject, to_json};
use compact::Map;
use k8s_openapi::api::apps::v1::StatefulSet;
use k8s_openapi::api::certificates::v1beta1::ClusterTrustBundle;
use k8s_openapi::api::core::v1::{
    ConfigMap, Endpoints, Node, PersistentVolume, PersistentVolumeClaim, Secret, Service,
    ServiceAccount,
};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::node::v1::RuntimeClass;
use k8s_openapi::api::scheduling::v1::PriorityClass;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Serialize;
use serde_json::Value;
use tokio::sync::watch;

/// Namespace and name.
type Key = (String, String);

/// A kind of objects that pods refer to, whose existence may be unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// ConfigMaps.
    ConfigMap,
    /// Secrets.
    Secret,
}

impl fmt::Display for ObjectKind {
    /// The kind as in a kubelet's messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ConfigMap => "configmap",
            Self::Secret => "secret",
        })
    }
}

/// A claim that an API server has bound, and its volume.
#[derive(Clone, Debug, PartialEq)]
pub struct BoundClaim {
    /// The claim.
    pub claim: Arc<PersistentVolumeClaim>,
    /// The volume.
    pub volume: Arc<PersistentVolume>,
}

/// Objects by namespace; some kinds have none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObjectMap {
    config_maps: Map<Key, Arc<ConfigMap>>,
    secrets: Map<Key, Arc<Secret>>,
    services: Map<Key, Arc<Service>>,
    endpoint_slices: Map<Key, Arc<EndpointSlice>>,
    /// The EndpointSlices that mirror Endpoints, by the Endpoints' names.
    mirrors: Map<Key, Vec<Arc<EndpointSlice>>>,
    claims: Map<Key, Arc<PersistentVolumeClaim>>,
    volumes: Map<String, Arc<PersistentVolume>>,
    /// The claims that an API server binds.
    bound_claims: Map<Key, Result<BoundClaim, String>>,
    service_accounts: Map<Key, Arc<ServiceAccount>>,
    runtime_classes: Map<String, Arc<RuntimeClass>>,
    priority_classes: Map<String, Arc<PriorityClass>>,
    trust_bundles: Map<String, Arc<ClusterTrustBundle>>,
    /// Whether no RuntimeClasses exist beside these.
    has_all_runtime_classes: bool,
    /// Whether an API server has not listed its Services yet.
    services_are_unread: bool,
    /// The agent's own node.
    node: Option<Arc<Node>>,
    /// The StatefulSets that create claims for their pods.
    stateful_sets: Vec<Arc<StatefulSet>>,
    /// The objects whose existence is unknown, and why.
    unknown: Map<(ObjectKind, Key), String>,
}

fn key(metadata: &ObjectMeta) -> Key {
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    let name = metadata.name.clone().unwrap_or_default();
    (namespace.to_owned(), name)
}

fn get<T>(map: &Map<Key, Arc<T>>, namespace: &str, name: &str) -> Option<Arc<T>> {
    map.get(&(namespace.to_owned(), name.to_owned())).cloned()
}

impl ObjectMap {
    /// Adds the objects of another map, which replace those with the same names.
    pub fn merge(&mut self, other: Self) {
        self.config_maps.extend(other.config_maps);
        self.secrets.extend(other.secrets);
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.mirrors.extend(other.mirrors);
        self.claims.extend(other.claims);
        self.volumes.extend(other.volumes);
        self.bound_claims.extend(other.bound_claims);
        self.service_accounts.extend(other.service_accounts);
        self.runtime_classes.extend(other.runtime_classes);
        self.priority_classes.extend(other.priority_classes);
        self.trust_bundles.extend(other.trust_bundles);
        self.stateful_sets.extend(other.stateful_sets);
        self.has_all_runtime_classes |= other.has_all_runtime_classes;
        self.services_are_unread |= other.services_are_unread;
        self.node = other.node.or(self.node.take());
        self.unknown.extend(other.unknown);
    }

    /// Adds the objects of files; of objects with the same name, the last one stays. Each kind is sorted once: an insertion moves
    /// all entries after it, which is too slow for tens of thousands of files.
    pub(crate) fn merge_files(&mut self, files: &[&Self]) {
        fn add<K: Clone + Ord, T: Clone>(
            map: &mut Map<K, T>,
            files: &[&ObjectMap],
            kind: impl Fn(&ObjectMap) -> &Map<K, T>,
        ) {
            let mut entries: Vec<(K, T)> = std::mem::take(map).into_iter().collect();
            for file in files.iter().copied() {
                let of_file = kind(file).iter();
                entries.extend(of_file.map(|(key, object)| (key.clone(), object.clone())));
            }
            *map = entries.into();
        }
        add(&mut self.config_maps, files, |file| &file.config_maps);
        add(&mut self.secrets, files, |file| &file.secrets);
        add(&mut self.services, files, |file| &file.services);
        add(&mut self.endpoint_slices, files, |file| &file.endpoint_slices);
        add(&mut self.mirrors, files, |file| &file.mirrors);
        add(&mut self.claims, files, |file| &file.claims);
        add(&mut self.volumes, files, |file| &file.volumes);
        add(&mut self.service_accounts, files, |file| &file.service_accounts);
        add(&mut self.runtime_classes, files, |file| &file.runtime_classes);
        add(&mut self.priority_classes, files, |file| &file.priority_classes);
        add(&mut self.trust_bundles, files, |file| &file.trust_bundles);
    }

    /// Records why the existence of an object is unknown.
    pub fn set_unknown(&mut self, kind: ObjectKind, namespace: &str, name: &str, why: String) {
        self.unknown.insert((kind, (namespace.to_owned(), name.to_owned())), why);
    }

    /// Why the existence of an object is unknown, if it is: even a pod with an optional reference waits for it.
    pub fn unknown(&self, kind: ObjectKind, namespace: &str, name: &str) -> Option<&str> {
        if self.unknown.is_empty() {
            return None;
        }
        let key = (kind, (namespace.to_owned(), name.to_owned()));
        self.unknown.get(&key).map(String::as_str)
    }

    /// The agent's own node as in the API server; `None` if there is none, or it is not known.
    pub fn node(&self) -> Option<&Node> {
        self.node.as_deref()
    }

    /// Sets the agent's own node.
    pub fn set_node(&mut self, node: Node) {
        self.node = Some(Arc::new(node));
    }

    /// The ConfigMap of that name.
    pub fn config_map(&self, namespace: &str, name: &str) -> Option<Arc<ConfigMap>> {
        get(&self.config_maps, namespace, name)
    }

    /// The Secret of that name.
    pub fn secret(&self, namespace: &str, name: &str) -> Option<Arc<Secret>> {
        get(&self.secrets, namespace, name)
    }

    /// The Services of the namespace, by name.
    pub fn services(&self, namespace: &str) -> Vec<Arc<Service>> {
        let from = (namespace.to_owned(), String::new());
        self.services
            .from_key(&from)
            .take_while(|((of, _), _)| of == namespace)
            .map(|(_, service)| Arc::clone(service))
            .collect()
    }

    /// The Services of all namespaces.
    pub fn all_services(&self) -> Vec<Arc<Service>> {
        self.services.values().map(Arc::clone).collect()
    }

    /// The EndpointSlices of all namespaces, including mirrors of Endpoints.
    pub fn endpoint_slices(&self) -> Vec<Arc<EndpointSlice>> {
        let mirrors = self.mirrors.values().flatten();
        self.endpoint_slices.values().chain(mirrors).cloned().collect()
    }

    /// The PersistentVolumeClaim of that name.
    pub fn persistent_volume_claim(
        &self,
        namespace: &str,
        name: &str,
    ) -> Option<Arc<PersistentVolumeClaim>> {
        get(&self.claims, namespace, name)
            .or_else(|| self.claim_of_stateful_set(namespace, name).map(Arc::new))
    }

    /// The volume that an API server has bound a claim to, or why the claim cannot be used; `None`: no API server binds it.
    pub fn bound_claim(&self, namespace: &str, name: &str) -> Option<&Result<BoundClaim, String>> {
        self.bound_claims.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Sets the volume that an API server has bound a claim to.
    pub fn set_bound_claim(
        &mut self,
        namespace: &str,
        name: &str,
        bound: Result<BoundClaim, String>,
    ) {
        self.bound_claims.insert((namespace.to_owned(), name.to_owned()), bound);
    }

    /// All PersistentVolumeClaims.
    pub fn persistent_volume_claims(&self) -> Vec<Arc<PersistentVolumeClaim>> {
        self.claims.values().cloned().collect()
    }

    /// All PersistentVolumes.
    pub fn persistent_volumes(&self) -> Vec<Arc<PersistentVolume>> {
        self.volumes.values().cloned().collect()
    }

    /// The ServiceAccount of that name.
    pub fn service_account(&self, namespace: &str, name: &str) -> Option<Arc<ServiceAccount>> {
        get(&self.service_accounts, namespace, name)
    }

    /// The RuntimeClass of that name.
    pub fn runtime_class(&self, name: &str) -> Option<Arc<RuntimeClass>> {
        self.runtime_classes.get(name).cloned()
    }

    /// All RuntimeClasses.
    pub fn runtime_classes(&self) -> Vec<Arc<RuntimeClass>> {
        self.runtime_classes.values().cloned().collect()
    }

    /// Whether no other RuntimeClasses exist.
    pub fn has_all_runtime_classes(&self) -> bool {
        self.has_all_runtime_classes
    }

    /// Records that no other RuntimeClasses exist.
    pub fn set_all_runtime_classes_known(&mut self) {
        self.has_all_runtime_classes = true;
    }

    /// Whether an API server has not listed its Services yet, so that further ones may exist.
    pub fn services_are_unread(&self) -> bool {
        self.services_are_unread
    }

    /// Records that an API server has not listed its Services yet.
    pub fn set_services_unread(&mut self) {
        self.services_are_unread = true;
    }

    /// All PriorityClasses.
    pub fn priority_classes(&self) -> Vec<Arc<PriorityClass>> {
        self.priority_classes.values().cloned().collect()
    }

    /// All ClusterTrustBundles.
    pub fn cluster_trust_bundles(&self) -> Vec<Arc<ClusterTrustBundle>> {
        self.trust_bundles.values().cloned().collect()
    }

    /// All objects as JSON. Endpoints appear as the EndpointSlices that mirror them.
    #[must_use]
    pub fn json(&self) -> Vec<Value> {
        fn all<'o, T: Serialize + 'o>(
            objects: impl Iterator<Item = &'o Arc<T>>,
        ) -> impl Iterator<Item = Value> {
            objects.map(|object| to_json(&**object))
        }
        all(self.config_maps.values())
            .chain(all(self.secrets.values()))
            .chain(all(self.services.values()))
            .chain(all(self.endpoint_slices.values()))
            .chain(all(self.mirrors.values().flatten()))
            .chain(all(self.claims.values()))
            .chain(all(self.volumes.values()))
            .chain(all(self.service_accounts.values()))
            .chain(all(self.runtime_classes.values()))
            .chain(all(self.priority_classes.values()))
            .chain(all(self.trust_bundles.values()))
            .collect()
    }

    /// Adds a ConfigMap, or replaces the one of that name.
    pub fn insert_config_map(&mut self, object: ConfigMap) {
        self.config_maps.insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds a Secret, or replaces the one of that name.
    pub fn insert_secret(&mut self, object: Secret) {
        self.secrets.insert(key(&object.metadata), Arc::new(object));
    }

    /// Replaces all Services.
    pub fn set_services(&mut self, services: impl IntoIterator<Item = Arc<Service>>) {
        let services = services.into_iter();
        self.services = services.map(|service| (key(&service.metadata), service)).collect();
    }

    /// Adds an EndpointSlice, or replaces the one of that name.
    pub fn insert_endpoint_slice(&mut self, object: EndpointSlice) {
        self.endpoint_slices.insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds Endpoints, or replaces those of that name.
    pub fn insert_endpoints(&mut self, object: &Endpoints) {
        let slices = mirrors(object).into_iter().map(Arc::new);
        self.mirrors.insert(key(&object.metadata), slices.collect());
    }

    /// Adds a PersistentVolumeClaim, or replaces the one of that name.
    pub fn insert_persistent_volume_claim(&mut self, object: PersistentVolumeClaim) {
        self.claims.insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds a PersistentVolume, or replaces the one of that name.
    pub fn insert_persistent_volume(&mut self, object: PersistentVolume) {
        let name = object.metadata.name.clone().unwrap_or_default();
        self.volumes.insert(name, Arc::new(object));
    }

    /// Adds a ServiceAccount, or replaces the one of that name.
    pub fn insert_service_account(&mut self, object: ServiceAccount) {
        self.service_accounts.insert(key(&object.metadata), Arc::new(object));
    }

    /// Adds a RuntimeClass, or replaces the one of that name.
    pub fn insert_runtime_class(&mut self, object: RuntimeClass) {
        let name = object.metadata.name.clone().unwrap_or_default();
        self.runtime_classes.insert(name, Arc::new(object));
    }

    /// Adds a PriorityClass, or replaces the one of that name.
    pub fn insert_priority_class(&mut self, object: PriorityClass) {
        let name = object.metadata.name.clone().unwrap_or_default();
        self.priority_classes.insert(name, Arc::new(object));
    }

    /// Adds a ClusterTrustBundle, or replaces the one of that name.
    pub fn insert_cluster_trust_bundle(&mut self, object: ClusterTrustBundle) {
        let name = object.metadata.name.clone().unwrap_or_default();
        self.trust_bundles.insert(name, Arc::new(object));
    }

    /// Adds the claims that a StatefulSet creates for its pods. They are found by their names, and not listed: there is one for
    /// each possible pod.
    pub fn insert_claims_of(&mut self, workload: &Workload) {
        if let WorkloadObject::StatefulSet(set) = &workload.object {
            self.stateful_sets.push(Arc::new(set.clone()));
        }
    }

    fn claim_of_stateful_set(&self, namespace: &str, name: &str) -> Option<PersistentVolumeClaim> {
        let mut sets = self
            .stateful_sets
            .iter()
            .filter(|set| set.metadata.namespace.as_deref().unwrap_or("default") == namespace);
        sets.find_map(|set| {
            // TEMPLATE-SET-ORDINAL
            let (before, ordinal) = name.rsplit_once('-')?;
            let ordinal: u32 = ordinal.parse().ok()?;
            let set_name = set.metadata.name.as_deref().unwrap_or_default();
            if !before.ends_with(set_name) {
                return None;
            }
            let pod = format!("{set_name}-{ordinal}");
            let mut claims = claims_of_pod(set, &pod).into_iter();
            claims.find(|claim| claim.metadata.name.as_deref() == Some(name))
        })
    }

    /// Adds a Service, or replaces the one of that name.
    pub fn insert_service(&mut self, object: Service) {
        self.services.insert(key(&object.metadata), Arc::new(object));
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
                Object::Endpoints(endpoints) => self.insert_endpoints(&endpoints),
                Object::EndpointSlice(slice) => self.insert_endpoint_slice(*slice),
                Object::ServiceAccount(account) => self.insert_service_account(account),
                Object::PersistentVolumeClaim(claim) => {
                    self.insert_persistent_volume_claim(*claim);
                }
                Object::PersistentVolume(volume) => self.insert_persistent_volume(*volume),
                Object::RuntimeClass(class) => self.insert_runtime_class(*class),
                Object::PriorityClass(class) => self.insert_priority_class(*class),
                Object::ClusterTrustBundle(bundle) => self.insert_cluster_trust_bundle(bundle),
                // Namespaces of pods need no object.
                Object::Namespace(_) => {}
            }
        }
    }
}

/// A map of objects that can be replaced while pods use them.
#[derive(Debug, Default)]
pub struct ObjectStore {
    current: RwLock<Arc<ObjectMap>>,
    /// The number of replacements.
    version: watch::Sender<u64>,
}

impl ObjectStore {
    /// A store with these objects.
    #[must_use]
    pub fn new(objects: ObjectMap) -> Self {
        Self { current: RwLock::new(Arc::new(objects)), version: watch::Sender::new(0) }
    }

    /// Replaces all objects.
    pub fn set(&self, objects: ObjectMap) {
        let objects = Arc::new(objects);
        *self.current.write().unwrap_or_else(PoisonError::into_inner) = objects;
        self.version.send_modify(|version| *version += 1);
    }

    /// The current objects.
    #[must_use]
    pub fn current(&self) -> Arc<ObjectMap> {
        let current = self.current.read();
        Arc::clone(&current.unwrap_or_else(PoisonError::into_inner))
    }

    /// Reports changes of the objects, from now on.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
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
        let json = objects.json();
        assert_eq!(json.len(), 3);
        assert_eq!(
            (&json[0]["kind"], &json[0]["metadata"]["name"]),
            (&"Service".into(), &"x".into())
        );
    }

    #[test]
    fn claims_of_a_stateful_set_are_found_by_their_names() {
        let set = "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ns}
spec:
  serviceName: db
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec: {containers: [{name: c, image: i}]}
  volumeClaimTemplates:
  - metadata: {name: data, labels: {a: b}}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";
        let mut objects = ObjectMap::default();
        objects.insert_claims_of(&crate::fixtures::parsed(set).workloads[0]);
        for name in ["data-db-0", "data-db-17"] {
            let claim = objects.persistent_volume_claim("ns", name).unwrap();
            assert_eq!(claim.metadata.name.as_deref(), Some(name));
            let labels: Vec<_> = claim.metadata.labels.iter().flatten().collect();
            assert_eq!(labels.len(), 2, "{labels:?}");
        }
        for (namespace, name) in
            [("ns", "data-db"), ("ns", "data-db-x"), ("ns", "log-db-0"), ("m", "data-db-0")]
        {
            assert_eq!(objects.persistent_volume_claim(namespace, name), None, "{name}");
        }
    }
}
