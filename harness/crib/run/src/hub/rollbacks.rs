//! ◆ Rollbacks of Deployments: the pod template of an earlier ReplicaSet becomes that of the Deployment. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/polymorphichelpers/rollback.go.

use serde_json::{Map, Value};

/// The annotation of a ReplicaSet with the number of its revision.
const REVISION: &str = "deployment.kubernetes.io/revision";
/// The label of a ReplicaSet's template with its hash.
const HASH: &str = "pod-template-hash";
/// The annotations that a Deployment keeps; the other ones are those of the ReplicaSet.
const KEPT: [&str; 6] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    REVISION,
    "deployment.kubernetes.io/revision-history",
    "deployment.kubernetes.io/desired-replicas",
    "deployment.kubernetes.io/max-replicas",
    "deprecated.deployment.rollback.to",
];

/// Restores a revision of a Deployment; `sets` are the ReplicaSets of the run. The error is the reason to refuse the rollback.
pub(super) fn restore<'v>(
    deployment: &mut Value,
    sets: impl IntoIterator<Item = &'v Value>,
    revision: u64,
) -> Result<(), String> {
    if deployment["spec"]["paused"] == true {
        return Err("a paused deployment cannot be rolled back".to_owned());
    }
    let uid = deployment["metadata"]["uid"].clone();
    let number = revision.to_string();
    let is_revision = |set: &&Value| {
        let owners = set["metadata"]["ownerReferences"].as_array();
        set["metadata"]["annotations"][REVISION] == *number
            && owners.into_iter().flatten().any(|owner| owner["uid"] == uid)
    };
    let Some(set) = sets.into_iter().find(is_revision) else {
        return Err(format!("unable to find specified revision {revision} in history"));
    };
    let mut template = set["spec"]["template"].clone();
    if let Some(Value::Object(labels)) = template.pointer_mut("/metadata/labels") {
        labels.remove(HASH);
    }
    let chosen = |object: &Value, is_kept: bool| {
        let all = object["metadata"]["annotations"].as_object().cloned().unwrap_or_default();
        all.into_iter().filter(move |(name, _)| KEPT.contains(&name.as_str()) == is_kept)
    };
    let annotations: Map<String, Value> =
        chosen(deployment, true).chain(chosen(set, false)).collect();
    deployment["spec"]["template"] = template;
    if let Some(metadata) = deployment["metadata"].as_object_mut() {
        match annotations.is_empty() {
            true => _ = metadata.remove("annotations"),
            false => _ = metadata.insert("annotations".to_owned(), Value::Object(annotations)),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn set(number: &str, owner: &str) -> Value {
        json!({
            "metadata": {
                "annotations": {REVISION: number, "note": "old", "deployment.kubernetes.io/max-replicas": "2"},
                "ownerReferences": [{"uid": owner}],
            },
            "spec": {"template": {"metadata": {"labels": {"app": owner, HASH: "h"}}}},
        })
    }

    fn deployment() -> Value {
        json!({
            "metadata": {"name": "web", "uid": "u", "annotations": {KEPT[0]: "{}", "note": "new", "more": ""}},
            "spec": {"template": {"metadata": {"labels": {"app": "new"}}}},
        })
    }

    #[test]
    fn revision_is_restored_without_its_hash() {
        let mut restored = deployment();
        let sets = [set("1", "other"), set("2", "u"), set("1", "u")];
        restore(&mut restored, &sets, 1).unwrap();
        let expected = json!({
            "metadata": {"name": "web", "uid": "u", "annotations": {KEPT[0]: "{}", "note": "old"}},
            "spec": {"template": {"metadata": {"labels": {"app": "u"}}}},
        });
        assert_eq!(restored, expected);
    }

    #[test]
    fn other_rollbacks_are_refused() {
        let mut object = deployment();
        let missing = restore(&mut object, &[set("1", "other")], 1).unwrap_err();
        assert_eq!(missing, "unable to find specified revision 1 in history");
        assert_eq!(object, deployment());
        object["spec"]["paused"] = json!(true);
        let paused = restore(&mut object, &[set("1", "u")], 1).unwrap_err();
        assert_eq!(paused, "a paused deployment cannot be rolled back");
    }
}
