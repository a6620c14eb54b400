//! ◆ Deployments and other objects whose controllers keep pods running. Pure.

use crib_base::columns::fields::{
    field, list, number, or, pairs as joined, selector, text, text_or, texts,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use super::{conditions, controller, metadata, names, scalar, time};
use crate::commands::runs::describe::lines::{Lines, NONE};
use crate::commands::runs::describe::metadata::pairs;
use crate::commands::runs::describe::template;

/// The annotation of a Deployment's ReplicaSet with the number of its revision.
const REVISION: &str = "/metadata/annotations/deployment.kubernetes.io~1revision";

/// Adds a Deployment and its ReplicaSets.
pub(super) fn deployment(lines: &mut Lines, object: &Value, all: &[Value], _: Timestamp) {
    names(lines, object);
    created(lines, object);
    metadata(lines, object);
    lines.field(0, "Selector", &selector(object, "/spec/selector"));
    let status = |name: &str| number(object, &format!("/status/{name}"));
    let replicas = format!(
        "{} desired | {} updated | {} total | {} available | {} unavailable",
        desired(object),
        status("updatedReplicas"),
        status("replicas"),
        status("availableReplicas"),
        status("unavailableReplicas"),
    );
    lines.field(0, "Replicas", &replicas);
    let strategy = text_or(object, "/spec/strategy/type", "RollingUpdate");
    lines.field(0, "StrategyType", &strategy);
    lines.field(0, "MinReadySeconds", &number(object, "/spec/minReadySeconds").to_string());
    if strategy == "RollingUpdate" {
        let amount = |name: &str| {
            let set = scalar(object, &format!("/spec/strategy/rollingUpdate/{name}"));
            set.unwrap_or_else(|| "25%".to_owned())
        };
        let (unavailable, surge) = (amount("maxUnavailable"), amount("maxSurge"));
        let update = format!("{unavailable} max unavailable, {surge} max surge");
        lines.field(0, "RollingUpdateStrategy", &update);
    }
    template::add(lines, object, "/spec/template");
    conditions(lines, object);
    let mut sets: Vec<&Value> = owned(object, "ReplicaSet", all).collect();
    // The ReplicaSet of the current template has the last revision.
    compact::sort_by(&mut sets, |one, other| revision(one).cmp(&revision(other)));
    if let Some(new) = sets.pop() {
        compact::sort_by(&mut sets, |one, other| {
            text(one, "/metadata/name").cmp(text(other, "/metadata/name"))
        });
        let old: Vec<String> = sets.into_iter().map(set).collect();
        lines.field(0, "OldReplicaSets", &or(old.join(", "), NONE));
        lines.field(0, "NewReplicaSet", &set(new));
    }
}

/// Adds a ReplicaSet or a ReplicationController.
pub(super) fn replica_set(lines: &mut Lines, object: &Value, all: &[Value], _: Timestamp) {
    names(lines, object);
    let selected = match text(object, "/kind") {
        "ReplicationController" => joined(object, "/spec/selector"),
        _ => selector(object, "/spec/selector"),
    };
    lines.field(0, "Selector", &selected);
    metadata(lines, object);
    controller(lines, object);
    let current = number(object, "/status/replicas");
    lines.field(0, "Replicas", &format!("{current} current / {} desired", desired(object)));
    pods(lines, object, all);
    template::add(lines, object, "/spec/template");
    conditions(lines, object);
}

/// Adds a StatefulSet.
pub(super) fn stateful_set(lines: &mut Lines, object: &Value, all: &[Value], _: Timestamp) {
    names(lines, object);
    created(lines, object);
    lines.field(0, "Selector", &selector(object, "/spec/selector"));
    metadata(lines, object);
    let total = number(object, "/status/replicas");
    lines.field(0, "Replicas", &format!("{} desired | {total} total", desired(object)));
    let strategy = text_or(object, "/spec/updateStrategy/type", "RollingUpdate");
    lines.field(0, "Update Strategy", &strategy);
    let update = "/spec/updateStrategy/rollingUpdate";
    if let Some(partition) = scalar(object, &format!("{update}/partition")) {
        lines.field(2, "Partition", &partition);
        let unavailable = scalar(object, &format!("{update}/maxUnavailable"));
        lines.some(2, "MaxUnavailable", unavailable.as_deref());
    }
    pods(lines, object, all);
    template::add(lines, object, "/spec/template");
    claims(lines, list(object, "/spec/volumeClaimTemplates"));
}

/// Adds a DaemonSet.
pub(super) fn daemon_set(lines: &mut Lines, object: &Value, all: &[Value], _: Timestamp) {
    names(lines, object);
    lines.field(0, "Selector", &selector(object, "/spec/selector"));
    let nodes = joined(object, "/spec/template/spec/nodeSelector");
    lines.field(0, "Node-Selector", &nodes);
    metadata(lines, object);
    for (heading, name) in [
        ("Desired Number of Nodes Scheduled", "desiredNumberScheduled"),
        ("Current Number of Nodes Scheduled", "currentNumberScheduled"),
        ("Number of Nodes Scheduled with Up-to-date Pods", "updatedNumberScheduled"),
        ("Number of Nodes Scheduled with Available Pods", "numberAvailable"),
        ("Number of Nodes Misscheduled", "numberMisscheduled"),
    ] {
        lines.line(0, &format!("{heading}: {}", number(object, &format!("/status/{name}"))));
    }
    pods(lines, object, all);
    template::add(lines, object, "/spec/template");
}

/// The objects of a kind that an object controls.
fn owned<'v>(
    object: &'v Value,
    kind: &'v str,
    all: &'v [Value],
) -> impl Iterator<Item = &'v Value> {
    let uid = text(object, "/metadata/uid");
    let owner = move |owner: &Value| {
        text(owner, "/uid") == uid && field(owner, "/controller") == Some(&Value::Bool(true))
    };
    all.iter().filter(move |other| {
        text(other, "/kind") == kind && list(other, "/metadata/ownerReferences").iter().any(owner)
    })
}

