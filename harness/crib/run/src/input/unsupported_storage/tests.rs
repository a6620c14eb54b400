//! Errors and warnings about storage.
#![allow(clippy::unwrap_used, reason = "tests")]

use api::manifest::{Strictness, parse};
use rstest::rstest;

use super::*;

fn sorted(text: &str) -> Sorted {
    let parsed = parse("m.yaml", text, Strictness::Strict);
    assert!(parsed.problems.iter().all(|problem| problem.object.is_some()), "{parsed:?}");
    let mut objects = ObjectMap::default();
    objects.extend(parsed.objects);
    for workload in &parsed.workloads {
        objects.insert_claims_of(workload);
    }
    sort(&parsed.problems, &parsed.pods, &parsed.workloads, &objects)
}

fn volume(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec: {{accessModes: [ReadWriteOnce], capacity: \
         {{storage: 1Gi}}, {fields}}}\n---\n"
    )
}

fn claim(name: &str, fields: &str) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {name}}}\nspec: {{accessModes: [ReadWriteOnce], resources: \
         {{requests: {{storage: 1Gi}}}}{fields}}}\n---\n"
    )
}

/// The spec of a pod with a volume.
fn spec(volume: &str) -> String {
    format!("{{volumes: [{{name: v, {volume}}}], containers: [{{name: c, image: i}}]}}")
}

fn pod(volume: &str) -> String {
    let spec = spec(volume);
    format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {spec}\n---\n")
}

fn deployment(volume: &str) -> String {
    format!(
        "apiVersion: apps/v1\nkind: Deployment\nmetadata: {{name: d}}\nspec: {{selector: {{matchLabels: {{a: b}}}}, template: \
         {{metadata: {{labels: {{a: b}}}}, spec: {}}}}}\n---\n",
        spec(volume)
    )
}

fn stateful_set(replicas: i32) -> String {
    format!(
        "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: db}}\nspec: {{replicas: {replicas}, selector: {{matchLabels: {{a: \
         b}}}}, template: {{metadata: {{labels: {{a: b}}}}, spec: {{containers: [{{name: c, image: i}}]}}}}, volumeClaimTemplates: \
         [{{metadata: {{name: data}}, spec: {{accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}}}]}}\n---\n"
    )
}

const DATA: &str = "persistentVolumeClaim: {claimName: data}";
const NFS: &str = "nfs: {server: s, path: /p}";
const EPHEMERAL: &str = "ephemeral: {volumeClaimTemplate: {spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}}";

#[rstest]
#[case::no_claim(volume("v", NFS) + &pod("emptyDir: {}"), &["persistentvolume v"])]
#[case::unused_claim(volume("v", NFS) + &claim("data", "") + &pod("emptyDir: {}"), &["persistentvolume v"])]
#[case::claim_of_pod(volume("v", NFS) + &claim("data", "") + &pod(DATA), &[])]
#[case::claim_of_template(volume("v", NFS) + &claim("data", "") + &deployment(DATA), &[])]
#[case::named_by_claim(volume("v", NFS) + &claim("data", ", volumeName: v") + &pod(DATA), &[])]
#[case::another_fits_better(volume("v", NFS) + &volume("a", "hostPath: {path: /d}") + &claim("data", "") + &pod(DATA), &["persistentvolume v"])]
#[case::another_class(volume("v", &format!("storageClassName: slow, {NFS}")) + &claim("data", "") + &pod(DATA), &["persistentvolume v"])]
#[case::of_set(volume("v", NFS) + &stateful_set(1), &[])]
#[case::too_many_for_set(volume("v", NFS) + &volume("a", "hostPath: {path: /d}") + &stateful_set(1), &["persistentvolume v"])]
#[case::of_further_pod_of_set(volume("v", NFS) + &volume("a", "hostPath: {path: /d}") + &stateful_set(2), &[])]
#[case::reserved_for_pod_of_set(volume("v", &format!("claimRef: {{name: data-db-1}}, {NFS}")) + &stateful_set(2), &[])]
#[case::reserved_for_another_pod(volume("v", &format!("claimRef: {{name: data-db-2}}, {NFS}")) + &stateful_set(2), &["persistentvolume v"])]
#[case::of_ephemeral_volume(volume("v", NFS) + &pod(EPHEMERAL), &[])]
#[case::of_ephemeral_volume_of_template(volume("v", NFS) + &deployment(EPHEMERAL), &[])]
#[case::block(claim("data", ", volumeMode: Block") + &pod("emptyDir: {}"), &["persistentvolumeclaim default/data"])]
#[case::block_of_pod(claim("data", ", volumeMode: Block") + &pod(DATA), &[])]
#[case::copy(claim("data", ", dataSource: {kind: PersistentVolumeClaim, name: x}") + &pod("emptyDir: {}"), &["persistentvolumeclaim default/data"])]
#[case::copy_of_template(claim("data", ", dataSource: {kind: PersistentVolumeClaim, name: x}") + &deployment(DATA), &[])]
#[case::copy_of_set(claim("data-db-1", ", dataSource: {kind: PersistentVolumeClaim, name: x}") + &stateful_set(2), &[])]
#[case::copy_of_no_pod_of_set(claim("data-db-2", ", dataSource: {kind: PersistentVolumeClaim, name: x}") + &stateful_set(2), &["persistentvolumeclaim default/data-db-2"])]
#[case::both(volume("v", NFS) + &claim("data", ", volumeMode: Block") + &pod("emptyDir: {}"), &["persistentvolume v", "persistentvolumeclaim default/data"])]
fn objects_that_no_pod_uses_are_warned_of(#[case] text: String, #[case] unused: &[&str]) {
    let Sorted { problems, warnings } = sorted(&text);
    let words = |object: &&str| format!(": {object} is skipped, because no pod uses it (");
    assert_eq!(warnings.len(), unused.len(), "{warnings:?}");
    for (warning, words) in warnings.iter().zip(unused.iter().map(words)) {
        assert!(warning.contains(&words), "{warning}");
    }
    assert_eq!(problems.is_empty(), !unused.is_empty(), "{problems:?}");
}

#[test]
fn warning_names_object_once_with_each_reason() {
    let block = format!("volumeMode: Block, {NFS}");
    let text = volume("v", &block) + &volume("v", &block);
    assert_eq!(
        sorted(&text).warnings,
        [
            "m.yaml:4:76: persistentvolume v is skipped, because no pod uses it (spec.volumeMode: block devices are not supported; \
             spec.nfs: this kind of PersistentVolume is not supported)"
        ]
    );
}
