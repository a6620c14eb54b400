//! The files of volumes: ConfigMaps, Secrets, fields of the pod, tokens, and combinations in one volume.
#![allow(clippy::unwrap_used)]

use std::ops::Range;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::fixtures;
use crate::objects::ObjectMap;

fn objects() -> ObjectMap {
    let mut objects = ObjectMap::default();
    let map = json!({"metadata": {"name": "m", "namespace": "n"},
        "data": {"a": "alpha", "b": "beta"}, "binaryData": {"bin": "AAEC"}});
    objects.insert_config_map(serde_json::from_value(map).unwrap());
    let secret = json!({"metadata": {"name": "s", "namespace": "n"}, "data": {"k": "eA=="}});
    objects.insert_secret(serde_json::from_value(secret).unwrap());
    for (name, signer, certificates) in [
        ("b", None, [1, 2]),
        ("example.org:s:one", Some("example.org/s"), [1, 3]),
        ("example.org:s:two", Some("example.org/s"), [3, 4]),
    ] {
        let bundle = certificates.map(|byte| pem::encode(&pem::Pem::new("CERTIFICATE", [byte])));
        let bundle = json!({"metadata": {"name": name, "labels": {"name": name.replace(':', ".")}},
            "spec": {"signerName": signer, "trustBundle": bundle.join("text\n")}});
        objects.insert_cluster_trust_bundle(serde_json::from_value(bundle).unwrap());
    }
    objects
}

fn pod(security: Value) -> Pod {
    let limits = json!({"limits": {"cpu": "1500m"}, "requests": {"memory": "64Mi"}});
    fixtures::pod(json!({
        "metadata": {"name": "p", "namespace": "n", "uid": "u1",
            "labels": {"b": "2", "a": "x\"y"}, "annotations": {"note": "text"}},
        "spec": {"securityContext": security, "containers": [{"name": "c", "resources": limits}],
            "initContainers": [{"name": "i"}]},
    }))
}

fn files_of(pod: &Pod, volume: Value) -> Result<Payload, ContentError> {
    let mut volume = volume;
    volume["name"] = json!("v");
    let volume: Volume = serde_json::from_value(volume).unwrap();
    let mut node = Node::new("node", "/r", "/l");
    let allocatable = [("cpu", "4"), ("memory", "8Gi")];
    node.allocatable =
        allocatable.map(|(name, amount)| (name.to_owned(), amount.to_owned())).into();
    let inputs = ContentInputs {
        node: &node,
        objects: &objects(),
        token: &|wanted| Ok(format!("token for {}", wanted.audience.as_deref().unwrap())),
    };
    payload(pod, &volume, inputs)
}

/// Each file as `path mode text`.
fn listed(volume: Value) -> Vec<String> {
    let files = files_of(&pod(json!({})), volume).unwrap();
    let line = |(path, content): (PathBuf, FileContent)| {
        let text = String::from_utf8_lossy(&content.data).into_owned();
        format!("{} {:o} {text}", path.display(), content.mode)
    };
    files.into_iter().map(line).collect()
}

#[test]
fn every_entry_of_an_object_is_a_file() {
    assert_eq!(
        listed(json!({"configMap": {"name": "m", "defaultMode": 0o640}})),
        ["a 640 alpha", "b 640 beta", "bin 640 \0\u{1}\u{2}"]
    );
    assert_eq!(listed(json!({"secret": {"secretName": "s"}})), ["k 644 x"]);
}

#[test]
fn items_choose_entries_paths_and_modes() {
    let items = json!([{"key": "a", "path": "x//./y", "mode": 0o400}, {"key": "b", "path": "z"}]);
    assert_eq!(
        listed(json!({"configMap": {"name": "m", "items": items, "defaultMode": 0o600}})),
        ["x/y 400 alpha", "z 600 beta"]
    );
}

/// The first bytes of the certificates of a bundle, or why there are none.
fn anchors(wanted: Value) -> String {
    let mut wanted = wanted;
    wanted["path"] = json!("roots.pem");
    let volume = json!({"projected": {"sources": [{"clusterTrustBundle": wanted}]}});
    match files_of(&pod(json!({"runAsUser": 7})), volume) {
        Err(error) => error.to_string(),
        Ok(files) => {
            let file = &files[Path::new("roots.pem")];
            assert_eq!((file.mode, file.owner), (0o600, Some(7)));
            let blocks = pem::parse_many(&file.data).unwrap();
            let bytes = blocks.iter().map(|block| block.contents()[0].to_string());
            bytes.collect::<Vec<_>>().join(" ")
        }
    }
}

