//! Which claims and persistent volumes are accepted.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use crate::manifest::{Parsed, Strictness, parse};

fn strict(text: &str) -> Parsed {
    parse("m.yaml", text, Strictness::Strict)
}

fn paths(problems: &[crate::manifest::Problem]) -> Vec<&str> {
    problems.iter().map(|problem| problem.path.as_str()).collect()
}

const MODES: &str = "accessModes: [ReadWriteOnce]";
const REQUEST: &str = "resources: {requests: {storage: 1Gi}}";

#[rstest]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, selector: {matchLabels: {a: b}}, storageClassName: fast, volumeName: v", &[])]
#[case(REQUEST, &["spec.accessModes"])]
#[case(MODES, &["spec.resources[storage]"])]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 0}}", &["spec.resources[storage]"])]
#[case("accessModes: [Sometimes], resources: {requests: {storage: 1Gi}}", &["spec.accessModes"])]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, storageClassName: A_B", &["spec.storageClassName"])]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeMode: Block", &["spec.volumeMode"])]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, dataSource: {kind: PersistentVolumeClaim, name: x}", &["spec.dataSource"])]
#[case("accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, size: 1", &["spec.size"])]
fn claims_are_validated(#[case] spec: &str, #[case] expected: &[&str]) {
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: c}}\nspec: {{{spec}}}\n"
    ));
    assert_eq!(paths(&parsed.problems), expected, "{:?}", parsed.problems);
}

const AFFINITY: &str = "nodeAffinity: {required: {nodeSelectorTerms: [{matchExpressions: [{key: a, operator: Exists}]}]}}";

#[rstest]
#[case("{name: v}", "hostPath: {path: /d}", &[])]
#[case("{name: v}", "local: {path: /d}, NODE", &[])]
#[case("{name: v}", "local: {path: /d}", &["spec.nodeAffinity"])]
#[case("{name: v}", "local: {path: ../d}, NODE", &["spec.local.path"])]
#[case("{name: v}", "local: {path: /d}, nodeAffinity: {}", &["spec.nodeAffinity.required"])]
#[case("{name: v}", "hostPath: {path: /d}, local: {path: /d}, NODE", &["spec.local"])]
#[case("{name: v}", "hostPath: {path: /d, type: Some}", &["spec.hostPath.type"])]
#[case("{name: v}", "hostPath: {path: /}, persistentVolumeReclaimPolicy: Recycle", &["spec.persistentVolumeReclaimPolicy"])]
#[case("{name: v}", "hostPath: {path: /d}, persistentVolumeReclaimPolicy: Burn", &["spec.persistentVolumeReclaimPolicy"])]
#[case("{name: v}", "nfs: {server: s, path: /p}", &["spec.nfs"])]
#[case("{name: v}", "csi: {driver: d, volumeHandle: h}", &["spec.csi"])]
#[case("{name: v}", "storageClassName: manual", &["spec"])]
fn persistent_volumes_are_validated(
    #[case] metadata: &str,
    #[case] source: &str,
    #[case] expected: &[&str],
) {
    let source = source.replace("NODE", AFFINITY);
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {metadata}\nspec: {{{MODES}, capacity: {{storage: 1Gi}}, {source}}}\n"
    ));
    assert_eq!(paths(&parsed.problems), expected, "{:?}", parsed.problems);
}

#[rstest]
#[case(
    "PersistentVolumeClaim",
    "resources: {requests: {storage: 10GB}}",
    "spec.resources.requests.storage"
)]
#[case(
    "PersistentVolume",
    "hostPath: {path: /d}, capacity: {storage: 10GB}",
    "spec.capacity.storage"
)]
fn malformed_quantity_is_one_problem(#[case] kind: &str, #[case] spec: &str, #[case] path: &str) {
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {{{MODES}, {spec}}}\n"
    ));
    assert_eq!(paths(&parsed.problems), [path], "{:?}", parsed.problems);
}

/// The object is identified by its full name.
#[rstest]
#[case(
    "PersistentVolume",
    "{name: v}",
    "capacity: {storage: 1Gi}, nfs: {server: s, path: /p}",
    Some("persistentvolume v")
)]
#[case(
    "PersistentVolume",
    "{name: v}",
    "capacity: {storage: 1Gi}, hostPath: {path: /p}, volumeMode: Block",
    Some("persistentvolume v")
)]
#[case("PersistentVolume", "{name: v}", "hostPath: {path: /p}", None)]
#[case(
    "PersistentVolumeClaim",
    "{name: c}",
    "REQUEST, volumeMode: Block",
    Some("persistentvolumeclaim default/c")
)]
#[case(
    "PersistentVolumeClaim",
    "{name: c, namespace: ns}",
    "REQUEST, volumeMode: Block",
    Some("persistentvolumeclaim ns/c")
)]
#[case(
    "PersistentVolumeClaim",
    "{name: c, namespace: ''}",
    "REQUEST, dataSource: {kind: PersistentVolumeClaim, name: b}",
    Some("persistentvolumeclaim default/c")
)]
#[case("PersistentVolumeClaim", "{name: c}", "REQUEST, size: 1", None)]
fn problem_that_only_users_have_names_the_object(
    #[case] kind: &str,
    #[case] metadata: &str,
    #[case] fields: &str,
    #[case] expected: Option<&str>,
) {
    let fields = fields.replace("REQUEST", REQUEST);
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: {kind}\nmetadata: {metadata}\nspec: {{{MODES}, {fields}}}\n"
    ));
    let objects: Vec<Option<&str>> =
        parsed.problems.iter().map(|problem| problem.object.as_deref()).collect();
    assert!(!objects.is_empty() && objects.iter().all(|object| *object == expected), "{parsed:?}");
    if let Some(name) = expected {
        assert_eq!(parsed.objects[0].full_name(), name);
    }
}

#[rstest]
#[case("", &["spec.capacity", "spec.capacity"])]
#[case("capacity: {cpu: 1}", &["spec.capacity"])]
#[case("capacity: {storage: 0}", &["spec.capacity[storage]"])]
fn capacity_is_one_amount_of_storage(#[case] capacity: &str, #[case] expected: &[&str]) {
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: v}}\nspec:\n  {MODES}\n  hostPath: {{path: /d}}\n  {capacity}\n"
    ));
    assert_eq!(paths(&parsed.problems), expected, "{:?}", parsed.problems);
}
