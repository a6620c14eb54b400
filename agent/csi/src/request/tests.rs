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

fn pod_volume(volume: &DriverVolume) -> PodVolume {
    PodVolume::of(&pod(json!({"fsGroup": 7})), volume).unwrap()
}

fn settings(spec: Value) -> DriverSettings {
    let driver = json!({"metadata": {"name": "d"}, "spec": spec});
    DriverSettings::of(Some(&serde_json::from_value(driver).unwrap()))
}

#[test]
fn persistent_volume_has_the_fields_of_its_source() {
    let csi = json!({
        "fsType": "ext4",
        "volumeAttributes": {"a": "1"},
        "nodeStageSecretRef": {"namespace": "s", "name": "stage"},
        "nodePublishSecretRef": {"namespace": "s", "name": "publish"},
    });
    let spec = json!({"accessModes": ["ReadWriteOnce"], "mountOptions": ["noatime"]});
    let pod_volume = pod_volume(&of_claim(csi, spec));
    assert_eq!((pod_volume.key.driver.as_str(), pod_volume.key.handle.as_str()), ("d", "h"));
    let secret = |name: &str| Some(("s".to_owned(), name.to_owned()));
    assert_eq!(pod_volume.publish_secret, secret("publish"));
    assert_eq!(pod_volume.persistent.as_ref().unwrap().stage_secret, secret("stage"));
    let capability = pod_volume.capability(Capabilities::default());
    let kind = AccessKind::Mount {
        fs_type: "ext4".to_owned(),
        flags: vec!["noatime".to_owned()],
        group: None,
    };
    assert_eq!(capability, Capability { access: AccessMode::SingleNodeWriter, kind });
}

#[test]
fn block_device_has_no_fs_type_and_no_group() {
    let spec = json!({"volumeMode": "Block", "accessModes": ["ReadWriteMany"], "mountOptions": ["noatime"]});
    let pod_volume = pod_volume(&of_claim(json!({"fsType": "ext4"}), spec));
    assert_eq!(pod_volume.key.device.as_deref(), Some("pv"));
    let capability = pod_volume.capability(Capabilities::default());
    let expected = Capability { access: AccessMode::MultiNodeMultiWriter, kind: AccessKind::Block };
    assert_eq!(capability, expected);
    let always = settings(json!({"fsGroupPolicy": "File"}));
    assert!(!always.takes_group(&pod_volume, Capabilities::default()));
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
    let pod_volume = pod_volume(&inline(json!({"nodePublishSecretRef": {"name": "login"}})));
    assert_eq!(pod_volume.key.handle, inline_handle("u1", "v"));
    assert_eq!(pod_volume.publish_secret, Some(("ns".to_owned(), "login".to_owned())));
    assert_eq!((pod_volume.mode(), pod_volume.persistent), ("Ephemeral", None));
}

#[rstest]
#[case("ReadWriteOnce", AccessMode::SingleNodeWriter, AccessMode::SingleNodeMultiWriter)]
#[case("ReadWriteOncePod", AccessMode::SingleNodeWriter, AccessMode::SingleNodeSingleWriter)]
#[case("ReadOnlyMany", AccessMode::MultiNodeReaderOnly, AccessMode::MultiNodeReaderOnly)]
#[case("ReadWriteMany", AccessMode::MultiNodeMultiWriter, AccessMode::MultiNodeMultiWriter)]
#[case("Other", AccessMode::Unknown, AccessMode::Unknown)]
fn access_mode_depends_on_driver_capabilities(
    #[case] mode: &str,
    #[case] plain: AccessMode,
    #[case] several: AccessMode,
) {
    let pod_volume = pod_volume(&of_claim(json!({}), json!({"accessModes": [mode]})));
    let of = |several_writers| {
        pod_volume.capability(Capabilities { several_writers, ..Capabilities::default() }).access
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
fn driver_rejects_unsupported_lifecycle_modes(
    #[case] spec: Option<Value>,
    #[case] is_inline: bool,
    #[case] refused: Option<&str>,
) {
    let settings = spec.map_or_else(|| DriverSettings::of(None), settings);
    let volume = if is_inline { inline(json!({})) } else { of_claim(json!({}), json!({})) };
    assert_eq!(settings.check(&pod_volume(&volume)).err().as_deref(), refused);
}

#[rstest]
#[case::default(json!({}), json!({"fsType": "ext4"}), "ReadWriteOnce", true)]
#[case::no_type(json!({}), json!({}), "ReadWriteOnce", false)]
#[case::several_nodes(json!({}), json!({"fsType": "ext4"}), "ReadWriteMany", false)]
#[case::always(json!({"fsGroupPolicy": "File"}), json!({}), "ReadWriteMany", true)]
#[case::never(json!({"fsGroupPolicy": "None"}), json!({"fsType": "ext4"}), "ReadWriteOnce", false)]
fn fs_group_policy_decides_whether_the_agent_changes_groups(
    #[case] spec: Value,
    #[case] csi: Value,
    #[case] mode: &str,
    #[case] expected: bool,
) {
    let (settings, capabilities) = (settings(spec), Capabilities::default());
    let volume = of_claim(csi, json!({"accessModes": [mode]}));
    let pod_volume = pod_volume(&volume);
    assert_eq!(settings.takes_group(&pod_volume, capabilities), expected);
    // A driver that applies groups itself gets the group instead.
    let able = Capabilities { applies_fs_group: true, ..capabilities };
    assert!(!settings.takes_group(&pod_volume, able));
    assert_eq!(group(pod_volume.capability(able)).as_deref(), Some("7"));
    let readonly = PodVolume { readonly: true, ..pod_volume.clone() };
    assert!(!settings.takes_group(&readonly, capabilities));
    let without = PodVolume { group: None, ..pod_volume };
    assert!(!settings.takes_group(&without, capabilities));
    assert_eq!(group(without.capability(able)), None);
}

#[rstest]
#[case::unknown(None, true)]
#[case::default(Some(json!({})), true)]
#[case::required(Some(json!({"attachRequired": true})), true)]
#[case::not_required(Some(json!({"attachRequired": false})), false)]
fn volumes_are_attached_by_default(#[case] spec: Option<Value>, #[case] expected: bool) {
    let settings = spec.map_or_else(|| DriverSettings::of(None), settings);
    assert_eq!(settings.attaches, expected);
}

#[test]
fn context_has_pod_fields_if_requested() {
    let attributes = json!({"volumeAttributes": {"a": "1"}});
    let pod_volume = pod_volume(&inline(attributes));
    assert_eq!(pod_volume.context(&settings(json!({}))), Strings::from([("a".into(), "1".into())]));
    let context = pod_volume.context(&settings(json!({"podInfoOnMount": true})));
    let expected = [
        ("a", "1"),
        ("csi.storage.k8s.io/ephemeral", "true"),
        ("csi.storage.k8s.io/pod.name", "web"),
        ("csi.storage.k8s.io/pod.namespace", "ns"),
        ("csi.storage.k8s.io/pod.uid", "u1"),
        ("csi.storage.k8s.io/serviceAccount.name", "robot"),
    ];
    let context: Vec<(&str, &str)> =
        context.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    assert_eq!(context, expected);
}

#[test]
fn limit_is_updated_if_the_driver_requests_a_period() {
    assert!(settings(json!({"nodeAllocatableUpdatePeriodSeconds": 10})).updates_limit);
    assert!(!settings(json!({})).updates_limit);
}