#[rstest]
#[case::of_name(json!({"name": "b"}), "1 2")]
#[case::missing(json!({"name": "x"}), "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"x\" not found")]
#[case::optional(json!({"name": "x", "optional": true}), "")]
#[case::of_signer(json!({"signerName": "example.org/s", "labelSelector": {}}), "1 3 4")]
#[case::of_labels(json!({"signerName": "example.org/s", "labelSelector": {"matchLabels": {"name": "example.org.s.two"}}}), "3 4")]
#[case::no_selector(json!({"signerName": "example.org/s"}), "combination of signerName and labelSelector matched zero ClusterTrustBundles")]
#[case::other_signer(json!({"signerName": "example.org/t", "labelSelector": {}, "optional": true}), "")]
fn certificates_of_bundles_are_shown_once(#[case] wanted: Value, #[case] expected: &str) {
    assert_eq!(anchors(wanted), expected);
}

#[test]
fn optional_objects_and_keys_may_be_missing() {
    let items = json!([{"key": "a", "path": "a"}, {"key": "none", "path": "b"}]);
    let map = json!({"configMap": {"name": "m", "optional": true, "items": items}});
    assert_eq!(listed(map), ["a 644 alpha"]);
    let secret = json!({"secret": {"secretName": "gone", "optional": true}});
    assert_eq!(listed(secret), [""; 0]);
}

#[rstest]
#[case(json!({"configMap": {"name": "gone"}}), "configmap \"gone\" not found")]
#[case(json!({"secret": {"secretName": "gone"}}), "secret \"gone\" not found")]
#[case(
    json!({"configMap": {"name": "m", "items": [{"key": "x", "path": "x"}]}}),
    "configmap references non-existent config key: x"
)]
#[case(
    json!({"secret": {"secretName": "s", "items": [{"key": "x", "path": "x"}]}}),
    "references non-existent secret key: x"
)]
#[case(
    json!({"projected": {"sources": [{"secret": {"name": "gone"}}, {"configMap": {"name": "m"}}]}}),
    "secret \"gone\" not found"
)]
#[case(
    json!({"projected": {"sources": [{"secret": {"name": "gone"}}, {"configMap": {"name": "off"}}]}}),
    "[secret \"gone\" not found, configmap \"off\" not found]"
)]
#[case(
    json!({"downwardAPI": {"items": [{"path": "x", "fieldRef": {"fieldPath": "status.phase"}}]}}),
    "unsupported fieldPath: status.phase"
)]
fn errors_are_those_of_a_kubelet(#[case] volume: Value, #[case] message: &str) {
    let error = files_of(&pod(json!({})), volume).unwrap_err();
    assert_eq!(error.to_string(), message);
}

#[rstest]
#[case("../x")]
#[case("..x")]
#[case("a/../../x")]
#[case("/x")]
#[case(".")]
fn paths_stay_in_the_volume(#[case] path: &str) {
    let volume = json!({"configMap": {"name": "m", "items": [{"key": "a", "path": path}]}});
    let error = files_of(&pod(json!({})), volume).unwrap_err();
    assert!(matches!(error, ContentError::Path { .. }), "{error}");
}

#[rstest]
#[case(json!({"fieldRef": {"fieldPath": "metadata.labels"}}), "a=\"x\\\"y\"\nb=\"2\"")]
#[case(json!({"fieldRef": {"fieldPath": "metadata.labels['b']"}}), "2")]
#[case(json!({"fieldRef": {"fieldPath": "metadata.annotations['note']"}}), "text")]
#[case(json!({"fieldRef": {"fieldPath": "metadata.namespace"}}), "n")]
#[case(json!({"fieldRef": {"fieldPath": "metadata.uid"}}), "u1")]
#[case(json!({"resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}}), "1500")]
#[case(json!({"resourceFieldRef": {"containerName": "c", "resource": "limits.memory"}}), "8589934592")]
#[case(json!({"resourceFieldRef": {"containerName": "i", "resource": "limits.cpu"}}), "4")]
#[case(json!({"resourceFieldRef": {"containerName": "c", "resource": "requests.memory", "divisor": "1Mi"}}), "64")]
fn downward_files_show_fields_and_resources(#[case] source: Value, #[case] text: &str) {
    let mut item = source;
    item["path"] = json!("f");
    let volume = json!({"downwardAPI": {"items": [item]}});
    assert_eq!(listed(volume), [format!("f 644 {text}")]);
}

