//! ◆ Claims and volumes as an API server shows them when they are bound. Pure.
//!
//! The agent binds them, by the same function. A directory that it makes for a claim is shown as a volume that a provisioner made.
//!
//! Source: Kubernetes 1.36, bindVolumeToClaim and bindClaimToVolume of pkg/controller/volume/persistentvolume/pv_controller.go.

use std::path::Path;

use agent::objects::ObjectMap;
use agent::storage::claims::directories::ClaimDirectories;
use agent::storage::claims::{Binding, Bound, ClaimName};
use api::generated_names::generated_name;
use api::manifest::to_json;
use compact::Map;
use serde_json::{Value, json};

use crate::input::claims::bindings;

const BIND_COMPLETED: &str = "pv.kubernetes.io/bind-completed";
const PROVISIONED_BY: &str = "pv.kubernetes.io/provisioned-by";

/// All claims and volumes with their statuses. `claims` are those that pods use; their directories are below `directories`.
pub(super) fn objects(
    objects: &ObjectMap,
    claims: &[ClaimName],
    directories: &ClaimDirectories,
) -> Vec<Value> {
    let (all, bound) = bindings(claims, objects);
    let mut made = volumes(objects, &bound);
    for (name, binding) in all {
        let Some(claim) = objects.persistent_volume_claim(&name.namespace, &name.name) else {
            continue;
        };
        let mut claim = to_json(&*claim);
        let volume = match &binding {
            Err(_) => None,
            Ok(Binding::Volume(volume)) => made.get(volume).cloned(),
            Ok(Binding::Directory) => Some(provisioned(&name, &claim, &directories.path(&name))),
        };
        claim["status"] = json!({"phase": "Pending"});
        if let Some(volume) = volume {
            let volume_name = volume["metadata"]["name"].as_str().unwrap_or_default().to_owned();
            claim["spec"]["volumeName"] = json!(volume_name);
            claim["metadata"]["annotations"][BIND_COMPLETED] = json!("yes");
            claim["status"] = json!({
                "phase": "Bound", "accessModes": volume["spec"]["accessModes"],
                "capacity": volume["spec"]["capacity"],
            });
            made.insert(volume_name, volume);
        }
        made.insert(format!("{name}"), claim);
    }
    made.into_values().collect()
}

/// The volumes of manifests, by name.
fn volumes(objects: &ObjectMap, bound: &Bound) -> Map<String, Value> {
    let volumes = objects.persistent_volumes();
    let named = volumes.iter().map(|volume| {
        let name = volume.metadata.name.clone().unwrap_or_default();
        let mut volume = to_json(&**volume);
        let claim = bound.get(&name);
        if let Some(claim) = claim {
            volume["spec"]["claimRef"] = reference(claim);
        }
        let phase = if claim.is_some() { "Bound" } else { "Available" };
        volume["status"] = json!({"phase": phase});
        (name, volume)
    });
    named.collect()
}

/// The directory of a claim as the volume that was made for it.
fn provisioned(name: &ClaimName, claim: &Value, directory: &Path) -> Value {
    let spec = &claim["spec"];
    let own = generated_name(&format!("pvc-{}-{}-", name.namespace, name.name), &name.to_string());
    let mut volume = json!({
        "apiVersion": "v1", "kind": "PersistentVolume",
        "metadata": {"name": own, "annotations": {PROVISIONED_BY: "crib"}},
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

/// What a volume says of its claim.
fn reference(claim: &ClaimName) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "namespace": claim.namespace, "name": claim.name,
    })
}

#[cfg(test)]
mod tests {
    use api::manifest::{Strictness, parse};

    use super::*;

    #[test]
    fn bound_claims_and_volumes_name_each_other() {
        let claim = |name: &str, rest: &str| {
            format!(
                "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}, uid: u-{name}}}\nspec: {{accessModes: \
                 [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}{rest}}}\n---\n"
            )
        };
        let volume = |name: &str, size: &str| {
            format!(
                "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{storageClassName: fast, accessModes: \
                 [ReadWriteOnce], capacity: {{storage: {size}}}, hostPath: {{path: /data}}}}\n---\n"
            )
        };
        let text = [
            claim("own", ""),
            claim("fast", ", storageClassName: fast"),
            claim("none", ", storageClassName: ''"),
            volume("big", "5Gi"),
            volume("small", "2Gi"),
        ]
        .concat();
        let parsed = parse("m.yaml", &text, Strictness::Strict);
        assert_eq!(parsed.problems, []);
        let mut map = ObjectMap::default();
        map.extend(parsed.objects);
        let found = objects(&map, &[], &ClaimDirectories::new("/volumes".into()));
        let own = generated_name("pvc-default-own-", "default/own");
        let shown: Vec<String> = found
            .iter()
            .map(|object| {
                let text = |pointer: &str| {
                    object.pointer(pointer).and_then(Value::as_str).unwrap_or("-").to_owned()
                };
                [
                    text("/metadata/name"),
                    text("/status/phase"),
                    text("/spec/volumeName"),
                    text("/spec/claimRef/name"),
                    text("/status/capacity/storage"),
                ]
                .join(" ")
            })
            .map(|line| line.replace(&own, "pvc-own"))
            .collect();
        assert_eq!(
            shown,
            [
                "big Available - - -",
                "fast Bound small - 2Gi",
                "none Pending - - -",
                "own Bound pvc-own - 1Gi",
                "pvc-own Bound - own -",
                "small Bound - fast -",
            ]
        );
        let made = found.iter().find(|it| it["metadata"]["name"] == own.as_str());
        let path = made.and_then(|made| made.pointer("/spec/hostPath/path"));
        assert_eq!(path, Some(&json!("/volumes/default/own/volume")));
    }
}
