//! Which claims and persistent volumes are taken, and what a StatefulSet's pods mount.
#![allow(clippy::unwrap_used)]

use rstest::rstest;

use crate::controllers::{Controllers, CronStarts, Refused};
use crate::manifest::{Parsed, Strictness, parse};
use crate::objects::{ObjectMap, Objects as _};
use crate::report::Reports;

fn strict(text: &str) -> Parsed {
    parse("m.yaml", text, Strictness::Strict)
}

fn paths(problems: &[crate::manifest::Problem]) -> Vec<&str> {
    problems
        .iter()
        .map(|problem| problem.path.as_str())
        .collect()
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
#[case("{name: v, namespace: n}", "hostPath: {path: /d}", &["metadata.namespace"])]
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
#[case("", &["spec.capacity", "spec.capacity"])]
#[case("capacity: {cpu: 1}", &["spec.capacity"])]
#[case("capacity: {storage: 0}", &["spec.capacity[storage]"])]
fn capacity_is_one_amount_of_storage(#[case] capacity: &str, #[case] expected: &[&str]) {
    let parsed = strict(&format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: v}}\nspec:\n  {MODES}\n  hostPath: {{path: /d}}\n  {capacity}\n"
    ));
    assert_eq!(paths(&parsed.problems), expected, "{:?}", parsed.problems);
}

/// A StatefulSet whose container mounts two volumes; one is a claim's, and the template has a volume of its name too.
const SET: &str = "apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db, namespace: ns}
spec:
  selector: {matchLabels: {app: db}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Delete, whenScaled: Retain}
  template:
    metadata: {labels: {app: db}}
    spec:
      containers: [{name: c, image: i, volumeMounts: [{name: data, mountPath: /d}, {name: tmp, mountPath: /t}]}]
      volumes: [{name: data, emptyDir: {}}, {name: tmp, emptyDir: {}}]
  volumeClaimTemplates:
  - metadata: {name: data, labels: {a: b}}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

#[test]
fn pods_of_a_stateful_set_mount_a_claim_each() {
    let parsed = strict(SET);
    assert_eq!(paths(&parsed.problems), [""; 0]);
    let warned = "spec.persistentVolumeClaimRetentionPolicy.whenDeleted";
    assert_eq!(paths(&parsed.warnings), [warned]);
    let mut objects = ObjectMap::default();
    objects.insert_claims_of(&parsed.workloads[0]);
    let now = jiff::Timestamp::UNIX_EPOCH;
    let mut controllers = Controllers::new(
        parsed.workloads,
        Refused::Deleted,
        CronStarts::Scheduled,
        1,
        now,
    );
    let created = controllers.sync(&Reports::default(), now).created;
    let volumes = created[0].spec().volumes.clone().unwrap();
    let claim = volumes[0].persistent_volume_claim.as_ref().unwrap();
    assert_eq!((volumes.len(), claim.claim_name.as_str()), (2, "data-db-0"));
    for name in ["data-db-0", "data-db-17"] {
        let claim = objects.persistent_volume_claim("ns", name).unwrap();
        assert_eq!(claim.metadata.name.as_deref(), Some(name));
        let labels: Vec<_> = claim.metadata.labels.iter().flatten().collect();
        assert_eq!(labels.len(), 2, "{labels:?}");
    }
    for (namespace, name) in [
        ("ns", "data-db"),
        ("ns", "data-db-x"),
        ("ns", "log-db-0"),
        ("m", "data-db-0"),
    ] {
        assert_eq!(
            objects.persistent_volume_claim(namespace, name),
            None,
            "{name}"
        );
    }
}
