//! Warnings of `crib run` and `crib explain-run` about manifests, which are errors with `--strict`.

use crate::command::*;
use crate::runs::run::pod;

/// The warnings of `crib explain-run`, which are the same as those of `crib run`.
async fn warnings(place: &Place, manifest: &str) -> Vec<String> {
    let ended = place.crib(&["explain-run", "--output", "json", manifest]).await.exits(0);
    let explained: Value = serde_json::from_str(&ended.out).unwrap();
    serde_json::from_value(explained["warnings"].clone()).unwrap()
}

/// Asserts that a manifest has only these warnings, and that each is an error with `--strict`.
async fn assert_warnings(text: &str, expected: &[&str]) {
    let place = Place::new();
    let manifest = place.file("m.yaml", text);
    assert_eq!(warnings(&place, &manifest).await, expected);
    if !expected.is_empty() {
        let strict = place.crib(&["run", "--strict", &manifest]).await.exits(2);
        for warning in expected {
            let refusal = format!("crib: --strict: {warning}\n");
            strict.err_has(&refusal);
        }
    }
}

const CLASS: &str = "---\napiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: fast}\nvalue: 1000\n";

#[rstest]
#[case::system("system-node-critical", "", &[])]
#[case::of_manifests("fast", CLASS, &[])]
#[case::unknown("fast", "", &["priorityClassName of pod default/p names the PriorityClass \"fast\", which is not in the manifests, \
    and which an API server would refuse: add the PriorityClass, or leave priorityClassName out"])]
#[tokio::test]
async fn unknown_priority_class_is_warned_of_and_strictly_refused(
    #[case] class: &str,
    #[case] more: &str,
    #[case] expected: &[&str],
) {
    let pod = format!("{}  priorityClassName: {class}\n", pod("p", "true"));
    assert_warnings(&format!("{pod}{more}"), expected).await;
}

/// A claim of 1Gi, and a pod that mounts it.
const CLAIM: &str = "  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

/// A PersistentVolume.
fn volume(name: &str, size: &str, more: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: {name}}}\nspec:\n  accessModes: [ReadWriteOnce]\n  \
         capacity: {{storage: {size}}}\n  hostPath: {{path: /srv}}\n  {more}\n"
    )
}

#[rstest]
#[case::no_volumes("", &[])]
#[case::fitting(&volume("a", "2Gi", ""), &[])]
#[case::none_fits(&(volume("a", "1Mi", "") + &volume("b", "2Gi", "storageClassName: slow")), &[
    "persistentvolumeclaim default/data gets its own directory, because it matches no PersistentVolume (\"a\": its capacity \
     is smaller than what the claim requests; \"b\": its storageClassName differs): change the claim or a \
     PersistentVolume, or leave the PersistentVolumes out"])]
#[case::of_another_claim(&volume("a", "2Gi", "claimRef: {name: other}"), &[
    "persistentvolumeclaim default/data gets its own directory, because it matches no PersistentVolume (\"a\": it is bound \
     to claim default/other): change the claim or a PersistentVolume, or leave the PersistentVolumes out"])]
#[tokio::test]
async fn claim_without_fitting_volume_is_warned_of_and_strictly_refused(
    #[case] volumes: &str,
    #[case] expected: &[&str],
) {
    let manifest = format!("{}{CLAIM}{volumes}", pod("p", "true"));
    assert_warnings(&manifest, expected).await;
}

const NFS: &str = "---
apiVersion: v1
kind: PersistentVolume
metadata: {name: share}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {storage: 1Gi}
  nfs: {server: s, path: /p}
";

const BLOCK: &str = "---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: disk}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeMode: Block}
";

#[rstest]
#[case::volume(
    NFS,
    "18:3: persistentvolume share is skipped, because no pod uses it (spec.nfs: this kind of PersistentVolume is not supported)"
)]
#[case::claim(
    BLOCK,
    "15:89: persistentvolumeclaim default/disk is skipped, because no pod uses it (spec.volumeMode: block devices are not supported)"
)]
#[tokio::test]
async fn unsupported_storage_of_no_pod_is_warned_of_and_strictly_refused(
    #[case] object: &str,
    #[case] expected: &str,
) {
    let place = Place::new();
    let text = format!("{}{object}", pod("p", "echo it runs"));
    let manifest = place.file("m.yaml", &text);
    let expected = format!("{manifest}:{expected}");
    assert_eq!(warnings(&place, &manifest).await, [expected.as_str()]);
    let ended = place.crib(&["run", &manifest]).await.exits(0);
    ended.out_has("it runs");
    assert_eq!(ended.err.matches(&expected).count(), 1, "{}", ended.err);
    let refusal = format!("crib: --strict: {expected}\n");
    place.crib(&["run", "--strict", &manifest]).await.exits(2).err_has(&refusal);
}

#[rstest]
#[case::cpu("cpu", &[])]
#[case::storage("ephemeral-storage", &["ephemeral-storage limits of pod default/p cover volumes and logs, but not files \
    written in containers of the image crib.local/host, which are kept in memory: set a memory limit, write to an emptyDir \
    volume, or use another image"])]
#[tokio::test]
async fn storage_limit_of_unmeasured_layer_is_warned_of_and_strictly_refused(
    #[case] resource: &str,
    #[case] expected: &[&str],
) {
    let manifest = format!("{}    resources: {{limits: {{{resource}: 1Gi}}}}\n", pod("p", "true"));
    assert_warnings(&manifest, expected).await;
}
