//! ◆ ConfigMaps, Secrets, PersistentVolumeClaims and Namespaces. Pure.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use crib_base::columns::fields::{
    access_modes, field, is_terminating, list, since, storage_class, text, text_or, texts,
};
use jiff::Timestamp;
use serde_json::Value;

use super::{headings, metadata, names, time};
use crate::commands::runs::describe::lines::Lines;

/// The type of Secrets with tokens, which kubectl shows.
const TOKEN_TYPE: &str = "kubernetes.io/service-account-token";

/// Adds a ConfigMap with its data.
pub(super) fn config_map(lines: &mut Lines, object: &Value, _: &[Value], _: Timestamp) {
    names(lines, object);
    metadata(lines, object);
    section(lines, "Data");
    for (key, value) in entries(object, "/data") {
        lines.line(0, &format!("{key}:"));
        lines.line(0, "----");
        value.split('\n').for_each(|line| lines.line(0, line));
        lines.line(0, "");
    }
    section(lines, "BinaryData");
    for (key, value) in entries(object, "/binaryData") {
        lines.line(0, &format!("{key}: {} bytes", decoded(value).len()));
    }
    lines.line(0, "");
}

/// Adds a Secret with the sizes of its data.
pub(super) fn secret(lines: &mut Lines, object: &Value, _: &[Value], _: Timestamp) {
    names(lines, object);
    metadata(lines, object);
    lines.line(0, "");
    let kind = text_or(object, "/type", "Opaque");
    lines.field(0, "Type", &kind);
    section(lines, "Data");
    for (key, value) in entries(object, "/data") {
        let data = decoded(value);
        match key == "token" && kind == TOKEN_TYPE {
            true => lines.field(0, key, &String::from_utf8_lossy(&data)),
            false => lines.field(0, key, &format!("{} bytes", data.len())),
        }
    }
}

/// Adds a PersistentVolumeClaim and the pods that use it.
pub(super) fn claim(lines: &mut Lines, object: &Value, all: &[Value], now: Timestamp) {
    names(lines, object);
    lines.field(0, "StorageClass", storage_class(object));
    match is_terminating(object) {
        true => {
            let lasts = since(object, "/metadata/deletionTimestamp", now);
            lines.field(0, "Status", &format!("Terminating (lasts {lasts})"));
        }
        false => lines.field(0, "Status", text(object, "/status/phase")),
    }
    let volume = text(object, "/spec/volumeName");
    lines.field(0, "Volume", volume);
    metadata(lines, object);
    let finalizers = texts(object, "/metadata/finalizers").join(" ");
    lines.field(0, "Finalizers", &format!("[{finalizers}]"));
    let (capacity, access) = match volume {
        "" => (String::new(), String::new()),
        _ => (
            text_or(object, "/status/capacity/storage", "0"),
            access_modes(object, "/status/accessModes"),
        ),
    };
    lines.field(0, "Capacity", &capacity);
    lines.field(0, "Access Modes", &access);
    lines.some(0, "VolumeMode", Some(text(object, "/spec/volumeMode")));
    if let Some(source) = field(object, "/spec/dataSource") {
        lines.line(0, "DataSource:");
        lines.some(2, "APIGroup", Some(text(source, "/apiGroup")));
        lines.field(2, "Kind", text(source, "/kind"));
        lines.field(2, "Name", text(source, "/name"));
    }
    lines.values(0, "Used By", &users(object, all));
    claim_conditions(lines, object);
}

/// Adds a Namespace. A run has no resource quotas and limit ranges.
pub(super) fn namespace(lines: &mut Lines, object: &Value, _: &[Value], _: Timestamp) {
    lines.field(0, "Name", text(object, "/metadata/name"));
    metadata(lines, object);
    lines.field(0, "Status", &text_or(object, "/status/phase", "Active"));
    for missing in ["No resource quota.", "No LimitRange resource."] {
        lines.line(0, "");
        lines.line(0, missing);
    }
}

/// Adds the heading of a part of the data.
fn section(lines: &mut Lines, heading: &str) {
    lines.line(0, "");
    lines.line(0, heading);
    lines.line(0, "====");
}

/// The entries of a map of strings, sorted by key.
fn entries<'v>(object: &'v Value, pointer: &str) -> Vec<(&'v str, &'v str)> {
    let map = field(object, pointer).and_then(Value::as_object).into_iter().flatten();
    let entries = map.map(|(key, value)| (key.as_str(), value.as_str().unwrap_or_default()));
    let mut entries: Vec<(&str, &str)> = entries.collect();
    entries.sort_unstable();
    entries
}

/// The bytes of base64 text. The store has only values that were decoded before.
fn decoded(text: &str) -> Vec<u8> {
    BASE64_STANDARD.decode(text).unwrap_or_default()
}