#[test]
fn later_sources_of_a_projected_volume_win() {
    let sources = json!([
        {"configMap": {"name": "m", "items": [{"key": "a", "path": "f"}, {"key": "b", "path": "g"}]}},
        {"secret": {"name": "s", "items": [{"key": "k", "path": "f", "mode": 0o400}]}},
        {"serviceAccountToken": {"path": "t", "audience": "vault"}},
    ]);
    assert_eq!(
        listed(json!({"projected": {"sources": sources, "defaultMode": 0o444}})),
        ["f 400 x", "g 444 beta", "t 444 token for vault"]
    );
}

#[rstest]
#[case(json!({"runAsUser": 1000}), 0o600, Some(1000))]
#[case(json!({"fsGroup": 2000}), 0o600, None)]
#[case(json!({}), 0o644, None)]
fn token_is_readable_only_by_user_or_group(
    #[case] security: Value,
    #[case] mode: u32,
    #[case] owner: Option<u32>,
) {
    let source = json!({"serviceAccountToken": {"path": "t", "audience": "a"}});
    let volume = json!({"projected": {"sources": [source]}});
    let files = files_of(&pod(security), volume).unwrap();
    let token = &files[Path::new("t")];
    assert_eq!((token.mode, token.owner), (mode, owner));
}

/// Files that show the same entry of a ConfigMap, which takes a quarter of the limit.
fn same(paths: Range<usize>) -> Value {
    let item = |number: usize| json!({"key": "k", "path": format!("p{number}")});
    json!({"name": "m", "items": paths.map(item).collect::<Vec<_>>()})
}

/// Files that show the same annotation, which takes a quarter of the limit.
fn same_fields(paths: Range<usize>) -> Vec<Value> {
    let field = json!({"fieldPath": "metadata.annotations['k']"});
    paths.map(|number| json!({"path": format!("p{number}"), "fieldRef": field})).collect()
}

#[rstest]
#[case::items(json!({"configMap": same(0..5)}))]
#[case::sources(json!({"projected": {"sources": [{"configMap": same(0..3)}, {"configMap": same(3..5)}]}}))]
#[case::fields(json!({"downwardAPI": {"items": same_fields(0..5)}}))]
fn files_of_a_volume_have_a_limit_together(#[case] volume: Value) {
    let mut volume = volume;
    volume["name"] = json!("v");
    let volume: Volume = serde_json::from_value(volume).unwrap();
    let long = "x".repeat(MOST_BYTES / 4);
    let mut objects = ObjectMap::default();
    let map = json!({"metadata": {"name": "m", "namespace": "n"}, "data": {"k": long.as_str()}});
    objects.insert_config_map(serde_json::from_value(map).unwrap());
    let pod = fixtures::pod(json!({
        "metadata": {"name": "p", "namespace": "n", "annotations": {"k": long}},
        "spec": {"containers": []},
    }));
    let node = Node::new("node", "/r", "/l");
    let token: TokenSource<'_> = &|_| Ok(String::new());
    let inputs = ContentInputs { node: &node, objects: &objects, token };
    assert_eq!(payload(&pod, &volume, inputs).err(), Some(ContentError::TooLarge));
}

#[test]
fn replaced_file_leaves_room_for_others() {
    let file = |size| FileContent { data: vec![0; size], mode: 0o644, owner: None };
    let mut files = Files::default();
    files.insert("a".into(), file(MOST_BYTES)).unwrap();
    assert_eq!(files.insert("b".into(), file(1)), Err(ContentError::TooLarge));
    files.insert("a".into(), file(1)).unwrap();
    files.insert("b".into(), file(MOST_BYTES - 1)).unwrap();
}
