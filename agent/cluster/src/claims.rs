//! The controller of claims: watches claims and volumes in the store, and binds them to each other.
//!
//! A claim without a matching volume gets a directory, which is shown as a volume from a provisioner.
//!
//! Source: Kubernetes 1.36, bindVolumeToClaim and bindClaimToVolume of pkg/controller/volume/persistentvolume/pv_controller.go.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use api::claims::{Binding, Bound, ClaimName, bind_all};
use api::generated_names::generated_name;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use serde_json::{Value, json};

use crate::error::Error;
use crate::followed::Followed;
use crate::kind::Kind;
use crate::object::Object;
use crate::store::Store;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
/// Set if the controller chose the other half of the binding, which is not in the object's manifest.
const BOUND_BY_CONTROLLER: &str = "pv.kubernetes.io/bound-by-controller";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// The path of a claim's directory, which need not exist.
pub type Directories = Box<dyn Fn(&ClaimName) -> PathBuf + Send>;

/// Binds the claims of a store.
pub(crate) struct Claims {
    store: Store,
    claims: Followed,
    volumes: Followed,
    directories: Directories,
    /// The bound claims, by volume.
    bound: Bound,
    /// The claims and volumes with their bindings and statuses.
    wanted: Vec<Value>,
}

impl Claims {
    /// Creates the controller, which watches the store from its beginning.
    ///
    /// # Errors
    ///
    /// Never, unless more changes happen meanwhile than the store records.
    pub(crate) fn new(store: &Store, directories: Directories) -> Result<Self, Error> {
        Ok(Self {
            claims: Followed::new(store, Kind::of("v1", "PersistentVolumeClaim"))?,
            volumes: Followed::new(store, Kind::of("v1", "PersistentVolume"))?,
            store: store.clone(),
            directories,
            bound: Bound::new(),
            wanted: Vec::new(),
        })
    }

    /// Applies the changes since the last call.
    ///
    /// # Errors
    ///
    /// If an object is not a valid claim or volume: then nothing is updated until it changes.
    pub(crate) fn sync(&mut self) -> Result<(), Error> {
        let changed = self.claims.changes(&self.store)?.len();
        if changed + self.volumes.changes(&self.store)?.len() > 0 {
            let claims = unbound(self.claims.objects.values())?;
            let volumes = unbound(self.volumes.objects.values().filter(|it| !is_made(&it.value)))?;
            (self.wanted, self.bound) = bound(&claims, &volumes, &self.bound, &self.directories);
        }
        Ok(())
    }

    /// All claims and volumes with their bindings and statuses, including the volumes that stand for directories.
    pub(crate) fn wanted(&self) -> &[Value] {
        &self.wanted
    }
}

/// Removes the controller's fields from a claim or a volume, as in its manifest.
pub fn without_binding(value: &mut Value) {
    let Some(annotations) = value["metadata"]["annotations"].as_object_mut() else {
        return;
    };
    annotations.remove(BIND_COMPLETED);
    let is_chosen = annotations.remove(BOUND_BY_CONTROLLER).is_some();
    if annotations.is_empty()
        && let Some(metadata) = value["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    if let Some(spec) = value["spec"].as_object_mut().filter(|_| is_chosen) {
        spec.retain(|field, _| field != "volumeName" && field != "claimRef");
    }
}

/// Objects as in their manifests.
fn unbound<'o>(objects: impl Iterator<Item = &'o Arc<Object>>) -> Result<Vec<Value>, Error> {
    let unbound = |object: &Arc<Object>| {
        let mut value = object.value.clone();
        without_binding(&mut value);
        if let Some(fields) = value.as_object_mut() {
            fields.remove("status");
        }
        if let Some(metadata) = value["metadata"].as_object_mut() {
            metadata.remove("resourceVersion");
        }
        // Other clients may have written an invalid claim.
        let checked = match &*object.key.kind.name {
            "PersistentVolume" => typed_volume(&value).err(),
            _ => typed_claim(&value).err(),
        };
        checked.map_or(Ok(value), |error| Err(Error::invalid(&object.key, error.to_string())))
    };
    objects.map(unbound).collect()
}

fn typed_claim(value: &Value) -> serde_json::Result<Arc<PersistentVolumeClaim>> {
    serde_json::from_value(value.clone())
}

fn typed_volume(value: &Value) -> serde_json::Result<Arc<PersistentVolume>> {
    serde_json::from_value(value.clone())
}

/// Whether a volume stands for the directory of a claim.
fn is_made(volume: &Value) -> bool {
    let claim = &volume["spec"]["claimRef"];
    let name = |field: &str| claim[field].as_str().unwrap_or_default();
    let claim = ClaimName::new(name("namespace"), name("name"));
    volume["metadata"]["annotations"][PROVISIONED_BY] == "crib"
        && volume["metadata"]["name"] == name_of_made(&claim).as_str()
}

