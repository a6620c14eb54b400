//! Tables of requests to drivers.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use rstest::rstest;
use serde_json::{Value, json};

use super::*;

fn pod(security: Value) -> Pod {
    let pod = json!({
        "metadata": {"name": "web", "namespace": "ns", "uid": "u1"},
        "spec": {"containers": [], "serviceAccountName": "robot", "securityContext": security},
    });
    Pod::new(serde_json::from_value(pod).unwrap())
}

fn of_claim(csi: Value, spec: Value) -> DriverVolume {
    let mut source = json!({"driver": "d", "volumeHandle": "h"});
    source.as_object_mut().unwrap().extend(csi.as_object().unwrap().clone());
    let mut volume = json!({"metadata": {"name": "pv"}, "spec": {"csi": source}});
    volume["spec"].as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let volume = Arc::new(serde_json::from_value(volume).unwrap());
    DriverVolume {
        name: "v".to_owned(),
        spec_name: "pv".to_owned(),
        source: DriverSource::Persistent(volume),
        readonly: false,
    }
}

fn inline(fields: Value) -> DriverVolume {
    let mut source = json!({"driver": "d"});
    source.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    DriverVolume {
        name: "v".to_owned(),
        spec_name: "v".to_owned(),
        source: DriverSource::Inline(serde_json::from_value(source).unwrap()),
        readonly: false,
    }
}

fn wanted(volume: &DriverVolume) -> Wanted {
    Wanted::of(&pod(json!({"fsGroup": 7})), volume).unwrap()
}

fn rules(spec: Value) -> DriverRules {
    let driver = json!({"metadata": {"name": "d"}, "spec": spec});
    DriverRules::of(Some(&serde_json::from_value(driver).unwrap()))
}

#[test]
fn persistent_volume_is_what_its_source_says() {
    let csi = json!({
        "fsType": "ext4",
        "volumeAttributes": {"a": "1"},
        "nodeStageSecretRef": {"namespace": "s", "name": "stage"},
        "nodePublishSecretRef": {"namespace": "s", "name": "publish"},
    });
    let spec = json!({"accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"]});
    let wanted = wanted(&of_claim(csi, spec));
    assert_eq!((wanted.key.driver.as_str(), wanted.key.handle.as_str()), ("d", "h"));
    let secret = |name: &str| Some(("s".to_owned(), name.to_owned()));
    assert_eq!(wanted.publish_secret, secret("publish"));
    assert_eq!(wanted.persistent.as_ref().unwrap().stage_secret, secret("stage"));
    let capability = wanted.capability(Capabilities::default());
    let kind = AccessKind::Mount {
        fs_type: "ext4".to_owned(),
        flags: vec!["noatime".to_owned()],
        group: None,
    };
    assert_eq!(capability, Capability { access: AccessMode::SingleNodeWriter, kind });
}

#[test]
fn block_device_has_no_file_system_and_no_group() {
    let spec = json!({"volumeMode": "Block", "accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"]});
    let wanted = wanted(&of_claim(json!({"fsType": "ext4"}), spec));
    assert_eq!(wanted.key.device.as_deref(), Some("pv"));
    let capability = wanted.capability(Capabilities::default());
    let expected = Capability { access: AccessMode::MultiNodeMultiWriter, kind: AccessKind::Block };
    assert_eq!(capability, expected);
    let always = rules(json!({"fsGroupPolicy": "File"}));
    assert!(!always.takes_group(&wanted, Capabilities::default()));
}

/// The group in a capability.
fn group(capability: Capability) -> Option<String> {
    match capability.kind {
        AccessKind::Mount { group, .. } => group,
        AccessKind::Block => None,
    }
}

#[test]
fn inline_volume_has_a_handle_of_its_pod_and_a_secret_of_its_namespace() {
    let wanted = wanted(&inline(json!({"nodePublishSecretRef": {"name": "login"}})));
    assert_eq!(wanted.key.handle, inline_handle("u1", "v"));
    assert_eq!(wanted.publish_secret, Some(("ns".to_owned(), "login".to_owned())));
    assert_eq!((wanted.mode(), wanted.persistent), ("Ephemeral", None));
}

