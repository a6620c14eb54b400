//! Rules of volumes.

use rstest::rstest;
use serde_json::{Value, json};

use super::{one, spec_errors};
use crate::manifest::Rule::{self, Forbidden, Invalid, NotSupported, Required, TooLong};

fn volume_errors(source: Value) -> Vec<(String, Rule)> {
    let mut volume = json!({"name": "v"});
    super::merge(&mut volume, source);
    let found = spec_errors(json!({"serviceAccountName": "a", "volumes": [volume]}));
    let inner = |(field, rule): (String, Rule)| {
        let inner = field.strip_prefix("spec.volumes[0].");
        (inner.unwrap_or(&field).to_owned(), rule)
    };
    found.into_iter().map(inner).collect()
}

#[rstest]
#[case(json!({"emptyDir": {"sizeLimit": "-1"}}), "emptyDir.sizeLimit", Forbidden)]
#[case(json!({"emptyDir": {}, "downwardAPI": {}}), "downwarAPI", Forbidden)]
#[case(json!({"emptyDir": {}, "cephfs": {"monitors": []}}), "cephFS", Forbidden)]
#[case(json!({"hostPath": {"path": "", "type": "Bogus"}}), "hostPath.path", Required)]
#[case(json!({"gitRepo": {"repository": "r", "directory": "../x"}}), "gitRepo.directory", Invalid)]
#[case(json!({"gcePersistentDisk": {"pdName": ""}}), "persistentDisk.pdName", Required)]
#[case(json!({"awsElasticBlockStore": {"volumeID": "v", "partition": 256}}), "awsElasticBlockStore.partition", Invalid)]
#[case(json!({"csi": {"driver": "a".repeat(64)}}), "csi.driver", TooLong)]
#[case(json!({"csi": {"driver": "d", "nodePublishSecretRef": {"name": "A"}}}), "csi.name", Invalid)]
#[case(json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com:a,b", "lun": 0}}), "iscsi.iqn", Invalid)]
#[case(json!({"iscsi": {"targetPortal": "p", "iqn": "eui.0123456789abcdef", "lun": 0, "chapAuthSession": true}}), "iscsi.secretRef", Required)]
#[case(json!({"iscsi": {"targetPortal": "p".repeat(63), "iqn": "iqn.2001-04.com:a", "lun": 0, "initiatorName": "iqn.2001-04.com:a"}}), "name", Invalid)]
#[case(json!({"flocker": {"datasetName": "a", "datasetUUID": "b"}}), "flocker", Invalid)]
#[case(json!({"rbd": {"monitors": [], "image": "i"}}), "rbd.monitors", Required)]
#[case(json!({"cinder": {"volumeID": "v", "secretRef": {"name": ""}}}), "cinder.secretRef.name", Required)]
#[case(json!({"quobyte": {"registry": "host", "volume": "v"}}), "quobyte.registry", Invalid)]
#[case(json!({"fc": {"targetWWNs": ["a"]}}), "fc.lun", Required)]
#[case(json!({"flexVolume": {"driver": "d", "options": {"x.kubernetes.io/a": "b"}}}), "flexVolume.options[x.kubernetes.io/a]", Invalid)]
#[case(json!({"azureDisk": {"diskName": "d", "diskURI": "x"}}), "azureDisk.diskURI", NotSupported)]
#[case(json!({"scaleIO": {"gateway": "g", "system": "s", "secretRef": {"name": "n"}}}), "scaleIO.volumeName", Required)]
#[case(json!({"storageos": {"volumeName": "A"}}), "storageos.volumeName", Invalid)]
#[case(json!({"nfs": {"server": "s", "path": "x"}}), "nfs.path", Invalid)]
#[case(json!({"image": {"reference": "r", "pullPolicy": "Bogus"}}), "image.pullPolicy", NotSupported)]
fn source_of_a_volume_is_checked(#[case] source: Value, #[case] field: &str, #[case] rule: Rule) {
    assert_eq!(volume_errors(source), one(field, rule));
}