/// The name of the volume that stands for the directory of a claim.
fn name_of_made(claim: &ClaimName) -> String {
    generated_name(&format!("pvc-{}-{}-", claim.namespace, claim.name), &claim.to_string())
}

/// The claims and volumes of manifests with their bindings, the volumes that stand for directories, and the bound claims.
fn bound(
    claims: &[Value],
    volumes: &[Value],
    before: &Bound,
    directories: &Directories,
) -> (Vec<Value>, Bound) {
    let claims = claims.iter().filter_map(|value| Some((value, typed_claim(value).ok()?)));
    let claims = claims.map(|(value, claim)| (ClaimName::of(&claim), value, claim));
    let claims: Vec<(ClaimName, &Value, Arc<PersistentVolumeClaim>)> = claims.collect();
    let mut bound = before.clone();
    bound.retain(|_, claim| claims.iter().any(|(name, ..)| name == claim));
    let typed_volumes: Vec<Arc<PersistentVolume>> =
        volumes.iter().filter_map(|volume| typed_volume(volume).ok()).collect();
    let typed_claims = claims.iter().map(|(_, _, claim)| Arc::clone(claim)).collect();
    let (bindings, bound) = bind_all(typed_claims, &typed_volumes, bound);

    let mut wanted = Vec::new();
    for volume in volumes {
        let mut volume = volume.clone();
        let claim = volume["metadata"]["name"].as_str().and_then(|name| bound.get(name));
        if let Some(claim) = claim {
            if volume["spec"].get("claimRef").is_none() {
                annotate(&mut volume, BOUND_BY_CONTROLLER, "yes");
            }
            volume["spec"]["claimRef"] = reference(claim);
        }
        let phase = if claim.is_some() { "Bound" } else { "Available" };
        volume["status"] = json!({"phase": phase});
        wanted.push(volume);
    }
    for (name, claim, _) in claims {
        let mut claim = claim.clone();
        claim["status"] = json!({"phase": "Pending"});
        let volume = match bindings.get(&name) {
            Some(Ok(Binding::Volume(volume))) => {
                let of_name = |value: &&Value| value["metadata"]["name"] == volume.as_str();
                volumes.iter().find(of_name).cloned()
            }
            Some(Ok(Binding::Directory)) => {
                let made = provisioned(&name, &claim, &directories(&name));
                wanted.push(made.clone());
                Some(made)
            }
            Some(Err(_)) | None => None,
        };
        if let Some(volume) = volume {
            if claim["spec"].get("volumeName").is_none() {
                annotate(&mut claim, BOUND_BY_CONTROLLER, "yes");
            }
            annotate(&mut claim, BIND_COMPLETED, "yes");
            claim["spec"]["volumeName"] = volume["metadata"]["name"].clone();
            claim["status"] = json!({
                "phase": "Bound", "accessModes": volume["spec"]["accessModes"],
                "capacity": volume["spec"]["capacity"],
            });
        }
        wanted.push(claim);
    }
    (wanted, bound)
}

fn annotate(value: &mut Value, name: &str, text: &str) {
    value["metadata"]["annotations"][name] = json!(text);
}

/// The directory of a claim as a provisioned volume.
fn provisioned(name: &ClaimName, claim: &Value, directory: &Path) -> Value {
    let spec = &claim["spec"];
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": name_of_made(name), "annotations": {PROVISIONED_BY: "crib"}},
        "spec": {
            "accessModes": spec["accessModes"], "capacity": spec["resources"]["requests"],
            "claimRef": reference(name), "hostPath": {"path": directory, "type": ""},
            // `crib volume rm` removes it.
            "persistentVolumeReclaimPolicy": "Retain",
            "volumeMode": spec.get("volumeMode").unwrap_or(&json!("Filesystem")),
        },
        "status": {"phase": "Bound"},
    });
    if let Some(class) = spec.get("storageClassName") {
        volume["spec"]["storageClassName"] = class.clone();
    }
    volume
}