fn revision(set: &Value) -> u64 {
    text(set, REVISION).parse().unwrap_or_default()
}

fn set(set: &Value) -> String {
    let (name, current) = (text(set, "/metadata/name"), number(set, "/status/replicas"));
    format!("{name} ({current}/{} replicas created)", desired(set))
}

/// The requested number of pods; the default is 1.
fn desired(object: &Value) -> i64 {
    field(object, "/spec/replicas").and_then(Value::as_i64).unwrap_or(1)
}

fn created(lines: &mut Lines, object: &Value) {
    let time = time(object, "/metadata/creationTimestamp").unwrap_or_default();
    lines.field(0, "CreationTimestamp", &time);
}

/// Adds the numbers of the object's pods by phase.
fn pods(lines: &mut Lines, object: &Value, all: &[Value]) {
    let phases: Vec<&str> =
        owned(object, "Pod", all).map(|pod| text(pod, "/status/phase")).collect();
    let count = |phase: &str| phases.iter().filter(|other| **other == phase).count();
    let counts = format!(
        "{} Running / {} Waiting / {} Succeeded / {} Failed",
        count("Running"),
        count("Pending"),
        count("Succeeded"),
        count("Failed"),
    );
    lines.field(0, "Pods Status", &counts);
}

fn claims(lines: &mut Lines, claims: &[Value]) {
    if claims.is_empty() {
        return lines.field(0, "Volume Claims", NONE);
    }
    lines.line(0, "Volume Claims:");
    for claim in claims {
        lines.field(2, "Name", text(claim, "/metadata/name"));
        lines.field(2, "StorageClass", text(claim, "/spec/storageClassName"));
        let metadata = claim.get("metadata").cloned().unwrap_or_default();
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap_or_default();
        lines.values(2, "Labels", &pairs(metadata.labels.as_ref()));
        // Unlike the annotations of an object, in the format of labels.
        lines.values(2, "Annotations", &pairs(metadata.annotations.as_ref()));
        let capacity = text_or(claim, "/spec/resources/requests/storage", "<default>");
        lines.field(2, "Capacity", &capacity);
        let modes = texts(claim, "/spec/accessModes").join(" ");
        lines.field(2, "Access Modes", &format!("[{modes}]"));
    }
}

#[cfg(test)]
mod tests;