#[rstest]
#[case("ReadWriteOnce", AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter)]
#[case("ReadWriteOncePod", AccessMode::SingleNodeWriter, AccessMode::SingleNodeSingleWriter)]
#[case("ReadOnlyMany", AccessMode::MultiNodeReaderOnly, AccessMode::MultiNodeReaderOnly)]
#[case("ReadWriteMany", AccessMode::MultiNodeMultiWriter, AccessMode::MultiNodeMultiWriter)]
#[case("Other", AccessMode::Unknown, AccessMode::Unknown)]
fn access_mode_is_what_the_driver_knows(
    #[case] mode: &str,
    #[case] plain: AccessMode,
    #[case] several: AccessMode,
) {
    let wanted = wanted(&of_claim(json!({}), json!({"accessModes": [mode]})));
    let of = |several_writers| {
        wanted.capability(Capabilities { several_writers, ..Capabilities::default() }).access
    };
    assert_eq!((of(false), of(true)), (plain, several));
}

#[rstest]
#[case::no_object_persistent(None, false, None)]
#[case::no_object_inline(
    None,
    true,
    Some("volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)")
)]
#[case::default_persistent(Some(json!({})), false, None)]
#[case::default_inline(Some(json!({})), true, Some("volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])"))]
#[case::both(Some(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]})), true, None)]
#[case::inline_alone(Some(json!({"volumeLifecycleModes": ["Ephemeral"]})), false, Some("volume mode \"Persistent\" not supported by driver d (only supports [\"Ephemeral\"])"))]
fn driver_takes_volumes_of_its_modes(
    #[case] spec: Option<Value>,
    #[case] is_inline: bool,
    #[case] refused: Option<&str>,
) {
    let rules = spec.map_or_else(|| DriverRules::of(None), rules);
    let volume = if is_inline { inline(json!({})) } else { of_claim(json!({}), json!({})) };
    assert_eq!(rules.check(&wanted(&volume)).err().as_deref(), refused);
}

#[rstest]
#[case::default(json!({}), json!({"fsType": "ext4"}), "ReadWriteOnce", true)]
#[case::no_type(json!({}), json!({}), "ReadWriteOnce", false)]
#[case::several_nodes(json!({}), json!({"fsType": "ext4"}), "ReadWriteMany", false)]
#[case::always(json!({"fsGroupPolicy": "File"}), json!({}), "ReadWriteMany", true)]
#[case::never(json!({"fsGroupPolicy": "None"}), json!({"fsType": "ext4"}), "ReadWriteOnce", false)]
fn agent_gives_volumes_to_groups_by_the_policy(
    #[case] spec: Value,
    #[case] csi: Value,
    #[case] mode: &str,
    #[case] expected: bool,
) {
    let (rules, can) = (rules(spec), Capabilities::default());
    let volume = of_claim(csi, json!({"accessModes": [mode]}));
    let wanted = wanted(&volume);
    assert_eq!(rules.takes_group(&wanted, can), expected);
    // A driver that applies groups itself gets the group instead.
    let able = Capabilities { gives_groups: true, ..can };
    assert!(!rules.takes_group(&wanted, able));
    assert_eq!(group(wanted.capability(able)).as_deref(), Some("7"));
    let readonly = Wanted { readonly: true, ..wanted.clone() };
    assert!(!rules.takes_group(&readonly, can));
    let without = Wanted { group: None, ..wanted };
    assert!(!rules.takes_group(&without, can));
    assert_eq!(group(without.capability(able)), None);
}

#[rstest]
#[case::unknown(None, true)]
#[case::default(Some(json!({})), true)]
#[case::required(Some(json!({"attachRequired": true})), true)]
#[case::not_required(Some(json!({"attachRequired": false})), false)]
fn volumes_are_attached_unless_the_driver_says_otherwise(
    #[case] spec: Option<Value>,
    #[case] expected: bool,
) {
    let rules = spec.map_or_else(|| DriverRules::of(None), rules);
    assert_eq!(rules.attaches, expected);
}

#[test]
fn driver_is_told_of_the_pod_if_it_wants_that() {
    let attributes = json!({"volumeAttributes": {"a": "1"}});
    let wanted = wanted(&inline(attributes));
    assert_eq!(wanted.context(&rules(json!({}))), Strings::from([("a".into(), "1".into())]));
    let shown = wanted.context(&rules(json!({"podInfoOnMount": true})));
    let expected = [
        ("a", "1"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "web"),
        ("csi.storage.k8s.io/pod.namespace", "ns"),
        ("csi.storage.k8s.io/pod.uid", "u1"),
        ("csi.storage.k8s.io/serviceAccount.name", "robot"),
    ];
    let shown: Vec<(&str, &str)> = shown.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(shown, expected);
}