/// The `claimRef` of a volume.
fn reference(claim: &ClaimName) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace, "name": claim.name,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use jiff::Timestamp;

    use super::*;
    use crate::key::Key;
    use crate::write::Part;

    const CLAIM: &str = "PersistentVolumeClaim";
    const VOLUME: &str = "PersistentVolume";

    fn claim(name: &str, spec: Value) -> Value {
        let own = json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
        let metadata = json!({"name": name, "namespace": "default"});
        let spec = crate::fixtures::with(own, &spec);
        json!({"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": spec})
    }

    fn volume(name: &str, size: &str) -> Value {
        json!({
            "apiVersion": "v1", "kind": VOLUME, "metadata": {"name": name},
            "spec": {
                "storageClassName": "fast", "accessModes": ["ReadWriteOnce"], "capacity": {"storage": size},
                "hostPath": {"path": "/data"},
            },
        })
    }

    /// A store with these objects, and its controller.
    fn store(objects: impl IntoIterator<Item = Value>) -> (Store, Claims) {
        let store = Store::new(1);
        for object in objects {
            store.create(object, Timestamp::UNIX_EPOCH).unwrap();
        }
        let directory = |claim: &ClaimName| PathBuf::from(format!("/volumes/{claim}"));
        let claims = Claims::new(&store, Box::new(directory)).unwrap();
        (store, claims)
    }

    /// The wanted objects: name, phase, volume of a claim, claim of a volume, capacity of a claim.
    fn shown(wanted: &[Value]) -> Vec<String> {
        let one = |object: &Value| {
            let text = |pointer: &str| {
                object.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned()
            };
            let all =
                ["/metadata/name", "/status/phase", "/spec/volumeName", "/spec/claimRef/name"];
            let own = name_of_made(&ClaimName::new("default", "own"));
            all.map(text).join(" ").replace(&own, "pvc-own")
        };
        let mut all: Vec<String> = wanted.iter().map(one).collect();
        all.sort();
        all
    }

    /// Writes the wanted objects, as the manager of all controllers does.
    fn write(store: &Store, wanted: Vec<Value>) {
        for mut object in wanted {
            object.as_object_mut().unwrap().remove("status");
            let key = Key::of(&object).unwrap();
            let written = match store.get(&key) {
                Ok(_) => store.update(object, Part::Main),
                Err(_) => store.create(object, Timestamp::UNIX_EPOCH),
            };
            written.unwrap();
        }
    }

    #[test]
    fn bound_claims_and_volumes_name_each_other() {
        let (_, mut claims) = store([
            claim("own", json!({})),
            claim("fast", json!({"storageClassName": "fast"})),
            claim("none", json!({"storageClassName": ""})),
            volume("big", "5Gi"),
            volume("small", "2Gi"),
        ]);
        claims.sync().unwrap();
        let wanted = claims.wanted();
        assert_eq!(
            shown(wanted),
            [
                "big Available - -",
                "fast Bound small -",
                "none Pending - -",
                "own Bound pvc-own -",
                "pvc-own Bound - own",
                "small Bound - fast",
            ]
        );
        let made = wanted.iter().find(|it| is_made(it)).unwrap();
        assert_eq!(made["spec"]["hostPath"]["path"], "/volumes/default/own");
        let fast = wanted.iter().find(|it| it["metadata"]["name"] == "fast").unwrap();
        assert_eq!(fast["status"]["capacity"]["storage"], "2Gi");
    }

    #[test]
    fn written_bindings_change_nothing_and_are_reversible() {
        let objects = [
            claim("own", json!({})),
            claim("fast", json!({"storageClassName": "fast"})),
            volume("v", "2Gi"),
        ];
        let (store, mut claims) = store(objects.clone());
        claims.sync().unwrap();
        let first = claims.wanted().to_vec();
        write(&store, first.clone());
        claims.sync().unwrap();
        assert_eq!(claims.wanted(), first);
        for (mut object, as_written) in objects.into_iter().zip([CLAIM, CLAIM, VOLUME]) {
            let name = object["metadata"]["name"].as_str().unwrap();
            let namespace = if as_written == CLAIM { "default" } else { "" };
            let key = Key::new(Kind::of("v1", as_written), namespace, name);
            let mut stored = store.get(&key).unwrap().value.clone();
            assert_ne!(stored["spec"], object["spec"]);
            without_binding(&mut stored);
            assert_eq!(stored["spec"], object["spec"].take());
            assert_eq!(stored["metadata"].get("annotations"), None);
        }
    }

    #[test]
    fn volume_stays_bound_until_its_claim_is_deleted() {
        let fast = json!({"storageClassName": "fast"});
        let (store, mut claims) = store([claim("m", fast.clone()), volume("v", "2Gi")]);
        claims.sync().unwrap();
        write(&store, claims.wanted().to_vec());
        store.create(claim("a", fast), Timestamp::UNIX_EPOCH).unwrap();
        claims.sync().unwrap();
        let with_both = shown(claims.wanted());
        assert!(with_both.contains(&"v Bound - m".to_owned()), "{with_both:?}");
        let key = Key::new(Kind::of("v1", CLAIM), "default", "m");
        store.delete(&key, &crate::DeleteOptions::now(), Timestamp::UNIX_EPOCH).unwrap();
        claims.sync().unwrap();
        let with_other = shown(claims.wanted());
        assert!(with_other.contains(&"v Bound - a".to_owned()), "{with_other:?}");
    }

    #[test]
    fn other_objects_than_claims_are_errors() {
        let (_, mut claims) = store([claim("c", json!({"accessModes": 1}))]);
        let error = claims.sync().unwrap_err().to_string();
        assert!(error.contains("PersistentVolumeClaim \"c\" is invalid"), "{error}");
    }
}