/// The names of the pods that use a claim, sorted.
fn users(claim: &Value, all: &[Value]) -> Vec<String> {
    let uses = |pod: &&Value| {
        let is_own = |owner: &Value| {
            text(owner, "/kind") == "Pod" && text(owner, "/uid") == text(pod, "/metadata/uid")
        };
        let name = text(claim, "/metadata/name");
        let mut volumes = list(pod, "/spec/volumes").iter();
        text(pod, "/kind") == "Pod"
            && text(pod, "/metadata/namespace") == text(claim, "/metadata/namespace")
            && (volumes.any(|volume| text(volume, "/persistentVolumeClaim/claimName") == name)
                || list(claim, "/metadata/ownerReferences").iter().any(is_own))
    };
    let names = all.iter().filter(uses).map(|pod| text(pod, "/metadata/name").to_owned());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Adds the conditions of a claim. As in kubectl, a space follows each cell but the last.
fn claim_conditions(lines: &mut Lines, object: &Value) {
    let conditions = list(object, "/status/conditions");
    if conditions.is_empty() {
        return;
    }
    lines.line(0, "Conditions:");
    headings(
        lines,
        &["Type", "Status", "LastProbeTime", "LastTransitionTime", "Reason", "Message"],
        &["----", "------", "-----------------", "------------------", "------", "-------"],
    );
    // A time that is not set is Go's zero time.
    let time = |condition: &Value, pointer: &str| {
        time(condition, pointer).unwrap_or_else(|| "Mon, 01 Jan 0001 00:00:00 +0000".to_owned())
    };
    for condition in conditions {
        let cells = [
            format!("{} ", text(condition, "/type")),
            format!("{} ", text(condition, "/status")),
            format!("{} ", time(condition, "/lastProbeTime")),
            format!("{} ", time(condition, "/lastTransitionTime")),
            format!("{} ", text(condition, "/reason")),
            text(condition, "/message").to_owned(),
        ];
        lines.row(2, cells);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::described;
    use super::*;

    #[test]
    fn config_map_has_its_data() {
        let object = json!({
            "kind": "ConfigMap", "metadata": {"name": "settings", "namespace": "shop"},
            "data": {"b": "x", "a": "1\n2\n"}, "binaryData": {"c": "AAEC"},
        });
        let expected = "Name:         settings
Namespace:    shop
Labels:       <none>
Annotations:  <none>

Data
====
a:
----
1
2


b:
----
x


BinaryData
====
c: 3 bytes

Events:  <none>";
        assert_eq!(described(&object, &[]), expected);
    }

    #[test]
    fn secret_has_sizes_only() {
        let mut object = json!({
            "kind": "Secret", "metadata": {"name": "key", "namespace": "shop"},
            "type": "Opaque", "data": {"password": "aHVudGVyMg==", "token": "eA=="},
        });
        let expected = "Name:         key
Namespace:    shop
Labels:       <none>
Annotations:  <none>

Type:  Opaque

Data
====
password:  7 bytes
token:     1 bytes";
        assert_eq!(described(&object, &[]), expected);
        object["type"] = json!(TOKEN_TYPE);
        assert!(described(&object, &[]).ends_with("password:  7 bytes\ntoken:     x"));
    }

    #[test]
    fn claim_has_fields_of_kubectl() {
        let pod = |name: &str, namespace: &str, claim: &str| {
            json!({
                "kind": "Pod", "metadata": {"name": name, "namespace": namespace, "uid": name},
                "spec": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": claim}}]},
            })
        };
        let all = [
            pod("web-2", "shop", "data"),
            pod("web-1", "shop", "data"),
            pod("owner", "shop", "other"),
            pod("elsewhere", "default", "data"),
        ];
        let mut object = json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {
                "name": "data", "namespace": "shop", "finalizers": ["a", "b"],
                "ownerReferences": [{"kind": "Pod", "uid": "owner"}],
            },
            "spec": {"storageClassName": "fast", "volumeName": "pv-1", "volumeMode": "Filesystem"},
            "status": {
                "phase": "Bound", "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteMany", "ReadWriteOnce"],
            },
        });
        let expected = "Name:          data
Namespace:     shop
StorageClass:  fast
Status:        Bound
Volume:        pv-1
Labels:        <none>
Annotations:   <none>
Finalizers:    [a b]
Capacity:      1Gi
Access Modes:  RWO,RWX
VolumeMode:    Filesystem
Used By:       owner
               web-1
               web-2
Events:        <none>";
        assert_eq!(described(&object, &all), expected);
        object["spec"]["volumeName"] = json!("");
        object["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:00Z");
        object["status"]["conditions"] = json!([
            {"type": "Resizing", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z", "message": "slow"},
        ]);
        let text = described(&object, &[]);
        let zero = "Mon, 01 Jan 0001 00:00:00 +0000";
        for part in [
            "\nStatus:        Terminating (lasts 5s)\n".to_owned(),
            "\nCapacity:\nAccess Modes:\n".to_owned(),
            "\nUsed By:       <none>\nConditions:\n".to_owned(),
            format!(
                "  Resizing   True    {zero}   Fri, 02 Jan 2026 03:04:05 +0000           slow\n"
            ),
        ] {
            assert!(text.contains(&part), "{part}\n{text}");
        }
    }

    #[test]
    fn namespace_has_no_quotas() {
        let object = json!({"kind": "Namespace", "metadata": {"name": "shop"}});
        let expected = "Name:         shop
Labels:       <none>
Annotations:  <none>
Status:       Active

No resource quota.

No LimitRange resource.";
        assert_eq!(described(&object, &[]), expected);
    }
}
