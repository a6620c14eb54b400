//! ◆ ConfigMaps and Secrets that are immutable stay as they are when manifests change. Pure.
//!
//! Source: Kubernetes 1.36, pkg/apis/core/validation/validation.go ValidateConfigMapUpdate, ValidateSecretUpdate.

use agent::objects::ObjectMap;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

const UNCHANGED: &str = "is immutable and stays as it was: give the changed one another name";

/// Puts the immutable objects of before in place of those of the same names that differ. Returns a warning for each.
#[must_use]
pub(crate) fn keep(before: &ObjectMap, after: &mut ObjectMap) -> Vec<String> {
    let mut warnings = Vec::new();
    for old in before.config_maps() {
        let (namespace, name) = names(&old.metadata);
        let new = after.config_map(namespace, name);
        if old.immutable == Some(true) && new.is_some_and(|new| differ_maps(&old, &new)) {
            warnings.push(format!("configmap {namespace}/{name} {UNCHANGED}"));
            after.insert_config_map(ConfigMap::clone(&old));
        }
    }
    for old in before.secrets() {
        let (namespace, name) = names(&old.metadata);
        let new = after.secret(namespace, name);
        if old.immutable == Some(true) && new.is_some_and(|new| differ_secrets(&old, &new)) {
            warnings.push(format!("secret {namespace}/{name} {UNCHANGED}"));
            after.insert_secret(Secret::clone(&old));
        }
    }
    warnings
}

fn names(metadata: &ObjectMeta) -> (&str, &str) {
    let namespace = metadata.namespace.as_deref().unwrap_or("default");
    (namespace, metadata.name.as_deref().unwrap_or_default())
}

fn differ_maps(old: &ConfigMap, new: &ConfigMap) -> bool {
    let fixed = |map: &ConfigMap| (map.immutable, map.data.clone(), map.binary_data.clone());
    fixed(old) != fixed(new)
}

fn differ_secrets(old: &Secret, new: &Secret) -> bool {
    let fixed = |secret: &Secret| (secret.immutable, secret.data.clone(), secret.type_.clone());
    fixed(old) != fixed(new)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::*;

    fn objects(map: Option<Value>, secret: Option<Value>) -> ObjectMap {
        let mut objects = ObjectMap::default();
        let named = |mut value: Value| {
            value["metadata"] = json!({"name": "o", "labels": value["labels"]});
            value
        };
        if let Some(map) = map {
            objects.insert_config_map(serde_json::from_value(named(map)).unwrap());
        }
        if let Some(secret) = secret {
            objects.insert_secret(serde_json::from_value(named(secret)).unwrap());
        }
        objects
    }

    #[rstest]
    #[case::other_data(json!({"immutable": true, "data": {"k": "Mg=="}}))]
    #[case::no_longer_immutable(json!({"data": {"k": "MQ=="}}))]
    fn changed_immutable_object_stays_with_a_warning(#[case] changed: Value) {
        let first = json!({"immutable": true, "data": {"k": "MQ=="}});
        let before = objects(Some(first.clone()), Some(first));
        let mut after = objects(Some(changed.clone()), Some(changed));
        let warnings = keep(&before, &mut after);
        assert_eq!(after, before);
        assert_eq!(
            warnings,
            [
                "configmap default/o is immutable and stays as it was: give the changed one another name",
                "secret default/o is immutable and stays as it was: give the changed one another name",
            ]
        );
    }

    #[rstest]
    #[case::other_labels(json!({"immutable": true, "data": {"k": "MQ=="}}), Some(json!({"immutable": true, "data": {"k": "MQ=="}, "labels": {"a": "b"}})))]
    #[case::becomes_immutable(json!({"data": {"k": "MQ=="}}), Some(json!({"immutable": true, "data": {"k": "Mg=="}})))]
    #[case::removed(json!({"immutable": true, "data": {"k": "MQ=="}}), None)]
    fn other_changes_are_taken(#[case] first: Value, #[case] changed: Option<Value>) {
        let before = objects(Some(first.clone()), Some(first));
        let mut after = objects(changed.clone(), changed);
        let wanted = after.clone();
        assert_eq!(keep(&before, &mut after), [""; 0]);
        assert_eq!(after, wanted);
    }
}