#[rstest]
#[case(json!([{"secret": {"name": ""}}]), ".sources[0].secret.name", Required)]
#[case(json!([{"secret": {"name": "a", "items": [{"key": "k", "path": "x"}]}}, {"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "metadata.name"}}]}}]), "", Invalid)]
#[case(json!([{"serviceAccountToken": {"path": "t", "expirationSeconds": 10}}]), ".sources[0].serviceAccountToken.expirationSeconds", Invalid)]
#[case(json!([{"serviceAccountToken": {"path": "../t"}}]), ".path", Invalid)]
#[case(json!([{"clusterTrustBundle": {"path": "p"}}]), ".sources[0].clusterTrustBundle", Required)]
#[case(json!([{"clusterTrustBundle": {"path": "p", "name": "Example"}}]), ".sources[0].clusterTrustBundle.name", Invalid)]
#[case(json!([{"clusterTrustBundle": {"path": "p", "signerName": "plain"}}]), ".sources[0].clusterTrustBundle.signerName", Invalid)]
#[case(json!([{"podCertificate": {"signerName": "a.b/c", "keyType": "RSA1", "keyPath": "k"}}]), ".sources[0].podCertificate.keyType", NotSupported)]
#[case(json!([{"podCertificate": {"signerName": "a.b/c", "keyType": "ED25519"}}]), ".sources[0].podCertificate", Required)]
#[case(json!([{"podCertificate": {"signerName": "x.kubernetes.io/c", "keyType": "ED25519", "keyPath": "k", "maxExpirationSeconds": 86_401}}]), ".sources[0].podCertificate.maxExpirationSeconds", Invalid)]
fn sources_of_a_projected_volume_are_checked(
    #[case] sources: Value,
    #[case] field: &str,
    #[case] rule: Rule,
) {
    let found = volume_errors(json!({"projected": {"sources": sources}}));
    assert_eq!(found, one(&format!("projected{field}"), rule));
}

fn claim(more: Value) -> Value {
    let mut spec =
        json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}});
    super::merge(&mut spec, more);
    json!({"ephemeral": {"volumeClaimTemplate": {"spec": spec}}})
}

#[rstest]
#[case(json!({"accessModes": []}), ".accessModes", Required)]
#[case(json!({"accessModes": ["ReadWriteOncePod", "ReadWriteOnce"]}), ".accessModes", Forbidden)]
#[case(json!({"resources": {"requests": {"storage": "0"}}}), ".resources[storage]", Invalid)]
#[case(json!({"volumeMode": "Bogus"}), ".volumeMode", NotSupported)]
#[case(json!({"storageClassName": "A"}), ".storageClassName", Invalid)]
#[case(json!({"dataSource": {"kind": "Bogus", "name": "n"}}), ".dataSource", Invalid)]
#[case(json!({"dataSource": {"kind": "PersistentVolumeClaim", "name": "n"}, "dataSourceRef": {"kind": "PersistentVolumeClaim", "name": "m"}}), "", Invalid)]
fn claim_of_an_ephemeral_volume_is_checked(
    #[case] more: Value,
    #[case] field: &str,
    #[case] rule: Rule,
) {
    let field = format!("ephemeral.volumeClaimTemplate.spec{field}");
    assert_eq!(volume_errors(claim(more)), one(&field, rule));
}

#[test]
fn template_of_a_claim_has_no_name() {
    let mut volume = claim(json!({}));
    volume["ephemeral"]["volumeClaimTemplate"]["metadata"] = json!({"name": "n"});
    let field = "ephemeral.volumeClaimTemplate.metadata.name";
    assert_eq!(volume_errors(volume), one(field, Forbidden));
}

#[test]
fn claim_that_the_pod_makes_is_not_used_by_name() {
    let mut ephemeral = claim(json!({}));
    ephemeral["name"] = json!("e");
    let found = spec_errors(json!({"volumes": [
        ephemeral,
        {"name": "v", "persistentVolumeClaim": {"claimName": "p-e"}},
    ]}));
    let field = "spec.volumes[1].persistentVolumeClaim.claimName";
    assert_eq!(found, one(field, Invalid));
}
