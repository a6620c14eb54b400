//! ◆ Objects other than pods in the format of `kubectl describe`. Pure.
//!
//! Source: Kubernetes 1.36, kubectl/pkg/describe/describe.go.

use crib_base::columns::fields::{UNSET, field, flag, list, number, text};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::lines::{Lines, NONE};
use super::metadata::{annotations, pairs};

mod config;
mod jobs;
mod service;
mod workload;

/// A function that adds the lines of an object. `all` are the objects of its run.
type Describer = fn(lines: &mut Lines, object: &Value, all: &[Value], now: Timestamp);

/// The kinds with a description: group, kind, describer, and whether kubectl shows events of the kind.
const KINDS: [(&str, &str, Describer, bool); 12] = [
    ("apps", "Deployment", workload::deployment, true),
    ("apps", "ReplicaSet", workload::replica_set, true),
    ("", "ReplicationController", workload::replica_set, true),
    ("apps", "StatefulSet", workload::stateful_set, true),
    ("apps", "DaemonSet", workload::daemon_set, true),
    ("batch", "Job", jobs::job, true),
    ("batch", "CronJob", jobs::cron_job, true),
    ("", "Service", service::service, true),
    ("", "ConfigMap", config::config_map, true),
    ("", "Secret", config::secret, false),
    ("", "PersistentVolumeClaim", config::claim, true),
    ("", "Namespace", config::namespace, false),
];

/// Whether objects of a kind have a description.
pub(super) fn is_known(group: &str, kind: &str) -> bool {
    KINDS.iter().any(|known| known.0 == group && known.1 == kind)
}

/// The lines of an object; `all` are the objects of its run. A run records events of pods only.
pub(super) fn lines(
    object: &Value,
    all: &[Value],
    with_events: bool,
    now: Timestamp,
) -> Vec<String> {
    let mut lines = Lines::default();
    let kind = text(object, "/kind");
    if let Some((_, _, describe, has_events)) = KINDS.iter().find(|known| known.1 == kind) {
        describe(&mut lines, object, all, now);
        if *has_events && with_events {
            lines.field(0, "Events", NONE);
        }
    }
    lines.aligned()
}

/// Adds the name and the namespace.
fn names(lines: &mut Lines, object: &Value) {
    lines.field(0, "Name", text(object, "/metadata/name"));
    lines.field(0, "Namespace", text(object, "/metadata/namespace"));
}

/// Adds the labels and annotations.
fn metadata(lines: &mut Lines, object: &Value) {
    let metadata = object.get("metadata").cloned().unwrap_or_default();
    let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
    lines.values(0, "Labels", &pairs(metadata.labels.as_ref()));
    lines.values(0, "Annotations", &annotations(metadata.annotations.as_ref()));
}

/// Adds the object that controls this one.
fn controller(lines: &mut Lines, object: &Value) {
    let mut owners = list(object, "/metadata/ownerReferences").iter();
    let owner = owners.find(|owner| flag(owner, "/controller"));
    let owner = owner.map(|owner| format!("{}/{}", text(owner, "/kind"), text(owner, "/name")));
    lines.some(0, "Controlled By", owner.as_deref());
}

/// Adds the types, statuses and reasons of the conditions. As in kubectl, a space follows the type.
fn conditions(lines: &mut Lines, object: &Value) {
    let conditions = list(object, "/status/conditions");
    if conditions.is_empty() {
        return;
    }
    lines.line(0, "Conditions:");
    headings(lines, &["Type", "Status", "Reason"], &["----", "------", "------"]);
    for condition in conditions {
        let kind = format!("{} ", text(condition, "/type"));
        let rest = ["/status", "/reason"].map(|pointer| text(condition, pointer).to_owned());
        lines.row(2, std::iter::once(kind).chain(rest));
    }
}

/// Adds the headings of a table, and the lines below them.
fn headings(lines: &mut Lines, headings: &[&str], rules: &[&str]) {
    for cells in [headings, rules] {
        lines.row(2, cells.iter().map(|cell| (*cell).to_owned()));
    }
}

/// The time in a field, in kubectl's format.
fn time(object: &Value, pointer: &str) -> Option<String> {
    let time = crib_base::columns::fields::time(object, pointer)?;
    Some(super::time::time(&k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(time)))
}

/// A number, or `<unset>`.
fn number_or_unset(object: &Value, pointer: &str) -> String {
    field(object, pointer).map_or_else(|| UNSET.to_owned(), |_| number(object, pointer).to_string())
}

/// A field that is a string or a number, such as `25%` or `1`.
fn scalar(object: &Value, pointer: &str) -> Option<String> {
    let value = field(object, pointer)?;
    Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// The text of an object in tests.
#[cfg(test)]
fn described(object: &Value, all: &[Value]) -> String {
    lines(object, all, true, "2026-01-02T03:04:05Z".parse().unwrap()).join("\n")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("apps", "Deployment", true)]
    #[case("", "Service", true)]
    #[case("", "Deployment", false)]
    #[case("", "PersistentVolume", false)]
    fn kinds_have_groups(#[case] group: &str, #[case] kind: &str, #[case] expected: bool) {
        assert_eq!(is_known(group, kind), expected);
    }

    #[rstest]
    #[case("ConfigMap", true)]
    #[case("Secret", false)]
    #[case("Namespace", false)]
    fn events_follow_as_in_kubectl(#[case] kind: &str, #[case] expected: bool) {
        let object = json!({"kind": kind, "metadata": {"name": "a"}});
        assert_eq!(described(&object, &[]).ends_with("\nEvents:  <none>"), expected);
        let hidden = lines(&object, &[], false, Timestamp::UNIX_EPOCH).join("\n");
        assert!(!hidden.contains("Events:"), "{hidden}");
    }
}
